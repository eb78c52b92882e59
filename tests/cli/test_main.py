"""The command line as a whole: its list, its help, its exit codes, and what it needs."""

from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_lifecycle._cli.main import COMMANDS, run
from tests.cli.generator import Load, write
from tests.cli.running import Ran


def test_the_list_names_every_command(cli: Callable[..., Ran]) -> None:
    """With a line on each."""
    ran = cli("--help")
    assert ran.code == 0
    for name, help_ in COMMANDS.items():
        assert name in ran.out
        assert help_ in " ".join(ran.out.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(cli: Callable[..., Ran], command: str) -> None:
    """And refuses an option it does not have with code 2."""
    assert cli(command, "--help").code == 0
    assert cli(command, "--no-such-option").code == 2


def test_an_unknown_command_is_code_2(cli: Callable[..., Ran]) -> None:
    """The mistake is named."""
    ran = cli("explain")
    assert ran.code == 2
    assert "explain" in ran.err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--slo", "ttft"), "it is written ttft=0.5,tpot=0.05,e2e=30"),
        (("--slo", "speed=1"), "it is written ttft=0.5,tpot=0.05,e2e=30"),
        (("--slo", "ttft=-1"), "must be a positive number of seconds"),
        (("--from", "yesterday"), "'yesterday' is no time"),
        (("--from", "2026-01-02", "--to", "2026-01-01"), "ends (2026-01-01) before it starts (2026-01-02)"),
    ],
)
def test_options_that_make_no_sense_are_code_2(cli: Callable[..., Ran], options: tuple[str, ...], reason: str) -> None:
    """The rule is said."""
    ran = cli("report", "-", *options)
    assert ran.code == 2
    assert reason in ran.err


def test_without_the_extra_the_cure_is_said(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Not a traceback."""
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "click":
            raise ModuleNotFoundError("No module named 'click'")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    code = run(["report"])
    monkeypatch.undo()
    assert (code, capfd.readouterr().err) == (
        2,
        "otel-lifecycle: otel-lifecycle needs its extra: pip install 'otel-lifecycle[cli]' (No module named 'click')\n",
    )


def process(*arguments: str, folder: Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a process of its own."""
    root = str(Path(__file__).parents[2])
    code = f"import sys; sys.path.insert(0, {root!r}); from otel_lifecycle._cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, check=False, capture_output=True, timeout=120, **options
    )


def test_a_pipe_in_and_a_reader_that_leaves(tmp_path: Path) -> None:
    """Traces come in by a pipe; a reader of the output that has had enough is no error."""
    with (tmp_path / "run.json").open("wb") as out:
        write(Load(requests=20), out)
    ran = process("report", "-", "--json", folder=tmp_path, input=(tmp_path / "run.json").read_bytes())
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b'"total": 20' in ran.stdout
    shell = f'{sys.executable} -c "{_main()}" check many.json | head -1'
    (tmp_path / "many.json").write_bytes(_illegal(tmp_path))
    left = subprocess.run(["bash", "-c", shell], cwd=tmp_path, check=False, capture_output=True, timeout=120)
    assert (left.returncode, left.stderr, left.stdout.count(b"\n")) == (0, b"", 1)


def _main() -> str:
    root = str(Path(__file__).parents[2])
    return f"import sys; sys.path.insert(0, '{root}'); from otel_lifecycle._cli.main import main; main()"


def _illegal(folder: Path) -> bytes:
    """Return spans of which each has a violation."""
    import json

    from tests.cli.generator import START_NS, encode

    def span(number: int) -> dict[str, Any]:
        event = {"name": "arrive", "timeUnixNano": str(START_NS)}
        return {
            "traceId": f"{number + 1:032x}",
            "spanId": f"{number + 1:016x}",
            "name": "chat",
            "startTimeUnixNano": str(START_NS),
            "endTimeUnixNano": str(START_NS),
            "attributes": encode({}),
            "events": [event],
        }

    spans = [span(number) for number in range(3000)]
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()


def test_help_costs_no_import_of_the_numbers(tmp_path: Path) -> None:
    """The list of commands loads neither numpy nor scipy nor matplotlib."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from otel_lifecycle._cli.main import run\n"
        "run(['--help'])\n"
        "print(sorted({'numpy', 'scipy', 'matplotlib', 'rich'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    assert ran.stdout.splitlines()[-1] == b"[]"


def test_nothing_is_drawn_on_a_standard_error_that_is_no_terminal(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """A progress bar in a log file helps nobody."""
    with (tmp_path / "run.json").open("wb") as out:
        write(Load(requests=20), out)
    assert cli("report", "run.json").err == ""
