"""The command line as a whole: its list, its help, its exit codes, and what it needs."""

from __future__ import annotations

import builtins
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_lifecycle._cli.main import COMMANDS, run
from otel_lifecycle._table.machine import to_json
from otel_lifecycle._table.text import text
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
        (("--from", "yesterday"), "'yesterday' is not a time"),
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
        "otel-lifecycle: needs its extra: pip install '.[cli]' in its folder (No module named 'click')\n",
    )


def process(*arguments: str, folder: Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a process of its own."""
    root = str(Path(__file__).parents[2])
    code = f"import sys; sys.path.insert(0, {root!r}); from otel_lifecycle._cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, check=False, capture_output=True, timeout=120, **options
    )


@pytest.mark.process
def test_a_pipe_in_and_a_reader_that_leaves(tmp_path: Path) -> None:
    """Traces come in by a pipe; a reader of the output that has had enough is not an error."""
    with (tmp_path / "run.json").open("wb") as out:
        write(Load(requests=20), out)
    ran = process("report", "-", "--json", folder=tmp_path, input=(tmp_path / "run.json").read_bytes())
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b'"total": 20' in ran.stdout
    (tmp_path / "many.json").write_bytes(_illegal(tmp_path))
    left = shell("cli check many.json | head -1", tmp_path)
    assert (left.returncode, left.stderr, left.stdout.count(b"\n")) == (0, b"", 1)


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Run a line of bash, in which `cli` is the command."""
    script = f'cli() {{ {sys.executable} -c "{_main()}" "$@"; }}\n{line}'
    return subprocess.run(["bash", "-c", script], cwd=folder, check=False, capture_output=True, timeout=120)


def slowly(*commands: str) -> list[Any]:
    """Return commands of which only the first is tried by the quick suite: each is a process of its own."""
    return [commands[0], *(pytest.param(command, marks=pytest.mark.slow) for command in commands[1:])]


@pytest.mark.process
@pytest.mark.parametrize("command", slowly("check", "check --json", "report", "report --json", "report --csv"))
def test_a_reader_that_leaves_at_once_finds_nothing(tmp_path: Path, command: str) -> None:
    """Exit code 1 would say that there is a violation."""
    with (tmp_path / "clean.json").open("wb") as out:
        write(Load(requests=20), out)
    ran = shell(f"cli {command} clean.json | head -0; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.process
@pytest.mark.parametrize("command", slowly("check", "check --json"))
def test_a_violation_found_stays_found(tmp_path: Path, command: str) -> None:
    """A reader that leaves gets the exit code of what was seen until then."""
    (tmp_path / "many.json").write_bytes(_illegal(tmp_path))
    ran = shell(f"cli {command} many.json | head -1; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert (ran.returncode, ran.stderr) == (1, b"")


@pytest.mark.process
@pytest.mark.parametrize("command", slowly("report", "report --json", "report --csv", "check", "view"))
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is full is Linux's")
def test_an_output_that_is_full_is_code_2(tmp_path: Path, command: str) -> None:
    """One line, no traceback."""
    with (tmp_path / "run.json").open("wb") as out:
        write(Load(requests=1), out)
    ran = shell(f"cli {command} run.json > /dev/full", tmp_path)
    assert (ran.returncode, ran.stderr) == (2, b"otel-lifecycle: the output: No space left on device\n")


@pytest.mark.process
def test_an_output_that_lacks_a_character_is_no_error(tmp_path: Path) -> None:
    """A question mark stands for it."""
    with (tmp_path / "run.json").open("wb") as out:
        write(Load(requests=1, attributes=(("gen_ai.request.model", "日本"),)), out)
    ran = process("report", "run.json", folder=tmp_path, env={**os.environ, "PYTHONIOENCODING": "latin-1"})
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert re.search(rb"^model +\?\? ", ran.stdout, re.MULTILINE)


def test_what_nobody_foresaw_is_code_2_with_the_file(
    cli: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not a traceback, whose exit code 1 says that something was found."""
    with (tmp_path / "run.json").open("wb") as out:
        write(Load(requests=1), out)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("otel_lifecycle._table.sources.otlp_json.decode", broken)
    ran = cli("check", "run.json")
    assert (ran.code, ran.out) == (2, "")
    assert re.fullmatch(
        r"otel-lifecycle: run\.json:1: ZeroDivisionError: division by zero \(in test_main\.py:\d+\); "
        r"this is a fault of otel-lifecycle, please report it\n",
        ran.err,
    )


def test_the_short_form_of_help(cli: Callable[..., Ran]) -> None:
    """Of the whole and of a command."""
    assert cli("-h").out == cli("--help").out
    assert cli("check", "-h").out == cli("check", "--help").out != ""


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("\x1b[31mred\x1b]0;title\x07", "�[31mred�]0;title�"),
        ("a\u202eb\u2066c\x9bd\x7f", "a�b�c�d�"),
        ("two\nlines\tand a tab", "two lines and a tab"),
        ("日本語 🎉 e\u0301", "日本語 🎉 e\u0301"),
        ("\ud800", "�"),
        ("", "-"),
        (None, "-"),
    ],
)
def test_no_name_steers_the_terminal(given: object, printed: str) -> None:
    """Names come from whoever sent the request."""
    assert text(given) == printed


def test_what_json_has_no_room_for(cli: Callable[..., Ran]) -> None:
    """Integers of more than 64 bits, and halves of a character, as they come of a file's name."""
    assert json.loads(to_json({"many": [10**30], "name": "a\udcff"})) == {"many": [str(10**30)], "name": "a?"}


def _main() -> str:
    root = str(Path(__file__).parents[2])
    return f"import sys; sys.path.insert(0, '{root}'); from otel_lifecycle._cli.main import main; main()"


def _illegal(folder: Path) -> bytes:
    """Return spans of which each has a violation."""
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


@pytest.mark.process
def test_help_costs_no_import_of_the_numbers(tmp_path: Path) -> None:
    """The list of commands loads neither numpy nor scipy nor the templates of pages."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from otel_lifecycle._cli.main import run\n"
        "run(['--help'])\n"
        "heavy = {'numpy', 'scipy', 'jinja2', 'rich', 'starlette', 'grpc', 'duckdb', 'opentelemetry'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    assert ran.stdout.splitlines()[-1] == b"[]"


def test_nothing_is_drawn_on_a_standard_error_that_is_no_terminal(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """A progress bar in a log file helps nobody."""
    with (tmp_path / "run.json").open("wb") as out:
        write(Load(requests=20), out)
    assert cli("report", "run.json").err == ""
