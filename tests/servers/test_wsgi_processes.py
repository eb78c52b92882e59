"""Django and Flask on gunicorn and waitress as processes of their own, each with real clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.support_http import PARENT_ID, TRACE_ID, TRACEPARENT, leave_after, wait_for

ROOT = Path(__file__).resolve().parents[2]
COMMON = """
import otel_lifecycle as lifecycle
from otel_lifecycle.wsgi import LifecycleMiddleware
from tests.servers.support import engine

lifecycle.configure(service_name="tiny-llm")


def tokens(kind):
    request = lifecycle.current()
    with request.stage("queue"):
        pass
    with request.stage("preprocessing"):
        pass
    yield from request.stream(engine(kind))


def late():
    lifecycle.current().set(deadline=0.01)
    with lifecycle.current().stage("queue"):
        import time
        time.sleep(0.02)
        raise TimeoutError
"""
DJANGO = """
from django.conf import settings

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="tests", MIDDLEWARE=[], LOGGING_CONFIG=None)

from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import path


def stream(http, kind):
    return StreamingHttpResponse(tokens(kind), content_type="text/plain")


def whole(http, kind):
    return late() if kind == "slow" else HttpResponse("".join(tokens(kind)))


urlpatterns = [path("stream/<kind>", stream), path("whole/<kind>", whole)]
application = LifecycleMiddleware(get_wsgi_application(), routes=["/stream/{kind}", "/whole/{kind}"])
"""
FLASK = """
import flask

application = flask.Flask(__name__)


@application.post("/stream/<kind>")
def stream(kind):
    return flask.Response(tokens(kind), mimetype="text/plain")


@application.post("/whole/<kind>")
def whole(kind):
    return late() if kind == "slow" else "".join(tokens(kind))


application.wsgi_app = LifecycleMiddleware(application.wsgi_app, routes=["/stream/{kind}", "/whole/{kind}"])
"""
SERVERS: dict[str, Callable[[int], list[str]]] = {
    "gunicorn": lambda port: ["-m", "gunicorn", "-w1", "--threads=2", f"-b127.0.0.1:{port}", "page:application"],
    "waitress": lambda port: ["-m", "waitress", f"--listen=127.0.0.1:{port}", "page:application"],
}


def free_port() -> int:
    """Return a port that nobody listens on."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


@contextmanager
def served(folder: Path, source: str, server: str) -> Iterator[int]:
    """Serve an app; gives the port once it answers, and ends the server in order."""
    port = free_port()
    (folder / "page.py").write_text(COMMON + source, encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), *filter(None, sys.path)]),
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LIFECYCLE_FILE": str(folder / "run-{pid}.jsonl"),
    }
    command = [sys.executable, *SERVERS[server](port)]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        wait_for(lambda: answers(port), 60)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def answers(port: int) -> bool:
    """Whether the server is up."""
    try:
        httpx.get(f"http://127.0.0.1:{port}/", timeout=5, trust_env=False)
    except httpx.HTTPError:
        time.sleep(0.1)
        return False
    return True


def post(port: int, path: str) -> str:
    """POST as a caller with a trace; the answer, or what broke it."""
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False) as client:
            response = client.post(path, headers={"traceparent": TRACEPARENT})
    except httpx.HTTPError as error:
        return type(error).__name__
    return response.text if response.status_code == 200 else str(response.status_code)


def requests_in(folder: Path) -> list[dict[str, Any]]:
    """The request spans that the server wrote, in the order they began; attributes as plain values."""
    found = []
    for path in folder.glob("run-*.jsonl*"):
        for line in path.read_text(encoding="utf-8").splitlines():
            for resource in json.loads(line).get("resourceSpans", ()):
                spans = [span for scope in resource["scopeSpans"] for span in scope["spans"]]
                for span in spans:
                    plain = {item["key"]: next(iter(item["value"].values())) for item in span.get("attributes", ())}
                    found.append({**span, "attributes": plain})
    requests = [span for span in found if "inference.outcome" in span["attributes"]]
    return sorted(requests, key=lambda span: int(span["startTimeUnixNano"]))


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("source", "server"),
    [(DJANGO, "gunicorn"), (DJANGO, "waitress"), (FLASK, "gunicorn")],
    ids=["django-gunicorn", "django-waitress", "flask-gunicorn"],
)
def test_every_end(tmp_path: Path, source: str, server: str) -> None:
    """Completed as a stream and whole, failed before and after the first byte, deadline, client gone; the caller."""
    if source is DJANGO:
        # Django refuses a POST without its token only where its middleware is installed; here none is.
        pytest.importorskip("django")
    with served(tmp_path, source, server) as port:
        assert [post(port, f"/{path}/good") for path in ("stream", "whole")] == ["t0 t1 t2 "] * 2
        for path in ("/whole/broken", "/stream/cut", "/whole/slow"):
            post(port, path)
        head = f"POST /stream/endless HTTP/1.1\r\nhost: localhost\r\ntraceparent: {TRACEPARENT}\r\n"
        leave_after(port, "/stream/endless", b"t", 3, b"", head)
        time.sleep(1)
    spans = requests_in(tmp_path)
    names = ("inference.outcome", "inference.end.reason", "error.type")
    assert [tuple(span["attributes"].get(name) for name in names) for span in spans] == [
        ("completed", None, None),
        ("completed", None, None),
        ("failed", None, "tests.servers.support.EngineError"),
        ("failed", None, "tests.servers.support.EngineError"),
        ("timed_out", "deadline", "timeout"),
        ("cancelled", "client_disconnected", None),
    ]
    assert [int(span["attributes"].get("inference.streamed_tokens", 0)) for span in spans[:4]] == [3, 3, 0, 2]
    assert {(span["traceId"], span["parentSpanId"]) for span in spans} == {(TRACE_ID, PARENT_ID)}
