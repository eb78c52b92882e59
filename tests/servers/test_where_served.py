"""C111: where a request was received is on its span, and the token counts of its span have a switch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from otel_lifecycle import semconv
from otel_lifecycle.asgi import LifecycleMiddleware
from otel_lifecycle.wsgi import LifecycleMiddleware as WsgiMiddleware
from tests.integration.support_http import serving
from tests.support.telemetry import Telemetry

PATH = "/generate"


def place_of(telemetry: Telemetry) -> tuple[Any, Any]:
    """Return the address and the port on the request span, None for what it lacks."""
    attributes = telemetry.span("chat")["attributes"]
    return attributes.get("server.address"), attributes.get("server.port")


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer at once."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


@pytest.mark.parametrize(
    ("server", "conditions", "place"),
    [
        (("10.0.0.7", 8000), {}, ("10.0.0.7", 8000)),
        (("/run/llm.sock", None), {}, ("/run/llm.sock", None)),
        (None, {}, (None, None)),
        (("10.0.0.7", 8000), {"server_address": "llm.example", "server_port": 443}, ("llm.example", 443)),
        (("10.0.0.7", 70000), {}, ("10.0.0.7", None)),
    ],
)
def test_c111_asgi_says_where_it_was_received(
    telemetry: Telemetry, server: Any, conditions: dict[str, Any], place: tuple[Any, Any]
) -> None:
    """From the scope, a Unix socket by its path; what the server's author gives wins."""
    app = LifecycleMiddleware(answer, routes=[PATH], tracer_provider=telemetry.tracer_provider, **conditions)

    async def never() -> Any:
        await asyncio.Event().wait()

    async def sent(message: Any) -> None:
        return None

    scope = {"type": "http", "method": "POST", "path": PATH, "headers": [], "server": server}
    asyncio.run(app(scope, never, sent))
    assert place_of(telemetry) == place


def test_c111_a_real_server_says_where(telemetry: Telemetry) -> None:
    """Uvicorn: the address it listens at."""
    import httpx

    app = LifecycleMiddleware(answer, routes=[PATH], tracer_provider=telemetry.tracer_provider)
    with serving(app) as server:
        assert httpx.post(server.base + PATH, trust_env=False).status_code == 200
    assert place_of(telemetry) == ("127.0.0.1", server.port)


def test_c111_wsgi_says_where(telemetry: Telemetry) -> None:
    """SERVER_NAME and SERVER_PORT, which PEP 3333 requires."""

    def app(environ: Any, start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [])
        return [b"{}"]

    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": PATH, "SERVER_NAME": "llm.example", "SERVER_PORT": "8443"}
    middleware = WsgiMiddleware(app, routes=[PATH], tracer_provider=telemetry.tracer_provider)
    assert list(middleware(environ, lambda *_: lambda data: None)) == [b"{}"]
    assert place_of(telemetry) == ("llm.example", 8443)


@pytest.mark.parametrize("port", [0, 65536, "80", True])
def test_c111_a_port_that_cannot_be_is_a_violation(telemetry: Telemetry, port: Any) -> None:
    """The address stays."""
    telemetry.request(server_address="llm.example", server_port=port).cancel()
    attributes = telemetry.span("chat")["attributes"]
    assert (place_of(telemetry), attributes["inference.violations"]) == (("llm.example", None), 1)


USAGE = (
    semconv.GEN_AI_USAGE_INPUT_TOKENS,
    semconv.GEN_AI_USAGE_OUTPUT_TOKENS,
    semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS,
)


@pytest.mark.parametrize("wanted", [True, False])
def test_c111_token_counts_of_spans_have_a_switch(make_telemetry: Callable[..., Telemetry], wanted: bool) -> None:
    """On by default; off, a sum over spans counts the client's only. What was streamed, and the metrics, stay."""
    telemetry = make_telemetry() if wanted else make_telemetry(gen_ai_usage=False)
    request = telemetry.request(input_tokens=7, cached_tokens=3)
    request.token(2)
    request.complete()
    attributes = telemetry.span("chat")["attributes"]
    assert [attributes.get(name) for name in USAGE] == ([7, 2, 3] if wanted else [None] * 3)
    assert attributes["inference.streamed_tokens"] == 2
    counted = {
        point["attributes"]["inference.token.direction"]: point["value"]
        for point in telemetry.points("inference.tokens")
    }
    assert (counted["input"], counted["output"]) == (7, 2)


def test_c111_token_counts_of_foreign_spans_have_the_switch(make_telemetry: Callable[..., Telemetry]) -> None:
    """What the other library wrote stays as it is; nothing is added."""
    telemetry = make_telemetry(wrap=True, gen_ai_usage=False)
    span = telemetry.tracer().start_span("generate", start_time=1_700_000_000_000_000_000)
    for place, event in enumerate(("arrive", "admit", "input_ready", "first_token", "complete")):
        span.add_event(event, timestamp=1_700_000_000_000_000_000 + place)
    span.end(1_700_000_000_000_000_004)
    attributes = telemetry.span("generate")["attributes"]
    assert (attributes["inference.outcome"], USAGE[1] in attributes) == ("completed", False)
