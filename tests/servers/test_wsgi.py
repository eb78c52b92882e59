"""WSGI servers with a real client: Flask on waitress and on gunicorn, and what a server tells of a client that left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import flask
import httpx
import pytest
import waitress.server
import waitress.wasyncore
import werkzeug.exceptions
import werkzeug.serving

import otel_lifecycle as lifecycle
from otel_lifecycle.errors import ConfigurationError
from otel_lifecycle.wsgi import LifecycleMiddleware, Route
from tests.integration.support_http import PARENT_ID, TRACE_ID, TRACEPARENT, leave_after
from tests.servers.support import (
    COMPLETED,
    DEADLINE,
    FAILED,
    LEFT,
    check,
    ending_of,
    engine,
    refused,
    request_spans,
    the_span,
)
from tests.support.telemetry import Telemetry

HEAD = f"POST %s HTTP/1.1\r\nhost: localhost\r\ntraceparent: {TRACEPARENT}\r\n"


# These tests are about requests that break, which the development server would log at length.
QUIET: Any = type("QuietHandler", (werkzeug.serving.WSGIRequestHandler,), {"log": lambda *_: None})


def flask_app() -> Any:
    """An app that streams and answers."""
    app: Any = flask.Flask(__name__)

    def tokens(kind: str) -> Iterator[str]:
        current = lifecycle.current()
        with current.stage("queue"):
            pass
        with current.stage("preprocessing"):
            pass
        yield from current.stream(engine(kind))

    def stream(kind: str) -> Any:
        return flask.Response(tokens(kind), mimetype="text/plain")

    def whole(kind: str) -> str:
        if kind == "busy":
            raise werkzeug.exceptions.TooManyRequests
        if kind == "slow":
            lifecycle.current().set(deadline=0.01)
            threading.Event().wait(0.02)
            # Not a TimeoutError: the development server takes that for a connection that dropped.
            raise httpx.ReadTimeout("of the engine")
        return "".join(tokens(kind))

    app.add_url_rule("/stream/<kind>", view_func=stream, methods=["POST"])
    app.add_url_rule("/whole/<kind>", view_func=whole, methods=["POST"])
    return app


@contextmanager
def waiting(app: Callable[..., Any]) -> Iterator[int]:
    """Serve on waitress; gives the port."""
    sockets: dict[Any, Any] = {}
    stop = threading.Event()
    server: Any = waitress.server.create_server(app, host="127.0.0.1", port=0, threads=4, map=sockets)

    def run() -> None:
        while not stop.is_set():
            waitress.wasyncore.loop(timeout=0.02, count=1, map=sockets)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield server.effective_port
    finally:
        stop.set()
        thread.join(10)
        server.task_dispatcher.shutdown()
        waitress.wasyncore.close_all(sockets, ignore_all=True)


@contextmanager
def developing(app: Callable[..., Any]) -> Iterator[int]:
    """Serve on the development server, which writes each part as it comes."""
    server: Any = werkzeug.serving.make_server("127.0.0.1", 0, app, threaded=True, request_handler=QUIET)
    # Closing waits for the threads then, and no socket of theirs stays behind.
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


@pytest.fixture(params=[waiting, developing])
def port(request: pytest.FixtureRequest, telemetry: Telemetry) -> Iterator[int]:
    """The port of an instrumented Flask, on each server."""
    app = flask_app()
    # PROPAGATE_EXCEPTIONS lets an exception of the handler through, as production servers log it.
    app.config["PROPAGATE_EXCEPTIONS"] = True
    app.wsgi_app = LifecycleMiddleware(
        app.wsgi_app, routes=["/stream/{kind}", "/whole/{kind}"], tracer_provider=telemetry.tracer_provider
    )
    with request.param(app) as number:
        yield number


def post(port: int, path: str) -> httpx.Response:
    """POST as a caller with a trace."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False) as client:
        return client.post(path, headers={"traceparent": TRACEPARENT})


def test_a_stream(port: int, telemetry: Telemetry) -> None:
    """Stages, tokens, parent and the first byte."""
    assert post(port, "/stream/good").text == "t0 t1 t2 "
    span = check(telemetry, COMPLETED, tokens=3)
    assert [event["name"] for event in span["events"]] == [
        "arrive",
        "admit",
        "input_ready",
        "first_token",
        "delivered",
        "complete",
    ]


