"""The middleware inside Starlette, FastAPI and Litestar, served by uvicorn over real HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import propagate
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import otel_lifecycle as lifecycle
from otel_lifecycle import _log
from otel_lifecycle.asgi import LifecycleMiddleware
from tests.integration import support_apps
from tests.integration.support_http import (
    PARENT_ID,
    PATH,
    TRACE_ID,
    TRACEPARENT,
    event_names,
    outcome,
    post,
    request_span,
    serving,
    token_count,
)
from tests.support.telemetry import Telemetry

ROUTES = [PATH, "/sync", "/json"]
MakeApp = Callable[[Any], Any]


def around(make: MakeApp, arguments: dict[str, Any]) -> Any:
    """The app wrapped from outside."""
    return LifecycleMiddleware(make(None), **arguments)


def as_starlette_middleware(make: MakeApp, arguments: dict[str, Any]) -> Any:
    """Inside Starlette's own stack, below its error handling."""
    from starlette.middleware import Middleware

    return make([Middleware(LifecycleMiddleware, **arguments)])


def as_litestar_middleware(make: MakeApp, arguments: dict[str, Any]) -> Any:
    """Inside Litestar's own stack, after its routing."""
    from litestar.middleware import DefineMiddleware

    return make([DefineMiddleware(LifecycleMiddleware, **arguments)])


PLACES = [
    pytest.param(around, support_apps.starlette_app, id="around-starlette"),
    pytest.param(as_starlette_middleware, support_apps.starlette_app, id="in-starlette"),
    pytest.param(around, support_apps.fastapi_app, id="around-fastapi"),
    pytest.param(as_starlette_middleware, support_apps.fastapi_app, id="in-fastapi"),
    pytest.param(around, support_apps.litestar_app, id="around-litestar"),
    pytest.param(as_litestar_middleware, support_apps.litestar_app, id="in-litestar"),
]


@pytest.mark.parametrize(("place", "make"), PLACES)
def test_frameworks(telemetry: Telemetry, place: Any, make: MakeApp) -> None:
    """Async stream, sync stream and whole answer: found by current(), each boundary at its place, ended once."""
    app = place(make, {"routes": ROUTES, "tracer_provider": telemetry.tracer_provider})
    with serving(app) as server:
        texts = [post(server, path, json={}, headers={"traceparent": TRACEPARENT}).text for path in ROUTES]
    assert [text.replace('{"text":"', "").replace('"}', "") for text in texts] == ["t0 t1 t2 "] * 3
    spans = telemetry.spans("chat tiny")
    streamed = ["arrive", "admit", "input_ready", "first_token", "delivered", "complete"]
    whole = ["arrive", "admit", "input_ready", "output", "delivered", "complete"]
    assert [event_names(span) for span in spans] == [streamed, streamed, whole]
    assert [outcome(span) for span in spans] == [{"inference.outcome": "completed", "inference.legal": True}] * 3
    assert [token_count(span) for span in spans] == [3, 3, None]
    assert {(span["trace_id"], span["parent_id"], span["kind"]) for span in spans} == {(TRACE_ID, PARENT_ID, "SERVER")}


@pytest.mark.parametrize(("place", "make"), PLACES)
def test_handlers_need_no_marks(telemetry: Telemetry, place: Any, make: MakeApp, monkeypatch: Any) -> None:
    """A handler that knows nothing of all this gives what can be known: a complete request and its duration."""
    monkeypatch.setattr(support_apps, "mark_boundaries", lambda: None)
    app = place(make, {"routes": ["/json"], "model": "known", "tracer_provider": telemetry.tracer_provider})
    with serving(app) as server:
        assert post(server, "/json", json={}).status_code == 200
    span = telemetry.span("chat tiny")
    assert event_names(span) == ["arrive", "output", "delivered", "complete"]
    given = {name for name in span["attributes"] if name.startswith("inference.")}
    assert given == {
        "inference.delivered",
        "inference.e2e",
        "inference.legal",
        "inference.outcome",
        "inference.queue.ahead",
        "inference.queue.running",
        "inference.violations",
    }


