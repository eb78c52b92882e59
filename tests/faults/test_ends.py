"""How a process may end, and what of its requests is kept then."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.matrix import Matrix
from tests.faults.running import command, kept_spans, run, started, total
from tests.support.otlp_receiver import HttpReceiver, OtlpReceiver

SERVED = 50
NEVER_BY_ITSELF: dict[str, Any] = {"OTEL_METRIC_EXPORT_INTERVAL": 60_000, "OTEL_BSP_SCHEDULE_DELAY": 60_000}
# An exporter that waits for as long as this outlasts the test: whatever ends before did not wait for it.
PATIENT: dict[str, Any] = {**NEVER_BY_ITSELF, "OTEL_EXPORTER_OTLP_TIMEOUT": 3600}
"""Nothing is exported but by the end itself."""

TIMEOUT = 1.0
"""How many times the timeout still counts as kept to, on a machine that is busy; not kept, it is 20 times and more."""


@pytest.mark.parametrize(("how", "status"), [("return", 0), ("exception", 1), ("exit", 3), ("shutdown", 0)])
def test_end_of_a_script_keeps_everything(otlp_http: HttpReceiver, matrix: Matrix, how: str, status: int) -> None:
    """Nobody called shutdown, or somebody did: all that was served, and the open request as cancelled by it."""
    done = run(otlp_http, "ends", how, SERVED, **NEVER_BY_ITSELF)
    counted, spans = total(otlp_http), kept_spans(otlp_http)
    matrix.add(f"script ends: {how}", SERVED + 1, counted, spans, "nothing")
    assert (done.returncode, counted, spans) == (status, SERVED + 1, SERVED + 1)
    (opened,) = otlp_http.spans("chat open")
    assert (opened["attributes"]["inference.outcome"], opened["attributes"]["inference.end.reason"]) == (
        "cancelled",
        "shutdown",
    )
    assert total(otlp_http, inference__outcome="completed") == SERVED


def test_end_by_os_exit_loses_what_was_not_sent(otlp_http: HttpReceiver, matrix: Matrix) -> None:
    """No code runs after it; nothing can be kept, and nothing half kept."""
    done = run(otlp_http, "ends", "hard", SERVED, **NEVER_BY_ITSELF)
    counted, spans = total(otlp_http), kept_spans(otlp_http)
    matrix.add("os._exit", SERVED, counted, spans, "all since the last export; nobody is left to count it")
    assert (done.returncode, counted, spans) == (0, 0, 0)


def test_sigterm_to_a_script_with_a_handler_keeps_everything(
    otlp_http: HttpReceiver, matrix: Matrix, tmp_path: Path
) -> None:
    """A handler that leaves by sys.exit: every request that was served, the one it cut off, and the open one."""
    with started(otlp_http, command("ends", "handled", SERVED), tmp_path / "log", **NEVER_BY_ITSELF) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"served {SERVED}\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        status = process.wait(60)
        served = int(process.stdout.readline().split()[1])
    counted, spans = total(otlp_http), kept_spans(otlp_http)
    loss = "nothing (one, where the signal's exception lands inside our own code)"
    matrix.add("SIGTERM, script with a handler", served + 2, counted, spans, loss)
    # The exception may come up anywhere: between two requests, in the middle of one, or after its end and before it is
    # counted here. The open one is always there.
    assert status == 0
    assert abs(total(otlp_http, inference__outcome="completed") - served) <= 1
    assert served + 1 <= counted <= served + 2
    assert abs(counted - spans) <= 1


def test_sigterm_to_a_script_without_a_handler_keeps_everything(
    otlp_http: HttpReceiver, matrix: Matrix, tmp_path: Path
) -> None:
    """Nobody handles the signal: what is open is ended and sent, and the process dies of the signal all the same."""
    with started(otlp_http, command("ends", "wait", SERVED), tmp_path / "log", **NEVER_BY_ITSELF) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        status = process.wait(60)
    counted, spans = total(otlp_http), kept_spans(otlp_http)
    matrix.add("SIGTERM, script without a handler", SERVED + 1, counted, spans, "nothing")
    assert status == -signal.SIGTERM
    assert counted == spans >= SERVED + 1
    (opened,) = otlp_http.spans("chat open")
    assert opened["attributes"]["inference.end.reason"] == "shutdown"


def test_sigkill_keeps_what_was_sent(otlp_http: HttpReceiver, matrix: Matrix, tmp_path: Path) -> None:
    """Nothing can be done about it; what was exported before stands."""
    with started(otlp_http, command("ends", "wait", SERVED), tmp_path / "log") as process:
        otlp_http.wait_for(lambda: total(otlp_http) >= SERVED and kept_spans(otlp_http) >= SERVED)
        process.kill()
        status = process.wait(60)
    counted, spans = total(otlp_http), kept_spans(otlp_http)
    loss = "what ended since the last export; nobody is left to count it"
    matrix.add("SIGKILL", SERVED, counted, spans, loss)
    assert (status, counted >= SERVED, spans >= SERVED) == (-signal.SIGKILL, True, True)


@pytest.mark.parametrize(
    ("transport", "mode"),
    [
        ("http", "hang"),
        pytest.param("http", "refuse", marks=pytest.mark.slow),
        pytest.param("grpc", "hang", marks=pytest.mark.slow),
        pytest.param("grpc", "refuse", marks=pytest.mark.slow),
    ],
)
def test_shutdown_keeps_to_its_timeout(
    request: pytest.FixtureRequest, matrix: Matrix, transport: str, mode: str
) -> None:
    """An exporter that gets no answer holds ``shutdown(timeout)`` no longer than that; what is lost is said."""
    otlp: OtlpReceiver = request.getfixturevalue(f"otlp_{transport}")
    getattr(otlp, mode)()
    done = run(otlp, "ends", "shutdown", SERVED, TIMEOUT=TIMEOUT, **PATIENT)
    _, told = done.stdout.splitlines()
    word, in_time = told.split()
    loss = "everything not sent; shutdown() returns False and says so in one line"
    matrix.add(f"shutdown(), collector: {mode}, {otlp.scheme}", SERVED + 1, total(otlp), kept_spans(otlp), loss)
    assert (done.returncode, word, in_time) == (0, "shutdown", "False")
    assert done.stderr.count("shutdown gave up") == 1


@pytest.mark.parametrize("threads", ["threads", "no threads"])
def test_exit_keeps_to_its_timeout(otlp_http: HttpReceiver, matrix: Matrix, tmp_path: Path, threads: str) -> None:
    """A collector that hangs holds the interpreter's exit no longer, also where it can start no thread any more."""
    otlp_http.hang()
    variables: dict[str, Any] = {"OTEL_LIFECYCLE_SHUTDOWN_TIMEOUT": TIMEOUT, **PATIENT}
    if threads == "no threads":
        variables["NO_NEW_THREADS"] = 1
    log = tmp_path / "log"
    with started(otlp_http, command("ends", "return", SERVED), log, **variables) as process:
        assert process.stdout is not None
        process.stdout.readline()
        status = process.wait(90)
    loss = "everything not sent; said in one line"
    matrix.add(f"exit, collector hangs, {threads}", SERVED + 1, total(otlp_http), kept_spans(otlp_http), loss)
    assert status == 0
    assert log.read_text().count("shutdown gave up") == 1


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_shutdown_inside_a_signal_handler(otlp_http: HttpReceiver, matrix: Matrix, tmp_path: Path, rounds: int) -> None:
    """In the middle of whatever the main thread is at, locks of the SDK held: it ends in time, never stuck."""
    for number in range(rounds):
        otlp_http.clear()
        variables: dict[str, Any] = {"OTEL_LIFECYCLE_SHUTDOWN_TIMEOUT": TIMEOUT, "OTEL_EXPORTER_OTLP_TIMEOUT": 3600}
        with started(otlp_http, command("ends", "inside", SERVED), tmp_path / "log", **variables) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.25 + number * 0.0037)
            process.send_signal(signal.SIGTERM)
            status = process.wait(60)
            served = int(process.stdout.readline().split()[1])
        assert status == 0
    loss = "what a lock held by the interrupted thread keeps back; said in one line"
    matrix.add("shutdown() inside a signal handler", served, total(otlp_http), kept_spans(otlp_http), loss)
