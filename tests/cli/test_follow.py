"""``report --follow``: a file that a server is still writing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from otel_lifecycle._table.sources.reader import snapshot
from tests.cli.generator import Load, line, simulate, spans_of
from tests.cli.running import Ran

COMMAND = (sys.executable, "-m", "otel_lifecycle._cli.main", "report", "--follow")


def batch_of(requests: int, seed: int) -> bytes:
    """Return a message of some completed requests; another seed is other requests."""
    load = Load(requests=requests, seed=seed, cancelled=0, failed=0)
    return line([span for request in simulate(load) for span in spans_of(request, load)])


def first_lines(out: IO[str], number: int) -> list[str]:
    """Return so many first lines of the next reports."""
    found: list[str] = []
    while len(found) < number:
        text = out.readline()
        assert text, "the command has ended"
        if " completed, from " in text:
            found.append(text.rstrip())
    return found


def test_a_report_for_each_change(cli: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None before the file exists, none for a pause without a change; the code is that of the last report."""
    file = tmp_path / "run.jsonl"
    steps = iter([batch_of(5, seed=1), b"", batch_of(3, seed=2)])

    def pause(seconds: float) -> None:
        assert seconds >= 1
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        with file.open("ab") as writer:
            writer.write(step)

    monkeypatch.setattr("otel_lifecycle._cli.commands.follow.time.sleep", pause)
    ran = cli("report", "--follow", "run.jsonl")
    firsts = [text for text in ran.out.splitlines() if " completed, from " in text]
    assert firsts == [f"{number} requests, 100.0 % completed, from run.jsonl" for number in (5, 8)]
    assert (ran.code, ran.err) == (0, "following run.jsonl; Ctrl-C ends it\n")


@pytest.mark.process
@pytest.mark.slow
def test_a_growing_file_is_reported_again(tmp_path: Path) -> None:
    """From before the file exists; a torn last line is read once it is whole; Ctrl-C ends it with the report's code."""
    file, torn = tmp_path / "run.jsonl", batch_of(2, seed=3)
    with subprocess.Popen([*COMMAND, str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline() == f"following {file}; Ctrl-C ends it\n"
        with file.open("wb", buffering=0) as writer:
            writer.write(batch_of(5, seed=1))
            assert first_lines(process.stdout, 1) == [f"5 requests, 100.0 % completed, from {file}"]
            writer.write(batch_of(3, seed=2) + torn[:-200])
            assert first_lines(process.stdout, 1) == [f"8 requests, 100.0 % completed, from {file}"]
            writer.write(torn[-200:])
            assert first_lines(process.stdout, 1) == [f"10 requests, 100.0 % completed, from {file}"]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize("options", [("-",), ("run.jsonl", "--json"), ("run.jsonl", "--junit")])
def test_what_cannot_be_followed_is_said(cli: Callable[..., Ran], options: tuple[str, ...]) -> None:
    """A pipe cannot be read again, and a second JSON document on standard output is not JSON."""
    ran = cli("report", "--follow", *options)
    assert ran.code == 2
    assert "--follow needs files and prints text" in ran.err


def test_what_counts_as_a_change(tmp_path: Path) -> None:
    """Growth, a rotated file, a rewrite of the same length; nothing else. A missing file is not a file yet."""
    file = tmp_path / "run.jsonl"
    assert snapshot([str(file)]) == frozenset()
    file.write_bytes(b"one")
    seen = snapshot([str(tmp_path)])
    assert snapshot([str(tmp_path)]) == seen
    assert snapshot([str(tmp_path / "*.jsonl")]) == seen
    os.utime(file, ns=(0, 1))
    assert snapshot([str(tmp_path)]) != seen
    seen = snapshot([str(tmp_path)])
    file.rename(tmp_path / "run-1.jsonl")
    assert snapshot([str(tmp_path)]) != seen
    assert snapshot(["http://localhost:16686?service=s"]) != snapshot(["http://localhost:16686?service=s"])
