"""What a middleware reads may be anything: it goes on unchanged, nothing of ours raises, and no request stays open."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle._guard import guard
from otel_lifecycle.asgi import LifecycleMiddleware, Messages, Route
from otel_lifecycle.errors import ConfigurationError
from otel_lifecycle.grpc import LifecycleInterceptor
from otel_lifecycle.wsgi import LifecycleMiddleware as WsgiMiddleware
from tests.support.hostile import VALUES
from tests.support.telemetry import Telemetry

every_value = pytest.mark.parametrize("kind", VALUES)
NOTHING_MORE = object()
PATH = "/v1/chat/completions"
HEADERS = [(b"content-type", b"text/event-stream")]
Serve = Callable[[Any, Any, list[Any], list[Any]], tuple[list[Any], list[Any]]]


@pytest.fixture(autouse=True)
def _no_faults(telemetry: Telemetry) -> Iterator[None]:
    """Whatever was read, nothing was a fault of ours, and every request has ended."""
    faults = guard.faults
    yield
    active = sum(point["value"] or 0 for point in telemetry.points("inference.active_requests"))
    assert (guard.faults, active) == (faults, 0)


def scope_of(**given: Any) -> dict[str, Any]:
    """Return the scope of a request."""
    usual = {"type": "http", "method": "POST", "path": PATH, "root_path": "", "headers": [(b"host", b"h")]}
    return {**usual, "server": ("127.0.0.1", 80), "query_string": b"", **given}


def hostile_lists(value: Any) -> list[Any]:
    """Return headers with the value as the whole, as a pair, as a name and as what a name has."""
    return [
        value,
        [value],
        [(value, b"x")],
        [(b"traceparent", value)],
        [(b"content-length", value)],
        [(b"a", b"b", value)],
    ]


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    """Give a function that serves one connection; it returns what the app was given, and what the server was.

    All connections share a loop: to make one costs more than to serve a connection, and there are thousands.
    """
    loop = asyncio.new_event_loop()

    def run(app: Any, scope: Any, told: list[Any], answers: list[Any]) -> tuple[list[Any], list[Any]]:
        given: list[Any] = []
        sent: list[Any] = []

        async def inner(scope: Any, receive: Any, send: Any) -> None:
            given.extend([scope, *[await receive() for _ in told]])
            for message in answers:
                await send(message)

        waiting = iter(told)

        async def receive() -> Any:
            message = next(waiting, NOTHING_MORE)
            return await asyncio.Event().wait() if message is NOTHING_MORE else message

        async def send(message: Any) -> None:
            sent.append(message)

        loop.run_until_complete(app(inner)(scope, receive, send))
        assert not asyncio.all_tasks(loop)
        return given, sent

    yield run
    loop.close()


def same(left: list[Any], right: list[Any]) -> bool:
    """Whether both hold the same objects: those here may refuse to be compared."""
    return len(left) == len(right) and all(one is other for one, other in zip(left, right, strict=True))


def http(telemetry: Telemetry, **options: Any) -> Callable[[Any], Any]:
    """Return the middleware around an app, following one route."""
    route = Route(f"POST {PATH}", tokens=options.pop("tokens", "openai"))
    return lambda app: LifecycleMiddleware(app, routes=[route], tracer_provider=telemetry.tracer_provider, **options)


ANSWER: list[dict[str, Any]] = [
    {"type": "http.response.start", "status": 200, "headers": HEADERS},
    {"type": "http.response.body", "body": b'data: {"choices": [{"text": "a"}]}\n\n', "more_body": True},
    {"type": "http.response.body", "body": b""},
]
BODY = [{"type": "http.request", "body": b"{}", "more_body": False}]


@every_value
def test_scopes(telemetry: Telemetry, serve: Serve, kind: str) -> None:
    """Each entry of a scope, and the scope itself: the app gets the very scope."""
    value = VALUES[kind]
    app = http(telemetry, tenant_header="x-tenant")
    scopes = [value, *(scope_of(headers=headers) for headers in hostile_lists(value))]
    names = ("type", "method", "path", "root_path", "server", "query_string", "http_version", "client", "state")
    scopes += [scope_of(**{name: value}) for name in names]
    scopes += [scope_of(server=(value, 80)), scope_of(server=("h", value)), scope_of(headers=[(b"x-tenant", value)])]
    for scope in scopes:
        given, sent = serve(app, scope, BODY, ANSWER)
        assert same(given, [scope, *BODY])
        assert same(sent, ANSWER)


@every_value
@pytest.mark.parametrize(
    ("counted", "timed"),
    [
        ("openai", True),
        ("by the route", False),
        (None, True),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in [("openai", False), ("by the route", True), (None, False)]
        ),
    ],
)
def test_messages_of_http(telemetry: Telemetry, serve: Serve, kind: str, counted: str | None, timed: bool) -> None:
    """Each entry of what the server receives and the app sends, and the messages themselves."""
    value = VALUES[kind]
    tokens = (lambda frame: value) if counted == "by the route" else counted
    app = http(telemetry, tokens=tokens, server_timing=timed)
    for message in [value, *({**BODY[0], name: value} for name in ("type", "body", "more_body", "other"))]:
        given, sent = serve(app, scope_of(), [message], ANSWER)
        assert (same(given[1:], [message]), same(sent, ANSWER)) == (True, True)
    answers = [[*ANSWER[:1], value, *ANSWER[1:]]]
    for place, name in itertools.product(range(3), ("type", "status", "body", "more_body", "trailers")):
        answers.append([*ANSWER[:place], {**ANSWER[place], name: value}, *ANSWER[place + 1 :]])
    answers += [[{**ANSWER[0], "headers": headers}, *ANSWER[1:]] for headers in hostile_lists(value)]
    for answer in answers:
        _, sent = serve(app, scope_of(), BODY, answer)
        assert same(sent, answer)


@every_value
def test_messages_of_websockets(telemetry: Telemetry, serve: Serve, kind: str) -> None:
    """Messages in both directions, close codes, and what the rules of the route give."""
    value = VALUES[kind]
    text = {"type": "websocket.send", "text": "a"}
    rules: list[dict[str, Any]] = [{}, {"begins": lambda data: value}, {"ends": lambda data: value}]
    rules += [{"cancels": lambda data: value}, {"begins": lambda data: {"model": value}}]
    for rule in rules:
        route = Route("/ws", messages=Messages(**rule), tokens="openai")

        def app(inner: Any, route: Route = route) -> Any:
            return LifecycleMiddleware(inner, routes=[route], tracer_provider=telemetry.tracer_provider)

        for received in [
            value,
            *({"type": "websocket.receive", "text": "q", name: value} for name in ("type", "text")),
        ]:
            told = [{"type": "websocket.receive", "text": "q"}, received, {"type": "websocket.receive", "bytes": value}]
            answers = [text, value, {**text, "text": value}, {**text, "type": value}]
            answers += [{"type": "websocket.send", "bytes": value}, {"type": "websocket.close", "code": value}]
            scope = scope_of(type="websocket", path="/ws")
            given, sent = serve(app, scope, told, answers)
            assert (same(given, [scope, *told]), same(sent, answers)) == (True, True)


def wsgi(
    telemetry: Telemetry, environ: dict[Any, Any], status: Any, headers: Any, parts: Any, **options: Any
) -> list[Any]:
    """Serve one request by WSGI; return what the server was given: status, headers and each part."""
    started: list[Any] = []

    def app(environ: Any, start_response: Any) -> Any:
        write = start_response(status, headers)
        write(b"")
        return parts

    def start_response(*arguments: Any) -> Callable[[Any], None]:
        started.extend(arguments)
        return started.append

    route = Route(f"POST {PATH}", tokens=options.pop("tokens", "openai"))
    middleware = WsgiMiddleware(app, routes=[route], tracer_provider=telemetry.tracer_provider, **options)
    body = middleware(environ, start_response)
    out = [*started, *body]
    with contextlib.suppress(AttributeError):
        body.close()  # type: ignore[attr-defined]  # a body that passed untouched has none
    return out


@pytest.mark.long
@every_value
def test_wsgi(telemetry: Telemetry, kind: str) -> None:
    """The environ, the status, the headers and the parts of the body."""
    value = VALUES[kind]
    usual = {"REQUEST_METHOD": "POST", "PATH_INFO": PATH, "SERVER_NAME": "h", "SERVER_PORT": "80"}
    names = [*usual, "HTTP_TRACEPARENT", "HTTP_X_TENANT", "CONTENT_LENGTH", "wsgi.file_wrapper", "wsgi.input", 5]
    plain = [("Content-Type", "text/event-stream")]
    for tokens in ("openai", lambda frame: value, None):
        for name in names:
            environ: dict[Any, Any] = {**usual, name: value}
            out = wsgi(telemetry, environ, "200 OK", plain, [b"a", b"b"], tokens=tokens, tenant_header="x-tenant")
            assert same(out[3:], [b"a", b"b"])
        for headers in hostile_lists(value):
            for timed in (False, True):
                out = wsgi(telemetry, dict(usual), "200 OK", headers, [b"a"], tokens=tokens, server_timing=timed)
                assert out[1] is headers
        assert wsgi(telemetry, dict(usual), value, plain, [b"a"], tokens=tokens)[0] is value
        assert same(wsgi(telemetry, dict(usual), "200 OK", plain, [value, b"a"], tokens=tokens)[3:], [value, b"a"])


class Call:
    """The context of a call of gRPC, which gives one value wherever it is asked."""

    def __init__(self, **given: Any) -> None:
        for name, value in given.items():
            setattr(self, name, value)

    def add_callback(self, callback: Any) -> bool:
        """Take the callback and never call it."""
        return True


class Details:
    """What gRPC says of a call before it is handled."""

    def __init__(self, method: Any) -> None:
        self.method = method


@pytest.mark.long
@every_value
def test_grpc(telemetry: Telemetry, kind: str) -> None:
    """The method, what the context gives, the response, and what a counter gives of it."""
    import grpc

    value = VALUES[kind]
    unary: Any = grpc.unary_unary_rpc_method_handler(lambda request, context: value)
    stream: Any = grpc.unary_stream_rpc_method_handler(lambda request, context: iter([value]))
    answers = (value, lambda: value, lambda: [value], lambda: [(value, "x")], lambda: [("traceparent", value)])
    for tokens in (None, lambda response: value):
        interceptor = LifecycleInterceptor(
            methods=["/tiny.Llm/*"], tokens=tokens, tracer_provider=telemetry.tracer_provider
        )
        assert interceptor.intercept_service(lambda details: unary, Details(value)) is unary
        details = Details("/tiny.Llm/Generate")
        one = interceptor.intercept_service(lambda details: unary, details)
        many = interceptor.intercept_service(lambda details: stream, details)
        for name, given in itertools.product(("invocation_metadata", "time_remaining", "code"), answers):
            context = Call(**{name: given})
            assert one.unary_unary(value, context) is value
            assert same(list(many.unary_stream(value, context)), [value])


@every_value
def test_serving(telemetry: Telemetry, kind: str) -> None:
    """Headers of any kind, and every other argument: the block runs."""
    value = VALUES[kind]
    ran = 0
    for headers in (*hostile_lists(value), {"traceparent": value}, {value.__class__ if kind == "bytes" else 5: value}):
        with lifecycle.serving(headers, tracer_provider=telemetry.tracer_provider):
            ran += 1
    for name in ("deadline", "arrived_at_ns", "previous", "model", "request_id", "server_address", "server_port"):
        with lifecycle.serving(**{name: value}, tracer_provider=telemetry.tracer_provider):
            ran += 1
    assert ran == 15


@pytest.mark.parametrize("kind", [kind for kind in VALUES if "raising" not in kind])
def test_arguments_at_set_up(telemetry: Telemetry, kind: str) -> None:
    """What cannot be is refused by a ConfigurationError, and by nothing else."""
    value = VALUES[kind]
    refused = 0
    for name in ("app", "routes", "tokens", "shape", "tenant_header", "model", "deadline", "role", "server_port"):
        for make in (LifecycleMiddleware, WsgiMiddleware):
            given: dict[str, Any] = {"app": print, "routes": ["/x"], name: value}
            try:
                make(**given)
            except ConfigurationError:
                refused += 1
    for name in ("methods", "tokens", "shape", "model"):
        grpc_given: dict[str, Any] = {"methods": ["/a.B/C"], name: value}
        try:
            LifecycleInterceptor(**grpc_given)
        except ConfigurationError:
            refused += 1
    # No value is right everywhere.
    assert refused > 4