def test_one_answer(port: int, telemetry: Telemetry) -> None:
    """A body in one piece."""
    assert post(port, "/whole/good").text == "t0 t1 t2 "
    check(telemetry, COMPLETED, tokens=3)


def test_a_client_that_leaves_a_stream(port: int, telemetry: Telemetry) -> None:
    """The server closes the body: cancelled."""
    leave_after(port, "/stream/endless", b"t", 3, b"", HEAD % "/stream/endless")
    span = check(telemetry, LEFT)
    assert span["attributes"]["inference.client.disconnected"] is True
    assert span["attributes"]["inference.failure.stage"] == "decode"


@pytest.mark.parametrize(("path", "tokens"), [("/whole/broken", 0), ("/stream/broken", 0), ("/stream/cut", 2)])
def test_an_error_of_the_engine(port: int, telemetry: Telemetry, path: str, tokens: int) -> None:
    """Before the first byte or after it."""
    try:
        post(port, path)
    except httpx.HTTPError:
        assert tokens
    check(telemetry, FAILED, tokens=tokens)


def test_a_deadline(port: int, telemetry: Telemetry) -> None:
    """A handler that runs out of time."""
    post(port, "/whole/slow")
    check(telemetry, DEADLINE)


def test_c117_a_refusal(port: int, telemetry: Telemetry) -> None:
    """Werkzeug's exception becomes a response, whose status is the end."""
    assert post(port, "/whole/busy").status_code == 429
    check(telemetry, refused("rate_limited"))


def environ(path: str = "/x", more: dict[str, Any] | None = None) -> dict[str, Any]:
    """The environ of a request as a server has it."""
    return {"REQUEST_METHOD": "POST", "PATH_INFO": path, "HTTP_TRACEPARENT": TRACEPARENT, **(more or {})}


class Started:
    """A server's ``start_response``: what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.written: list[bytes] = []

    def __call__(self, *arguments: Any) -> Callable[[bytes], Any]:  # noqa: D102  # a server's own
        self.calls.append(arguments)
        return self.written.append


def serve(telemetry: Telemetry, app: Any, **options: Any) -> LifecycleMiddleware:
    """Wrap an app for /x."""
    return LifecycleMiddleware(app, routes=["/x"], tracer_provider=telemetry.tracer_provider, **options)


def test_a_body_keeps_its_length(telemetry: Telemetry) -> None:
    """Servers take the length of a body of one part for the response's."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"whole"]

    body: Any = serve(telemetry, app)(environ(), Started())
    assert (len(body), list(body)) == (1, [b"whole"])
    body.close()
    check(telemetry, COMPLETED)


def test_a_closed_body_that_was_sent_whole_is_complete(telemetry: Telemetry) -> None:
    """A server may stop at the announced length, without asking for the end."""

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Length", "4")])
        yield b"four"

    body: Any = serve(telemetry, app)(environ(), Started())
    assert next(body) == b"four"
    body.close()
    check(telemetry, COMPLETED)


def test_what_is_written_by_hand_counts(telemetry: Telemetry) -> None:
    """The old ``write()`` of PEP 3333."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        write = start_response("200 OK", [("Content-Type", "text/plain")])
        write(b"by hand")
        return []

    started = Started()
    body: Any = serve(telemetry, app, tokens=lambda part: 2)(environ(), started)
    assert (list(body), started.written) == ([], [b"by hand"])
    check(telemetry, COMPLETED, tokens=2)


def test_a_file_goes_to_the_server_as_it_is(telemetry: Telemetry) -> None:
    """The server recognises it by its class and sends it by itself."""

    class FileWrapper:
        """As a server has it."""

    made = FileWrapper()

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return made

    body: Any = serve(telemetry, app)(environ("/x", {"wsgi.file_wrapper": FileWrapper}), Started())
    assert body is made
    check(telemetry, COMPLETED)


def test_arguments_reach_the_server_as_they_were(telemetry: Telemetry) -> None:
    """``exc_info`` only if the app gave it; the header list is the app's."""
    failure = (ValueError, ValueError(), None)

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("a", "b")])
        start_response("500 Broken", [("c", "d")], failure)
        return [b""]

    started = Started()
    list(serve(telemetry, app)(environ(), started))
    assert started.calls == [("200 OK", [("a", "b")]), ("500 Broken", [("c", "d")], failure)]
    assert ending_of(the_span(telemetry)) == {"inference.outcome": "failed", "error.type": "500"}


