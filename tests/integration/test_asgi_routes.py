"""Which requests the middleware follows, and what it refuses to be set up with."""

from __future__ import annotations

import re
from typing import Any

import pytest

from otel_lifecycle import traced
from otel_lifecycle.asgi import OPENAI_ROUTES, LifecycleMiddleware, Route
from otel_lifecycle.errors import ConfigurationError
from tests.support.telemetry import Telemetry


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """An app that answers everything."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"yes"})


async def call(app: Any, path: str, method: str = "POST", **scope: Any) -> list[dict[str, Any]]:
    """Send one request straight into an app; returns what it sent."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app({"type": "http", "method": method, "path": path, "headers": [], **scope}, receive, send)
    return sent


def run(coroutine: Any) -> Any:
    """Run a coroutine in a loop of its own."""
    import asyncio

    return asyncio.run(coroutine)


MATCHES = [
    ("/generate", "POST", "/generate", True),
    ("/generate", "GET", "/generate", True),
    ("/generate", "HEAD", "/generate", False),
    ("/generate", "OPTIONS", "/generate", False),
    ("/generate", "POST", "/generate/", False),
    ("/generate", "POST", "/generate/more", False),
    ("/generate", "POST", "/v1/generate", False),
    ("POST /generate", "POST", "/generate", True),
    ("post /generate", "POST", "/generate", True),
    ("POST /generate", "GET", "/generate", False),
    ("OPTIONS /generate", "OPTIONS", "/generate", True),
    ("/v1/*", "POST", "/v1/chat/completions", True),
    ("/v1/*", "POST", "/v1/", False),
    ("/v1/*", "POST", "/v1", False),
    ("/v1/*", "POST", "/v10/chat", False),
    ("/models/{name}/infer", "POST", "/models/tiny/infer", True),
    ("/models/{name}/infer", "POST", "/models/a/b/infer", False),
    ("/models/{name}/infer", "POST", "/models//infer", False),
    ("/a.b", "POST", "/axb", False),
    ("/", "POST", "/", True),
    ("/", "POST", "/x", False),
    (re.compile(r"/v\d+/chat"), "POST", "/v2/chat", True),
    (re.compile(r"/v\d+/chat"), "POST", "/v2/chat/more", False),
    (Route("/x", methods=["put", "PATCH"]), "PUT", "/x", True),
    (Route("/x", methods=["put", "PATCH"]), "POST", "/x", False),
]


@pytest.mark.parametrize(("route", "method", "path", "matches"), MATCHES)
def test_route_matches(telemetry: Telemetry, route: Any, method: str, path: str, matches: bool) -> None:
    """A path is exact, takes braces for a segment and /* at its end; a pattern has to match all of it."""
    app = LifecycleMiddleware(answer, routes=[route], tracer_provider=telemetry.tracer_provider)
    run(call(app, path, method))
    assert len(telemetry.spans("chat")) == matches


def test_no_route_is_matched_by_default(telemetry: Telemetry) -> None:
    """Without routes everything passes untouched, down to the very objects."""
    seen: list[Any] = []

    async def app(*arguments: Any) -> None:
        seen.extend(arguments)

    arguments: list[Any] = [{"type": "http", "path": "/", "method": "POST"}, object(), object()]
    run(LifecycleMiddleware(app, tracer_provider=telemetry.tracer_provider)(*arguments))
    assert all(one is other for one, other in zip(seen, arguments, strict=True))
    assert telemetry.spans() == []


@pytest.mark.parametrize("kind", ["websocket", "lifespan", "something.new"])
def test_other_connections_pass_untouched(telemetry: Telemetry, kind: str) -> None:
    """Only HTTP is followed, whatever the path."""
    seen: list[Any] = []

    async def app(*arguments: Any) -> None:
        seen.extend(arguments)

    middleware = LifecycleMiddleware(app, routes=[re.compile(".*")], tracer_provider=telemetry.tracer_provider)
    arguments: list[Any] = [{"type": kind, "path": "/"}, object(), object()]
    run(middleware(*arguments))
    # Of a lifespan, what the app says passes through our hands: the end of the app flushes.
    same = [one is other for one, other in zip(seen, arguments, strict=True)]
    assert same == [True, True, kind != "lifespan"]
    assert arguments[0] == {"type": kind, "path": "/"}
    assert telemetry.spans() == []


@pytest.mark.parametrize(
    ("path", "root_path"), [("/api/generate", "/api"), ("/api/generate", "/api/"), ("/generate", "/api")]
)
def test_path_is_the_one_below_the_root_path(telemetry: Telemetry, path: str, root_path: str) -> None:
    """A proxy's prefix, in the path or not, is not part of the route."""
    app = LifecycleMiddleware(answer, routes=["/generate"], tracer_provider=telemetry.tracer_provider)
    run(call(app, path, root_path=root_path))
    assert len(telemetry.spans("chat")) == 1


def test_root_path_is_a_whole_segment(telemetry: Telemetry) -> None:
    """A path that only begins with the same letters keeps them."""
    app = LifecycleMiddleware(answer, routes=["/apigenerate"], tracer_provider=telemetry.tracer_provider)
    run(call(app, "/apigenerate", root_path="/api"))
    assert len(telemetry.spans("chat")) == 1


