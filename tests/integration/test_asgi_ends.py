"""However a response ends, its request ends once, and rightly: answers, refusals, errors, clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

import otel_lifecycle as lifecycle
from otel_lifecycle.asgi import LifecycleMiddleware
from tests.integration.support_apps import PassThrough, Spec24, bare, mark_boundaries, stack, tokens
from tests.integration.support_http import (
    PATH,
    event_names,
    outcome,
    post,
    request_span,
    serving,
    token_count,
)
from tests.support.telemetry import Telemetry

LEFT = "client_disconnected"


# ------------------------------------------------------------------------------------------------ answers, refusals


STATUSES: list[tuple[int, dict[str, Any]]] = [
    (200, {"inference.outcome": "completed"}),
    (204, {"inference.outcome": "completed"}),
    (304, {"inference.outcome": "cancelled"}),
    (400, {"inference.outcome": "failed", "inference.end.reason": "bad_input", "error.type": "bad_input"}),
    (401, {"inference.outcome": "failed", "error.type": "401"}),
    (403, {"inference.outcome": "failed", "error.type": "403"}),
    (404, {"inference.outcome": "failed", "inference.end.reason": "bad_input", "error.type": "bad_input"}),
    (408, {"inference.outcome": "timed_out", "inference.end.reason": "deadline", "error.type": "timeout"}),
    (413, {"inference.outcome": "failed", "inference.end.reason": "input_too_long", "error.type": "input_too_long"}),
    (422, {"inference.outcome": "failed", "inference.end.reason": "bad_input", "error.type": "bad_input"}),
    (429, {"inference.outcome": "failed", "inference.end.reason": "rate_limited", "error.type": "rate_limited"}),
    (499, {"inference.outcome": "cancelled", "inference.end.reason": LEFT}),
    (500, {"inference.outcome": "failed", "error.type": "500"}),
    (502, {"inference.outcome": "failed", "error.type": "502"}),
    (503, {"inference.outcome": "failed", "inference.end.reason": "queue_full", "error.type": "queue_full"}),
    (504, {"inference.outcome": "timed_out", "inference.end.reason": "deadline", "error.type": "timeout"}),
]


@pytest.mark.parametrize(("status", "expected"), STATUSES)
def test_status_ends_the_request(telemetry: Telemetry, status: int, expected: dict[str, Any]) -> None:
    """A handler that marks nothing: the status of its response is how the request ended, in no known stage."""

    async def handler(request: Request) -> Response:
        return Response(b"" if status in {204, 304} else b"{}", status)

    with serving(bare(telemetry, handler)) as server:
        assert post(server).status_code == status
    assert outcome(telemetry.span("chat")) == {**expected, "inference.legal": True}


@pytest.mark.parametrize(("status", "reason"), [(429, "rate_limited"), (503, "queue_full")])
def test_c28_refusals_are_counted_with_their_reason(telemetry: Telemetry, status: int, reason: str) -> None:
    """Of 100 arrivals 6 are turned away: all 100 are in the counts, none of the 6 in the latencies."""
    arrivals = iter(range(100))

    async def handler(request: Request) -> Response:
        if next(arrivals) % 16 == 15:
            raise HTTPException(status, "too much to do")
        current = lifecycle.current()
        with current.stage("queue"):
            pass
        current.input_ready()
        current.first_token()
        current.token()
        return JSONResponse({})

    with serving(bare(telemetry, handler)) as server, httpx.Client(base_url=server.base, trust_env=False) as client:
        codes = [client.post(PATH).status_code for _ in range(100)]
    assert (codes.count(200), codes.count(status)) == (94, 6)
    counts: dict[Any, float] = {}
    for point in telemetry.points("inference.requests"):
        key = (point["attributes"]["inference.outcome"], point["attributes"].get("error.type"))
        counts[key] = counts.get(key, 0) + (point["value"] or 0)
    assert counts == {("completed", None): 94, ("failed", reason): 6}
    assert telemetry.point("inference.time_to_first_token")["count"] == 94
    assert telemetry.point("inference.stage.duration", inference__stage="queue")["count"] == 94
    assert sum(point["value"] or 0 for point in telemetry.points("inference.active_requests")) == 0


def test_redirect_is_no_answer(telemetry: Telemetry) -> None:
    """A request that is sent elsewhere was neither answered nor failed here."""

    async def handler(request: Request) -> Response:
        return RedirectResponse("/elsewhere", 307)

    with serving(bare(telemetry, handler)) as server:
        assert post(server, follow_redirects=False).status_code == 307
    assert outcome(telemetry.span("chat")) == {"inference.outcome": "cancelled", "inference.legal": True}


def test_marks_of_the_handler_win(telemetry: Telemetry) -> None:
    """A handler that ended the request itself is right, whatever it answers then."""

    async def handler(request: Request) -> Response:
        lifecycle.current().fail("out_of_memory")
        return JSONResponse({}, 200)

    with serving(bare(telemetry, handler)) as server:
        post(server)
    assert outcome(telemetry.span("chat")) == {
        "inference.outcome": "failed",
        "inference.end.reason": "out_of_memory",
        "error.type": "out_of_memory",
        "inference.legal": True,
    }


# ------------------------------------------------------------------------------------------------ errors


def test_exception_of_the_handler(telemetry: Telemetry) -> None:
    """The exception is told by its type, though the client has got a 500 before."""

    async def handler(request: Request) -> Response:
        raise LookupError("secret prompt")

    for place in (bare(telemetry, handler), Spec24(bare(telemetry, handler))):
        with serving(place) as server:
            assert post(server).status_code == 500
    expected = {"inference.outcome": "failed", "error.type": "LookupError", "inference.legal": True}
    assert [outcome(span) for span in telemetry.spans("chat")] == [expected, expected]
    assert "secret" not in repr(telemetry.spans())


def test_exception_behind_a_500_that_was_sent_already(telemetry: Telemetry) -> None:
    """From outside Starlette the 500 comes first and the exception after it; the end is the response's."""

    async def handler(request: Request) -> Response:
        raise LookupError("broken")

    inner = Starlette(routes=[Route(PATH, handler, methods=["POST"])])
    app = LifecycleMiddleware(inner, routes=[PATH], tracer_provider=telemetry.tracer_provider)
    with serving(app) as server:
        assert post(server).status_code == 500
    span = telemetry.span("chat")
    assert outcome(span) == {"inference.outcome": "failed", "error.type": "LookupError", "inference.legal": True}
    assert event_names(span) == ["arrive", "delivered", "fail"]


