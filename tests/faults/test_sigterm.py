"""SIGTERM to a server under load: what was answered is counted, and so is what was cut off."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.matrix import Matrix
from tests.faults.running import kept_spans, total
from tests.faults.servers import CLIENTS, Server, serving
from tests.faults.test_ends import NEVER_BY_ITSELF
from tests.support.otlp_receiver import HttpReceiver

BEFORE = 40
STREAM = "tokens=20&gap=0.03"
"""A stream of 0.6 s, so that the signal comes in the middle of it."""


def terminate_under_load(server: Server) -> tuple[int, int]:
    """Serve some requests, then send SIGTERM while streams are on; return how many were answered, and the status."""
    answered = [pid for pid in server.load(BEFORE) if pid is not None]
    with ThreadPoolExecutor(CLIENTS) as pool:
        streams = pool.map(server.get, [STREAM] * CLIENTS)
        time.sleep(0.3)
        status = server.terminate()
        answered += [pid for pid in streams if pid is not None]
    return len(answered), status


@pytest.mark.parametrize(
    "kind",
    [
        "uvicorn",
        pytest.param("uvicorn, 4 workers", marks=pytest.mark.slow),
        pytest.param("gunicorn", marks=pytest.mark.slow),
        pytest.param("gunicorn, preloaded", marks=pytest.mark.slow),
    ],
)
def test_sigterm_to_a_server_keeps_everything(
    otlp_http: HttpReceiver, matrix: Matrix, tmp_path: Path, kind: str
) -> None:
    """Under uvicorn ``shutdown()`` belongs into the lifespan; gunicorn's workers leave by sys.exit and need nothing."""
    variables = {"SHUTDOWN_IN_LIFESPAN": 1, **NEVER_BY_ITSELF}
    with serving(otlp_http, kind, tmp_path / "log", **variables) as server:
        answered, _ = terminate_under_load(server)
    counted, spans = total(otlp_http), kept_spans(otlp_http)
    loss = "nothing (shutdown() in the lifespan)" if "uvicorn" in kind else "nothing"
    matrix.add(f"SIGTERM under load, {kind}", answered, counted, spans, loss)
    assert answered >= BEFORE
    # A stream whose client was cut off while it went out is counted too, and its client knows of no answer.
    assert answered <= counted == spans <= BEFORE + CLIENTS
    assert total(otlp_http, inference__outcome="completed") >= answered


def test_sigterm_to_a_script_that_runs_uvicorn_keeps_everything(
    otlp_http: HttpReceiver, matrix: Matrix, tmp_path: Path
) -> None:
    """``configure()`` before ``uvicorn.run()``: uvicorn drains, then raises the signal again, and our handler runs."""
    with serving(otlp_http, "uvicorn.run", tmp_path / "log", **NEVER_BY_ITSELF) as server:
        answered, status = terminate_under_load(server)
    counted, spans = total(otlp_http), kept_spans(otlp_http)
    matrix.add("SIGTERM under load, configure() then uvicorn.run()", answered, counted, spans, "nothing")
    assert (status, counted, spans) == (-signal.SIGTERM, answered, answered)


def test_sigterm_to_uvicorn_without_a_lifespan_keeps_what_was_sent(
    otlp_http: HttpReceiver, matrix: Matrix, tmp_path: Path
) -> None:
    """Uvicorn dies by the signal once it has drained, so no exit handler runs; what was exported before stands."""
    with serving(otlp_http, "uvicorn", tmp_path / "log") as server:
        server.load(BEFORE)
        otlp_http.wait_for(lambda: total(otlp_http) >= BEFORE and kept_spans(otlp_http) >= BEFORE)
        status = server.terminate()
    counted, spans = total(otlp_http), kept_spans(otlp_http)
    loss = "what ended since the last export"
    matrix.add("SIGTERM, uvicorn, no shutdown() in the lifespan", BEFORE, counted, spans, loss)
    assert (status, counted, spans) == (-signal.SIGTERM, BEFORE, BEFORE)