def test_arrival_is_before_the_body_is_read(telemetry: Telemetry) -> None:
    """A body that takes its time to come is part of the request."""
    arrived_then: list[str | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        arrived_then.append(repr(lifecycle.current()).split()[2])
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"yes"})

    middleware = LifecycleMiddleware(app, routes=["/"], tracer_provider=telemetry.tracer_provider)
    with serving(middleware) as server:
        post(server, "/", content=b"x" * 100_000)
    assert arrived_then == ["queued"]
    assert event_names(telemetry.span("chat")) == ["arrive", "output", "delivered", "complete"]


@pytest.mark.parametrize(
    "traceparent",
    ["", "00-" + "0" * 32 + "-" + PARENT_ID + "-01", "nonsense", "00-" + "z" * 32, "x" * 30_000],
    ids=["none", "zeros", "nonsense", "letters", "long"],
)
def test_traceparent_that_means_nothing(telemetry: Telemetry, traceparent: str) -> None:
    """A request without a parent begins its own trace."""
    app = around(support_apps.starlette_app, {"routes": ROUTES, "tracer_provider": telemetry.tracer_provider})
    with serving(app) as server:
        assert post(server, "/json", json={}, headers={"traceparent": traceparent}).status_code == 200
    span = telemetry.span("chat tiny")
    assert (span["parent_id"], span["kind"]) == (None, "SERVER")


