"""``otel-lifecycle run`` and ``live`` as a user starts them: real processes, signals and exit codes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from otel_lifecycle._cli.commands.live_options import saving_to
from otel_lifecycle._live.child import environment_of, instrument_beside, launch_of
from otel_lifecycle._table.errors import Unusable
from tests.cli.running import Ran

COMMAND = (sys.executable, "-m", "otel_lifecycle._cli.main")
SERVER = """
import sys, time
import otel_lifecycle as lifecycle
lifecycle.configure(service_name="s")
for number in range(3):
    with lifecycle.request(model="m", request_id=f"r-{number}") as request:
        request.admit(); request.input_ready()
        for token in request.stream([1, 2, 3]):
            pass
print("served", flush=True)
"""


def run(*arguments: str, code: str, before: Sequence[str] = ("run", "--no-auto")) -> subprocess.CompletedProcess[str]:
    """Run a server that is a piece of code."""
    command = [*COMMAND, *before, *arguments, "--", sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


# Each starts two interpreters; the quick suite has the same parts without processes.
slow = pytest.mark.slow


@slow
@pytest.mark.parametrize("name", ["run.jsonl.zst", "run.parquet"])
def test_the_report_follows_the_command(tmp_path: Path, name: str) -> None:
    """Its first line begins with the number of requests; the exit code is the command's; all is saved."""
    saved = tmp_path / name
    ran = run("--save", str(saved), code=SERVER + "sys.exit(7)")
    assert ran.returncode == 7, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == "served"
    assert lines[1].startswith("3 requests, 100.0 % completed")
    assert re.search(r"live page at http://127\.0\.0\.1:\d+/$", ran.stderr, re.MULTILINE)
    again = subprocess.run([*COMMAND, "report", str(saved)], capture_output=True, text=True, timeout=110, check=False)
    assert again.stdout.splitlines()[0].startswith("3 requests, 100.0 % completed"), again.stderr


@slow
def test_a_command_that_sends_nothing_is_told_why() -> None:
    """No request is not a success: the first line still counts, and the next says what to do."""
    ran = run(code="print('nothing here')")
    assert (ran.returncode, ran.stdout.splitlines()[1]) == (0, "0 requests")
    assert "configure()" in ran.stdout.splitlines()[2]


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command, and end it if it has not ended."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def page_of(process: subprocess.Popen[str]) -> str:
    """Return the page's address, once it was printed."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"live page[^h]*(http://\S+)", line):
            return found[1]
    raise AssertionError("no page was announced")


@slow
@pytest.mark.parametrize(
    ("code", "sent", "expected"),
    [
        ("import signal; signal.signal(signal.SIGTERM, lambda *_: exit(5))", signal.SIGTERM, 5),
        ("import signal; signal.signal(signal.SIGINT, lambda *_: exit(6))", signal.SIGINT, 6),
        ("", signal.SIGTERM, 128 + signal.SIGTERM),
    ],
)
def test_signals_reach_the_command(code: str, sent: signal.Signals, expected: int) -> None:
    """What the command makes of a signal is the exit code; one that it does not handle gives 128 + its number."""
    waiting = f"{code}\nprint('ready', flush=True)\nimport time\ntime.sleep(100)"
    with started("run", "--no-auto", "--", sys.executable, "-c", waiting) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(sent)
        assert process.wait(60) == expected


@slow
def test_live_listens_until_it_is_stopped(tmp_path: Path) -> None:
    """The page answers, and what comes over HTTP is saved when it is stopped."""
    saved = tmp_path / "all.jsonl"
    with started("live", "--port", "0", "--grpc-port", "0", "--save", str(saved)) as process:
        page = page_of(process)
        assert httpx.get(page).status_code == 200
        body = '{"resourceSpans": [{"scopeSpans": [{"spans": []}]}]}'
        answer = httpx.post(f"{page}v1/traces", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert saved.read_text() == '{"resourceSpans":[{"scopeSpans":[{}]}]}\n'


@slow
def test_the_page_can_stay(tmp_path: Path) -> None:
    """With --stay the page answers after the command has ended, until Ctrl-C."""
    with started("run", "--no-auto", "--stay", "--", sys.executable, "-c", "exit(4)") as process:
        page = page_of(process)
        assert process.stderr is not None
        assert "stays" in process.stderr.readline()
        assert httpx.get(page).status_code == 200
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 4


def test_the_environment_sends_here_and_nowhere_else() -> None:
    """Other endpoints, protocols and headers go; the user's other settings stay; no proxy is asked."""
    own = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://other",
        "OTEL_EXPORTER_OTLP_HEADERS": "key=secret",
        "OTEL_LIFECYCLE_ENDPOINT": "http://third",
        "OTEL_LIFECYCLE_TOKEN_TIMES": "false",
        "OTEL_TRACES_EXPORTER": "console",
        "OTEL_SDK_DISABLED": "true",
        "OTEL_SERVICE_NAME": "mine",
        "no_proxy": "internal",
    }
    assert environment_of(own, "http://127.0.0.1:9", None) == {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "OTEL_LIFECYCLE_TOKEN_TIMES": "false",
        "OTEL_SERVICE_NAME": "mine",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "internal,127.0.0.1,localhost",
    }
    with_token = environment_of({}, "http://127.0.0.1:9", "t")
    assert with_token["OTEL_EXPORTER_OTLP_HEADERS"] == "authorization=Bearer%20t"


def test_auto_instrumentation_is_used_where_it_is_installed(tmp_path: Path) -> None:
    """Beside the program it starts the command; where it is missing the command runs without it, and says so."""
    python = tmp_path / "python3"
    python.symlink_to(sys.executable)
    without = launch_of([str(python), "app.py"], "http://x", None, auto=True)
    assert list(without.arguments) == [str(python), "app.py"]
    assert "pip install opentelemetry-distro" in str(without.remark)
    instrument = tmp_path / "opentelemetry-instrument"
    instrument.write_text("#!/bin/sh\n")
    instrument.chmod(0o755)
    assert instrument_beside(str(python)) == str(instrument)
    launch = launch_of([str(python), "app.py"], "http://x", None, auto=True)
    assert (list(launch.arguments), launch.remark) == ([str(instrument), str(python), "app.py"], None)
    assert list(launch_of([str(python), "app.py"], "http://x", None, auto=False).arguments) == [str(python), "app.py"]


def test_a_command_that_does_not_exist_is_named() -> None:
    """Before anything is started."""
    with pytest.raises(Unusable, match="no-such-command"):
        launch_of(["no-such-command"], "http://x", None, auto=True)


def test_a_save_name_of_another_form_is_refused(tmp_path: Path) -> None:
    """The forms that every other command reads are named."""
    with pytest.raises(Unusable, match=r"\.jsonl\.zst"), saving_to(str(tmp_path / "run.txt"), spool=True):
        pass


def test_a_wrong_command_is_the_exit_code_2(cli: Callable[..., Ran]) -> None:
    """No report is printed for what never ran."""
    ran = cli("run", "--", "no-such-command")
    assert (ran.code, ran.out) == (2, "")
    assert "no-such-command: there is no such command" in ran.err
