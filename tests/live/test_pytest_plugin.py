"""The pytest plugin, in a pytest run of its own: that is how the author of a server meets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = "from otel_lifecycle.pytest import lifecycle_requests\n"
SERVER = """
import otel_lifecycle as lifecycle

def serve(*, end="complete", illegal=False):
    request = lifecycle.request(model="m", request_id="r-1")
    request.admit()
    if illegal:
        request.resume()
    request.input_ready()
    request.token()
    if end:
        getattr(request, end)()
    return request
"""


def pytest_of(folder: Path, body: str, conftest: str = CONFTEST) -> str:
    """Run a test module and return what pytest printed."""
    (folder / "conftest.py").write_text(conftest)
    (folder / "server.py").write_text(SERVER)
    (folder / "test_it.py").write_text(f"from server import serve\n{body}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False).stdout


TESTS = """
def test_good(lifecycle_requests):
    serve(); serve()
    lifecycle_requests.assert_legal()
    lifecycle_requests.assert_completed(2)
    request = lifecycle_requests[0]
    assert (request.name, request.request_id, request.model, request.outcome) == ("chat m", "r-1", "m", "completed")
    assert request.events == ("arrive", "admit", "input_ready", "first_token", "complete")
    assert request.seconds["e2e"] > 0

def test_each_test_sees_its_own_requests(lifecycle_requests):
    assert len(lifecycle_requests) == 0
    serve()
    lifecycle_requests.assert_completed(1)

def test_threads(lifecycle_requests):
    import threading
    threading.Timer(0.2, serve).start()
    lifecycle_requests.wait_for(1)
    lifecycle_requests.assert_completed(1)

def test_spans_of_another_library(lifecycle_requests):
    from opentelemetry import trace
    with trace.get_tracer("other").start_as_current_span("chat") as span:
        for event in ("arrive", "admit", "input_ready", "first_token", "complete"):
            span.add_event(event)
    lifecycle_requests.assert_legal()
    lifecycle_requests.assert_completed(1)

def test_none(lifecycle_requests):
    lifecycle_requests.assert_legal()

def test_illegal(lifecycle_requests):
    serve(illegal=True)
    lifecycle_requests.assert_legal()

def test_cancelled(lifecycle_requests):
    serve(end="cancel")
    lifecycle_requests.assert_completed()

def test_open(lifecycle_requests):
    request = serve(end=None)
    lifecycle_requests.assert_completed()

def test_too_few(lifecycle_requests):
    serve()
    lifecycle_requests.assert_completed(2)
"""


@pytest.mark.parametrize("provider", ["none", pytest.param("configured", marks=pytest.mark.slow)])
def test_good_servers_pass_and_others_are_told_why(tmp_path: Path, provider: str) -> None:
    """Four tests pass; each of the others fails with a message that names the fault."""
    configured = (
        "import os\nos.environ.update(OTEL_TRACES_EXPORTER='none', OTEL_METRICS_EXPORTER='none')\n"
        "import otel_lifecycle\notel_lifecycle.configure()\n"
    )
    printed = pytest_of(tmp_path, TESTS, CONFTEST + (configured if provider == "configured" else ""))
    assert "5 failed, 4 passed" in printed, printed
    for part in (
        "no request was seen: the server opens none",
        "illegal_transition: 'resume' while preprocessing; legal there in shape 'default': input_ready",
        "chat m r-1: cancelled",
        "open requests: 1",
        "completed requests: 1, not 2",
    ):
        assert part in printed, part