def test_baggage_and_tracestate_are_carried_on(telemetry: Telemetry) -> None:
    """What the headers carry besides the parent reaches the handler, and an engine in another process."""
    from opentelemetry import baggage

    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        carrier = lifecycle.current().carrier()
        seen.append((baggage.get_baggage("tenant"), carrier["baggage"], carrier["tracestate"], carrier["traceparent"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"yes"})

    middleware = LifecycleMiddleware(app, routes=["/"], tracer_provider=telemetry.tracer_provider)
    headers = {"traceparent": TRACEPARENT, "tracestate": "vendor=1", "baggage": "tenant=one"}
    with serving(middleware) as server:
        post(server, "/", headers=headers)
    span = telemetry.span("chat")
    assert seen == [("one", "tenant=one", "vendor=1", f"00-{TRACE_ID}-{span['span_id']}-01")]


def test_unsampled_parent_still_counts(telemetry: Telemetry) -> None:
    """The caller's sampling decision costs the span, not the metrics."""
    app = around(support_apps.starlette_app, {"routes": ROUTES, "tracer_provider": telemetry.tracer_provider})
    with serving(app) as server:
        # A first one that is sampled lets the processor be known for its provider.
        for flags in ("01", "00"):
            post(server, PATH, json={}, headers={"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-{flags}"})
    assert len(telemetry.spans("chat tiny")) == 1
    assert sum(point["value"] or 0 for point in telemetry.points("inference.requests")) == 2
    assert telemetry.point("inference.time_to_first_token")["count"] == 2


def spans_of_http(telemetry: Telemetry, place: Any) -> dict[str, list[str | None]]:
    """The HTTP instrumentation's spans of one streamed request: by name, the name of each one's parent."""
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

    arguments = {"routes": ROUTES, "tracer_provider": telemetry.tracer_provider}
    app = support_apps.fastapi_app() if place is None else place(support_apps.fastapi_app, arguments)
    FastAPIInstrumentor.instrument_app(app, tracer_provider=telemetry.tracer_provider)
    with serving(app) as server:
        post(server, json={}, headers={"traceparent": TRACEPARENT})
    spans = {span["span_id"]: span for span in telemetry.spans()}
    found: dict[str, list[str | None]] = {}
    for span in spans.values():
        if span["scope"]["name"] != "otel_lifecycle":
            parent = spans.get(span["parent_id"] or "")
            found.setdefault(span["name"], []).append(parent["name"] if parent else span["parent_id"])
    return found


def test_under_fastapi_instrumentation(make_telemetry: Callable[..., Telemetry]) -> None:
    """One request is one request, below the HTTP span; the "http send" and "http receive" spans are as without us."""
    telemetry = make_telemetry()
    without = spans_of_http(make_telemetry(), None)
    assert spans_of_http(telemetry, as_starlette_middleware) == without
    assert sorted(without) == [f"POST {PATH}", f"POST {PATH} http receive", f"POST {PATH} http send"]
    http, request = telemetry.span(f"POST {PATH}"), telemetry.span("chat tiny")
    assert (http["kind"], http["parent_id"], http["trace_id"]) == ("SERVER", PARENT_ID, TRACE_ID)
    assert (request["kind"], request["parent_id"], request["trace_id"]) == ("INTERNAL", http["span_id"], TRACE_ID)
    assert telemetry.point("inference.requests")["value"] == 1


def test_around_fastapi_instrumentation(telemetry: Telemetry) -> None:
    """From outside the request is the server's span and the HTTP span is in it."""
    from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware

    http_app = OpenTelemetryMiddleware(support_apps.fastapi_app(), tracer_provider=telemetry.tracer_provider)
    app = LifecycleMiddleware(http_app, routes=ROUTES, tracer_provider=telemetry.tracer_provider)
    with serving(app) as server:
        post(server, json={}, headers={"traceparent": TRACEPARENT})
    request = request_span(telemetry, "chat tiny")
    (http,) = [span for span in telemetry.spans() if span["parent_id"] == request["span_id"] and "POST" in span["name"]]
    assert (request["kind"], request["parent_id"], http["kind"]) == ("SERVER", PARENT_ID, "INTERNAL")
    assert telemetry.point("inference.requests")["value"] == 1


def test_span_of_the_servers_start_is_no_parent(telemetry: Telemetry) -> None:
    """A server that was started inside a span does not put all its requests into that trace."""
    app = around(support_apps.starlette_app, {"routes": ROUTES, "tracer_provider": telemetry.tracer_provider})

    async def inside_a_span(scope: Any, receive: Any, send: Any) -> None:
        with telemetry.tracer().start_as_current_span("start of the server"):
            await app(scope, receive, send)

    with serving(inside_a_span) as server:
        post(server, json={}, headers={"traceparent": TRACEPARENT})
    span = telemetry.span("chat tiny")
    assert (span["trace_id"], span["parent_id"]) == (TRACE_ID, PARENT_ID)


def test_request_is_not_current_outside_the_app(telemetry: Telemetry) -> None:
    """Before and after the middleware nothing of the request is left in the context."""
    seen: list[bool] = []
    inner = around(support_apps.starlette_app, {"routes": ROUTES, "tracer_provider": telemetry.tracer_provider})

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        nobody = lifecycle.current()
        await inner(scope, receive, send)
        seen.append(lifecycle.current() is nobody)

    with serving(outer) as server:
        post(server, "/json", json={})
        post(server, PATH, json={})
    assert seen == [True, True]


@pytest.mark.parametrize("streamed", [False, True])
def test_background_task_is_no_part_of_the_request(telemetry: Telemetry, streamed: bool) -> None:
    """The request ends with its response, whatever the app does afterwards in the same call."""
    from starlette.background import BackgroundTask
    from starlette.responses import JSONResponse, StreamingResponse

    began: list[int] = []

    def afterwards() -> None:
        began.append(time.time_ns())
        raise LookupError("not the request's")

    background = BackgroundTask(afterwards)
    body = iter(["a", "b"])
    app = LifecycleMiddleware(
        StreamingResponse(body, background=background) if streamed else JSONResponse({}, background=background),
        routes=["/"],
        tracer_provider=telemetry.tracer_provider,
    )
    with serving(app) as server:
        assert post(server, "/").status_code == 200
    span = telemetry.span("chat")
    assert outcome(span) == {"inference.outcome": "completed", "inference.legal": True}
    assert span["end_ns"] <= began[0]


def test_propagator_that_fails_costs_the_parent_alone(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A request is served and followed whatever the app's propagators do."""

    class Broken(TraceContextTextMapPropagator):
        def extract(self, *arguments: Any, **named: Any) -> Any:
            raise LookupError("no headers today")

    monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", Broken())
    # The log is silent about a place for a minute, and an earlier test may have used that up.
    monkeypatch.setattr(_log, "_last_said", {})
    app = around(support_apps.starlette_app, {"routes": ROUTES, "tracer_provider": telemetry.tracer_provider})
    with serving(app) as server:
        assert post(server, json={}, headers={"traceparent": TRACEPARENT}).text == "t0 t1 t2 "
    span = telemetry.span("chat tiny")
    assert (span["parent_id"], outcome(span)["inference.outcome"]) == (None, "completed")
    said = [record.getMessage() for record in caplog.records if record.name == "otel_lifecycle"]
    assert said == ["the parent could not be read; the request has none"]