async def broken_stream() -> AsyncIterator[str]:
    """Tokens, then an error."""
    current = lifecycle.current()
    mark_boundaries()
    current.first_token()
    yield "t0"
    current.token()
    yield "t1"
    raise MemoryError("of the engine")


def sync_broken_stream() -> Iterator[str]:
    """The same in a thread."""
    current = lifecycle.current()
    mark_boundaries()
    current.first_token()
    yield "t0"
    current.token()
    yield "t1"
    raise MemoryError("of the engine")


@pytest.mark.parametrize("spec", ["2.3", "2.4"])
@pytest.mark.parametrize("make", [broken_stream, sync_broken_stream])
@pytest.mark.parametrize(("above", "below"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_error_after_the_first_bytes(telemetry: Telemetry, make: Any, spec: str, above: int, below: int) -> None:
    """A stream that breaks is a failure in decode, though its status was 200."""

    async def handler(request: Request) -> Response:
        return StreamingResponse(make())

    app = stack(telemetry, handler, [PassThrough] * above, [PassThrough] * below)
    with serving(Spec24(app) if spec == "2.4" else app) as server, contextlib.suppress(httpx.HTTPError):
        post(server)
    span = request_span(telemetry)
    assert outcome(span) == {
        "inference.outcome": "failed",
        "error.type": "out_of_memory",
        "inference.end.reason": "out_of_memory",
        "inference.failure.stage": "decode",
        "inference.legal": True,
    }
    assert token_count(span) == 2


def test_app_that_never_answers(telemetry: Telemetry) -> None:
    """An app that returns without a response has failed."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        return

    with serving(LifecycleMiddleware(app, routes=[PATH], tracer_provider=telemetry.tracer_provider)) as server:
        assert post(server).status_code == 500
    expected = {"inference.outcome": "failed", "error.type": "_OTHER", "inference.legal": True}
    assert outcome(telemetry.span("chat")) == expected


def test_deadline_of_the_server(telemetry: Telemetry) -> None:
    """A handler that runs out of time is a timeout."""

    async def handler(request: Request) -> Response:
        lifecycle.current().set(deadline=0.05)
        await asyncio.wait_for(asyncio.sleep(20), 0.05)
        return JSONResponse({})

    with serving(bare(telemetry, handler)) as server:
        assert post(server).status_code == 500
    assert outcome(telemetry.span("chat")) == {
        "inference.outcome": "timed_out",
        "inference.end.reason": "deadline",
        "error.type": "timeout",
        "inference.legal": True,
    }


# --------------------------------------------------------------------------------------- answers that are out already


@pytest.mark.parametrize(
    ("respond", "expected"),
    [
        (
            lambda later: StreamingResponse(tokens(), background=later),
            {"inference.outcome": "completed", "inference.legal": True},
        ),
        (
            lambda later: JSONResponse({}, 500, background=later),
            {"inference.outcome": "failed", "error.type": "500", "inference.legal": True},
        ),
    ],
    ids=["streamed", "500"],
)
def test_what_runs_after_the_answer_is_no_request(telemetry: Telemetry, respond: Any, expected: dict[str, Any]) -> None:
    """Its exception may still come, but nothing is active, and a shutdown meanwhile ends it as it was answered."""
    running, over = threading.Event(), threading.Event()

    async def later() -> None:
        running.set()
        while not over.is_set():  # noqa: ASYNC110  # two threads: an event of asyncio belongs to one loop
            await asyncio.sleep(0.01)

    async def handler(request: Request) -> Response:
        await request.body()
        answer: Response = respond(BackgroundTask(later))
        return answer

    with serving(bare(telemetry, handler)) as server:
        try:
            post(server)
            assert running.wait(10)
            out = time.time_ns()
            assert all(not point["value"] for point in telemetry.points("inference.active_requests"))
            assert telemetry.points("inference.oldest_request.age") == []
            time.sleep(0.2)
            telemetry.processor.shutdown()
            span = request_span(telemetry)
        finally:
            over.set()
    assert outcome(span) == expected
    assert span["end_ns"] <= out


class EngineError(RuntimeError):
    """What the engine of these tests raises."""


async def breaks_after(count: int) -> AsyncIterator[str]:
    """Some tokens, then an error."""
    for number in range(count):
        yield f"t{number}"
    raise EngineError


async def as_a_500(request: Request) -> Response:
    """A handler that answers with an error of its own."""
    try:
        return Response("".join([token async for token in lifecycle.current().stream(breaks_after(1))]))
    except EngineError:
        return JSONResponse({"error": "broken"}, status_code=500)


async def as_a_frame(request: Request) -> Response:
    """A handler that sends an error frame after the head of a 200."""

    async def body() -> AsyncIterator[str]:
        try:
            async for token in lifecycle.current().stream(breaks_after(1)):
                yield token
        except EngineError:
            yield "error"

    return StreamingResponse(body())


@pytest.mark.parametrize("handler", [as_a_500, as_a_frame])
def test_c115_a_response_made_of_an_engines_exception(telemetry: Telemetry, handler: Any) -> None:
    """The request failed by what came out of its stream, whatever the framework made of it."""
    inner = Starlette(routes=[Route(PATH, handler, methods=["POST"])])
    with serving(LifecycleMiddleware(inner, routes=[PATH], tracer_provider=telemetry.tracer_provider)) as server:
        post(server)
    span = request_span(telemetry)
    assert span["attributes"]["inference.outcome"] == "failed"
    assert span["attributes"]["error.type"] == f"{__name__}.EngineError"


async def refused(request: Request) -> Response:
    """A handler whose refusal is its own decision."""
    with contextlib.suppress(EngineError):
        [token async for token in lifecycle.current().stream(breaks_after(0))]
    return JSONResponse({"error": "later"}, status_code=429)


def test_c115_a_refusal_is_the_servers_own_word(telemetry: Telemetry) -> None:
    """Below 500 the status is what the server decided."""
    inner = Starlette(routes=[Route(PATH, refused, methods=["POST"])])
    with serving(LifecycleMiddleware(inner, routes=[PATH], tracer_provider=telemetry.tracer_provider)) as server:
        post(server)
    assert request_span(telemetry)["attributes"]["error.type"] == "rate_limited"
