"""The spans that FastAPI makes by itself since 0.165, and the settings of docs/instrument/asgi.md against them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import pytest
from fastapi import FastAPI
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from starlette.responses import StreamingResponse

from otel_lifecycle.asgi import LifecycleMiddleware
from tests.integration.support_http import PARENT_ID, PATH, TRACEPARENT, leave_after, post, serving
from tests.servers.support import COMPLETED, LEFT, async_engine, ending_of, the_span
from tests.support.telemetry import Telemetry

pytest.importorskip("fastapi.telemetry", reason="FastAPI before 0.165 makes no spans")

SERVER: Final = f"POST {PATH}"
HEAD: Final = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ntraceparent: {TRACEPARENT}\r\n"


def app_of(telemetry: Telemetry, kind: str, settings: Mapping[str, Any]) -> FastAPI:
    """Return an app that streams, with FastAPI's telemetry so set, under the middleware."""
    # Older versions of FastAPI have no type for it.
    spans: Any = {"tracer_provider": telemetry.tracer_provider, **settings}
    app = FastAPI(telemetry=spans)

    async def handler() -> StreamingResponse:
        return StreamingResponse(frames())

    async def frames() -> AsyncIterator[str]:
        async for token in async_engine(kind):
            yield token

    app.add_api_route(PATH, handler, methods=["POST"], response_model=None)
    app.add_middleware(LifecycleMiddleware, routes=[PATH], tracer_provider=telemetry.tracer_provider)
    return app


def serve(app: Any, *, leave: bool) -> None:
    """Post once, and read to the end or leave."""
    with serving(app) as server:
        if leave:
            leave_after(server.port, PATH, b"t", 3, head=HEAD)
        else:
            post(server, headers={"traceparent": TRACEPARENT})


def tree(telemetry: Telemetry) -> dict[str, str]:
    """Return every span's name with that of its parent."""
    names = {span["span_id"]: span["name"] for span in telemetry.spans()} | {PARENT_ID: "caller"}
    return {span["name"]: names[span["parent_id"] or ""] for span in telemetry.spans()}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {SERVER: "caller", "chat": SERVER, "fastapi.dependencies": "chat", "fastapi.endpoint": "chat"}),
        ({"operation_spans": False}, {SERVER: "caller", "chat": SERVER}),
        ({"tracing": False}, {"chat": "caller"}),
    ],
    ids=["as it comes", "no operation spans", "no tracing"],
)
def test_spans_under_fastapis_telemetry(
    telemetry: Telemetry, settings: Mapping[str, Any], expected: Mapping[str, str]
) -> None:
    """As it comes there are its operations, too; without its tracing the request is the server span."""
    serve(app_of(telemetry, "three", settings), leave=False)
    assert ending_of(the_span(telemetry)) == COMPLETED
    assert tree(telemetry) == expected


@pytest.mark.parametrize(("settings", "errors"), [({"operation_spans": False}, [SERVER]), ({"tracing": False}, [])])
def test_a_client_that_leaves_is_an_error_of_fastapis_span_alone(
    telemetry: Telemetry, settings: Mapping[str, Any], errors: list[str]
) -> None:
    """The request is cancelled; where FastAPI makes no span, nothing is red."""
    serve(app_of(telemetry, "endless", settings), leave=True)
    assert ending_of(the_span(telemetry)) == LEFT
    assert [span["name"] for span in telemetry.spans() if span["status"] == "ERROR"] == errors


def test_the_instrumentation_takes_the_place_of_fastapis_spans(telemetry: Telemetry) -> None:
    """Both at once make one server span, and a client that leaves is no error of it."""
    app = app_of(telemetry, "endless", {})
    FastAPIInstrumentor.instrument_app(
        app, tracer_provider=telemetry.tracer_provider, exclude_spans=["receive", "send"]
    )
    try:
        serve(app, leave=True)
    finally:
        FastAPIInstrumentor.uninstrument_app(app)
    assert ending_of(the_span(telemetry)) == LEFT
    assert tree(telemetry) == {SERVER: "caller", "chat": SERVER}
    assert [span["name"] for span in telemetry.spans() if span["status"] == "ERROR"] == []