def test_conditions_of_a_route_beat_those_of_all(telemetry: Telemetry) -> None:
    """The first route that matches says what is known; what it does not say the middleware does."""
    app = LifecycleMiddleware(
        answer,
        routes=[Route("/embed", operation="embeddings", shape="pooling"), "/*"],
        provider="openai",
        model="tiny",
        tracer_provider=telemetry.tracer_provider,
    )
    run(call(app, "/embed"))
    run(call(app, "/chat"))
    names = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "inference.outcome")
    assert [[span["attributes"][name] for name in names] for span in telemetry.spans()] == [
        ["embeddings", "openai", "tiny", "completed"],
        ["chat", "openai", "tiny", "completed"],
    ]


def test_openai_routes() -> None:
    """The ready routes are those of an OpenAI-compatible server."""
    assert [(repr(route), route.conditions, route.shape) for route in OPENAI_ROUTES] == [
        ("<Route POST /v1/chat/completions>", {"operation": "chat"}, None),
        ("<Route POST /v1/completions>", {"operation": "text_completion"}, None),
        ("<Route POST /v1/embeddings>", {"operation": "embeddings"}, "pooling"),
    ]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"routes": "/generate"}, "routes is"),
    ({"routes": re.compile("/")}, "routes is"),
    ({"routes": Route("/")}, "routes is"),
    ({"routes": {"/generate": {}}}, "routes is"),
    ({"routes": 3}, "routes is"),
    ({"routes": None}, "routes is"),
    ({"routes": [3]}, "is a int"),
    ({"routes": [None]}, "is a NoneType"),
    ({"routes": [re.compile(b"/")]}, "pattern of bytes"),
    ({"routes": [""]}, "not a path"),
    ({"routes": ["generate"]}, "not a path"),
    ({"routes": ["*"]}, "not a path"),
    ({"routes": ["/a*b"]}, "not a path"),
    ({"routes": ["/a/*/b"]}, "not a path"),
    ({"routes": ["/a?b=c"]}, "not a path"),
    ({"routes": ["/a#b"]}, "not a path"),
    ({"routes": ["/{}"]}, "not a path"),
    ({"routes": ["/a{b}"]}, "not a path"),
    ({"routes": ["http://localhost/a"]}, "not a path"),
    ({"routes": ["FETCH /a"]}, "no method 'FETCH'"),
    ({"routes": ["POST GET /a"]}, "not a path"),
    ({"routes": ["/a"], "tokens": "anthropic"}, "tokens is"),
    ({"routes": ["/a"], "tokens": 3}, "tokens is"),
    ({"routes": ["/a"], "shape": "round"}, "no shape"),
    ({"routes": ["/a"], "model": 3}, "model is"),
    ({"routes": ["/a"], "deadline": -1}, "deadline is"),
    ({"routes": ["/a"], "role": "both"}, "no role"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_nonsense_is_refused_at_set_up(arguments: dict[str, Any], message: str) -> None:
    """What can match nothing, or nothing meant, raises where it is written."""
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        LifecycleMiddleware(answer, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": "POST /a", "methods": ["GET"]}, "names a method"),
        ({"path": "/a", "methods": []}, "no method"),
        ({"path": "/a", "methods": "POST"}, "methods is"),
        ({"path": "/a", "methods": ["FETCH"]}, "no method 'FETCH'"),
        ({"path": "/a", "shape": "round"}, "no shape"),
        ({"path": "/a", "tokens": b"openai"}, "tokens is"),
        ({"path": "/a", "operation": ""}, "operation is"),
        ({"path": "/a", "colour": "red"}, "no condition"),
        ({"path": "/a", "request_id": "one"}, "differs from request to request"),
    ],
)
def test_nonsense_in_a_route_is_refused(arguments: dict[str, Any], message: str) -> None:
    """A Route checks itself, before any middleware has it."""
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        Route(**arguments)


def test_app_must_be_callable() -> None:
    """The arguments cannot be mixed up."""
    with pytest.raises(ConfigurationError, match="app is"):
        LifecycleMiddleware(["/generate"], routes=[])  # type: ignore[arg-type]  # what is refused


def test_inner_middleware_leaves_the_request_to_the_outer(telemetry: Telemetry) -> None:
    """Two of them around one app follow one request, once."""
    inner = LifecycleMiddleware(answer, routes=["/a"], tracer_provider=telemetry.tracer_provider)
    run(call(LifecycleMiddleware(inner, routes=["/a"], tracer_provider=telemetry.tracer_provider), "/a"))
    events = [event["name"] for event in telemetry.span("chat")["events"]]
    assert events == ["arrive", "output", "delivered", "complete"]


def test_current_request_is_joined_and_its_end_left_to_its_owner(telemetry: Telemetry) -> None:
    """Inside a request somebody else opened there is no second one; what is seen is noted on it."""
    app = LifecycleMiddleware(answer, routes=["/a"], tracer_provider=telemetry.tracer_provider)

    @traced(operation="outer", tracer_provider=telemetry.tracer_provider)
    async def owner() -> str:
        await call(app, "/a")
        assert telemetry.spans() == []
        return "done"

    run(owner())
    events = [event["name"] for event in telemetry.span("outer")["events"]]
    assert events == ["arrive", "delivered", "output", "complete"]


def test_without_an_sdk_the_app_runs_as_it_is() -> None:
    """No processor and no recording span: nothing is wrapped."""
    from opentelemetry.trace import NoOpTracerProvider

    app = LifecycleMiddleware(answer, routes=["/a"], tracer_provider=NoOpTracerProvider())
    assert [message["type"] for message in run(call(app, "/a"))] == ["http.response.start", "http.response.body"]
