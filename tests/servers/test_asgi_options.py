"""Options of the ASGI middleware, hostile messages, and the picture under another instrumentation."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

import otel_lifecycle as lifecycle
from otel_lifecycle.asgi import LifecycleMiddleware
from tests.integration.support_apps import answer_stream, bare
from tests.integration.support_http import PATH, TRACE_ID, TRACEPARENT, leave_after, post, serving
from tests.servers.support import COMPLETED, LEFT, ending_of, request_spans, the_span
from tests.support.telemetry import Telemetry


def timed(telemetry: Telemetry, app: Any, **options: Any) -> Any:
    """Wrap an app with the timing header."""
    return LifecycleMiddleware(
        app, routes=[PATH], tracer_provider=telemetry.tracer_provider, server_timing=True, **options
    )


def test_stages_in_a_header_of_a_stream(telemetry: Telemetry) -> None:
    """The head waits for the first byte, so that it can tell the stages up to it; they are the span's."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await StreamingResponse(answer_stream())(scope, receive, send)

    with serving(timed(telemetry, app)) as server:
        response = post(server)
    assert response.text == "t0 t1 t2 "
    span = the_span(telemetry)
    assert ending_of(span) == COMPLETED
    parts = re.findall(r"(\w+);dur=([0-9.]+)", response.headers["server-timing"])
    names = {"queue": "queue_wait", "preprocessing": "preprocessing", "prefill": "prefill"}
    assert [name for name, _ in parts] == list(names)
    for name, milliseconds in parts:
        assert float(milliseconds) == pytest.approx(span["attributes"][f"inference.{names[name]}"] * 1000, abs=0.06)


def test_a_tenant_from_a_header(telemetry: Telemetry) -> None:
    """Whose request it is, on the span alone: no label of a metric."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({})(scope, receive, send)

    middleware = LifecycleMiddleware(
        app, routes=[PATH], tenant_header="X-Tenant", tracer_provider=telemetry.tracer_provider
    )
    with serving(middleware) as server:
        post(server, headers={"x-tenant": "one"})
    span = the_span(telemetry)
    assert (span["attributes"]["inference.request.tenant"], span["attributes"]["inference.legal"]) == ("one", True)
    assert "tenant" not in repr([point["attributes"] for point in telemetry.points()])


def test_no_stages_no_header(telemetry: Telemetry) -> None:
    """An answer whose server marks nothing is sent as it is."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({})(scope, receive, send)

    with serving(timed(telemetry, app)) as server:
        assert "server-timing" not in post(server).headers
    assert ending_of(the_span(telemetry)) == COMPLETED


def test_a_head_that_was_held_is_sent_in_the_end(telemetry: Telemetry) -> None:
    """An app that returns without a body: the server gets what the app sent."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": PATH, "headers": []}
    asyncio.run(timed(telemetry, app)(scope, send, send))
    assert sent == [{"type": "http.response.start", "status": 200, "headers": []}]


class Hostile:
    """A value all of whose methods raise."""

    def __bool__(self) -> bool:
        raise RuntimeError("hostile")

    __str__ = __repr__ = __int__ = __index__ = __eq__ = __hash__ = __bool__  # type: ignore[assignment]


STATUSES: list[tuple[Any, str]] = [
    ("200", "completed"),
    ("200 OK", "completed"),
    (b"200", "failed"),
    (None, "failed"),
    (10**5000, "failed"),
    (-1, "failed"),
    (True, "failed"),
    ([], "failed"),
    (Hostile(), "failed"),
]


@pytest.mark.parametrize(("status", "outcome"), STATUSES, ids=range(len(STATUSES)))
@pytest.mark.parametrize("tokens", [None, "openai"])
def test_a_status_that_makes_no_sense_reaches_the_server(
    telemetry: Telemetry, status: Any, outcome: str, tokens: Any
) -> None:
    """It is the server's to refuse; nothing of ours raises, and the request ends once."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"yes"})

    async def send(message: Any) -> None:
        sent.append(message)

    middleware = LifecycleMiddleware(app, routes=[PATH], tokens=tokens, tracer_provider=telemetry.tracer_provider)
    asyncio.run(middleware({"type": "http", "method": "POST", "path": PATH, "headers": []}, send, send))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] is status
    assert the_span(telemetry)["attributes"]["inference.outcome"] == outcome


def test_a_handler_that_stops_late_is_cancelled(telemetry: Telemetry) -> None:
    """However long it takes to stop after it was told: no clock decides."""

    async def handler(request: Request) -> Response:
        await request.body()
        while not await request.is_disconnected():  # noqa: ASYNC110  # asking is what a handler can do
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.8)
        return JSONResponse(None)

    with serving(bare(telemetry, handler)) as server:
        leave_after(server.port, PATH, b"no part", 0)
        span = the_span(telemetry)
    assert ending_of(span) == LEFT


def test_a_handler_that_works_on_at_once_is_complete(telemetry: Telemetry) -> None:
    """However soon after it was told it answers: it moved its request on."""

    async def handler(request: Request) -> Response:
        await request.body()
        while not await request.is_disconnected():  # noqa: ASYNC110  # asking is what a handler can do
            await asyncio.sleep(0.005)
        lifecycle.current().output(40)
        return JSONResponse({})

    with serving(bare(telemetry, handler)) as server:
        leave_after(server.port, PATH, b"no part", 0)
        span = the_span(telemetry)
    assert ending_of(span) == COMPLETED
    assert span["attributes"]["inference.client.disconnected"] is True


def test_a_clean_picture_under_fastapis_own_instrumentation(telemetry: Telemetry) -> None:
    """With ``exclude_spans`` there is a server span, the request in it, and its stages: nothing for each message."""
    app = FastAPI()

    async def stream() -> AsyncIterator[str]:
        async for token in answer_stream():
            yield token

    async def handler() -> StreamingResponse:
        return StreamingResponse(stream())

    app.add_api_route(PATH, handler, methods=["POST"], response_model=None)
    app.add_middleware(LifecycleMiddleware, routes=[PATH], tracer_provider=telemetry.tracer_provider)
    FastAPIInstrumentor.instrument_app(
        app, tracer_provider=telemetry.tracer_provider, exclude_spans=["receive", "send"]
    )
    try:
        with serving(app) as server:
            assert post(server, headers={"traceparent": TRACEPARENT}).text == "t0 t1 t2 "
    finally:
        FastAPIInstrumentor.uninstrument_app(app)
    (request,) = request_spans(telemetry)
    names = {span["span_id"]: span["name"] for span in telemetry.spans()}
    tree = {span["name"]: names.get(span["parent_id"] or "", "caller") for span in telemetry.spans()}
    assert tree == {
        f"POST {PATH}": "caller",
        "chat": f"POST {PATH}",
        **dict.fromkeys(("queue", "preprocessing", "prefill", "decode"), "chat"),
    }
    assert request["trace_id"] == TRACE_ID