def test_the_stages_in_a_header(telemetry: Telemetry) -> None:
    """Those that are over when the response starts."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        current = lifecycle.current()
        current.admit()
        current.input_ready()
        start_response("200 OK", [])
        return [b"yes"]

    started = Started()
    list(serve(telemetry, app, server_timing=True)(environ(), started))
    ((name, value),) = started.calls[0][1]
    assert (name, [part.partition(";dur=")[0] for part in value.split(", ")]) == (
        "Server-Timing",
        ["queue", "preprocessing"],
    )


@pytest.mark.parametrize("hostile", ["200", b"200 OK", 200, None, "no status", object()])
def test_a_status_that_makes_no_sense_reaches_the_server(telemetry: Telemetry, hostile: Any) -> None:
    """It is the server's to refuse; nothing of ours raises."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response(hostile, [])
        return [b"yes"]

    started = Started()
    assert list(serve(telemetry, app, tokens="openai")(environ(), started)) == [b"yes"]
    assert started.calls == [(hostile, [])]
    assert len(request_spans(telemetry)) == 1


def test_other_routes_pass_untouched(telemetry: Telemetry) -> None:
    """Nothing stands between the server and the app."""
    body = [b"whole"]

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return body

    assert serve(telemetry, app)(environ("/y"), Started()) is body
    assert request_spans(telemetry) == []


def test_a_nested_middleware_skips_the_request(telemetry: Telemetry) -> None:
    """One request, one span."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"yes"]

    assert list(serve(telemetry, serve(telemetry, app))(environ(), Started())) == [b"yes"]
    assert len(request_spans(telemetry)) == 1


def test_c119_with_flask_instrumentation(telemetry: Telemetry) -> None:
    """C119: Flask's span lies inside the request; the generator that runs after it has ended finds the request."""
    from opentelemetry.instrumentation import flask as instrumentation

    instrumentor: Any = instrumentation.FlaskInstrumentor
    app = flask_app()
    app.wsgi_app = LifecycleMiddleware(
        app.wsgi_app, routes=["/stream/{kind}"], tracer_provider=telemetry.tracer_provider
    )
    instrumentor.instrument_app(app, tracer_provider=telemetry.tracer_provider)
    try:
        with waiting(app) as port:
            assert post(port, "/stream/good").text == "t0 t1 t2 "
            span = the_span(telemetry)
    finally:
        instrumentor.uninstrument_app(app)
    server = next(one for one in telemetry.spans() if one["name"].startswith("POST"))
    assert (span["trace_id"], span["parent_id"], ending_of(span)) == (TRACE_ID, PARENT_ID, COMPLETED)
    assert (server["parent_id"], span["attributes"]["inference.streamed_tokens"]) == (span["span_id"], 3)


@pytest.mark.parametrize(
    "options", [{"routes": "/x"}, {"routes": ["x"]}, {"tokens": 7}, {"tenant_header": "a b"}, {"request_id": "one"}]
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    """At set-up."""
    not_an_app: Any = 7
    with pytest.raises(ConfigurationError):
        LifecycleMiddleware(flask_app(), **options)
    with pytest.raises(ConfigurationError):
        LifecycleMiddleware(not_an_app)


def test_a_route_with_conditions(telemetry: Telemetry) -> None:
    """Conditions of the route, and a tenant from a header."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"yes"]

    route = Route("POST /x", model="tiny")
    middleware = LifecycleMiddleware(app, routes=[route], tracer_provider=telemetry.tracer_provider)
    list(middleware(environ(), Started()))
    assert the_span(telemetry)["attributes"]["gen_ai.request.model"] == "tiny"
