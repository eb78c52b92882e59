"""A client that leaves: cancelled where the app stops for it, noted where the app runs on, ended once anyhow."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

import otel_lifecycle as lifecycle
from otel_lifecycle.asgi import LifecycleMiddleware
from tests.integration.support_apps import PassThrough, Spec24, bare, mark_boundaries, stack, tokens
from tests.integration.support_http import (
    PATH,
    Server,
    event_names,
    leave_after,
    outcome,
    post,
    request_span,
    serving,
    token_count,
    wait_for,
)
from tests.support.telemetry import Telemetry

LEFT = "client_disconnected"


def poll_handler(seen: list[str], polls: int = 200) -> Any:
    """A handler that asks whether its client is there, and works on until it knows that it is not."""

    async def handler(request: Request) -> Response:
        await request.body()
        for _ in range(polls):
            if await request.is_disconnected():
                seen.append("left")
                return Response(b"")
            await asyncio.sleep(0.01)
        seen.append("ran on")
        return JSONResponse({})

    return handler


def test_c77_handler_that_asks_stops(telemetry: Telemetry) -> None:
    """Told that its client left, the handler stops: cancelled."""
    seen: list[str] = []
    with serving(bare(telemetry, poll_handler(seen))) as server:
        leave_after(server.port, PATH, b"no part", 0)
        span = request_span(telemetry)
    assert seen == ["left"]
    assert outcome(span) == {
        "inference.outcome": "cancelled",
        "inference.end.reason": LEFT,
        "inference.client.disconnected": True,
        "inference.legal": True,
    }
    assert event_names(span) == ["arrive", "client_disconnected", "cancel"]


def test_c77_behind_base_http_middleware_the_server_runs_on(telemetry: Telemetry) -> None:
    """A handler that cannot know runs to its end: complete, and the client that left is noted when it left."""
    seen: list[str] = []
    with serving(stack(telemetry, poll_handler(seen, 80), [], [PassThrough])) as server:
        leave_after(server.port, PATH, b"no part", 0)
        span = request_span(telemetry)
    assert seen == ["ran on"]
    assert outcome(span) == {
        "inference.outcome": "completed",
        "inference.client.disconnected": True,
        "inference.legal": True,
    }
    assert event_names(span) == ["arrive", "client_disconnected", "output", "complete"]
    # Noted when it left, not when the handler was through: it asked 80 times, 10 ms apart.
    left, complete = span["events"][1]["time_ns"], span["events"][3]["time_ns"]
    assert left - span["start_ns"] < complete - left


@pytest.mark.parametrize("above", [0, 1])
def test_c29_handler_that_does_not_listen_runs_on(telemetry: Telemetry, above: int) -> None:
    """The work for a client that has gone is visible as what it is: completed, and not delivered."""

    async def handler(request: Request) -> Response:
        await request.body()
        await asyncio.sleep(0.2)
        mark_boundaries()
        lifecycle.current().output(40)
        return JSONResponse({})

    with serving(stack(telemetry, handler, [PassThrough] * above)) as server:
        leave_after(server.port, PATH, b"no part", 0)
        span = request_span(telemetry)
    assert outcome(span) == {
        "inference.outcome": "completed",
        "inference.client.disconnected": True,
        "inference.legal": True,
    }
    assert token_count(span) == 40
    assert "inference.delivered" not in span["attributes"]


async def endless(torn: list[str]) -> AsyncIterator[str]:
    """Tokens without end, until somebody tears the generator down."""

    async def engine() -> AsyncIterator[str]:
        while True:
            await asyncio.sleep(0.005)
            yield "token "

    try:
        async for token in lifecycle.current().stream(engine()):
            yield token
    except (asyncio.CancelledError, GeneratorExit) as error:
        torn.append(type(error).__name__)
        raise


def sync_endless(torn: list[str]) -> Iterator[str]:
    """The same in a thread."""

    def engine() -> Iterator[str]:
        while True:
            time.sleep(0.005)
            yield "token "

    try:
        yield from lifecycle.current().stream(engine())
    except GeneratorExit as error:
        torn.append(type(error).__name__)
        raise


@pytest.mark.parametrize("spec", ["2.3", "2.4"])
@pytest.mark.parametrize("make", [endless, sync_endless])
@pytest.mark.parametrize(("above", "below"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_c77_stream_is_torn_down(telemetry: Telemetry, make: Any, spec: str, above: int, below: int) -> None:
    """A client that leaves a stream ends its request once: cancelled in decode, the disconnect noted."""
    torn: list[str] = []

    async def handler(request: Request) -> Response:
        await request.body()
        return StreamingResponse(make(torn))

    app = stack(telemetry, handler, [PassThrough] * above, [PassThrough] * below)
    # A BaseHTTPMiddleware above cancels us for its own send that failed, and is slower to pass the disconnect on: where
    # both come within the same few steps of the loop, nobody has told us why we are cancelled.
    with serving(Spec24(app, pause=0.05 * above) if spec == "2.4" else app) as server:
        leave_after(server.port, PATH, b"token", 2)
        span = request_span(telemetry)
        active = [point["value"] for point in telemetry.points("inference.active_requests")]
    assert outcome(span) == {
        "inference.outcome": "cancelled",
        "inference.end.reason": LEFT,
        "inference.failure.stage": "decode",
        "inference.client.disconnected": True,
        "inference.legal": True,
    }
    assert token_count(span) >= 2
    assert event_names(span) == ["arrive", "first_token", "delivered", "client_disconnected", "cancel"]
    assert sum(value or 0 for value in active) == 0
    assert sum(point["value"] or 0 for point in telemetry.points("inference.requests")) == 1


def test_client_that_leaves_while_sending_its_body(telemetry: Telemetry) -> None:
    """A body that never comes whole: the framework gives up, the request is cancelled and no failure."""

    async def handler(request: Request) -> Response:
        await request.body()
        return JSONResponse({})

    with serving(bare(telemetry, handler)) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf".encode())
            wait_for(lambda: telemetry.points("inference.active_requests"))
        span = request_span(telemetry)
    assert outcome(span) == {
        "inference.outcome": "cancelled",
        "inference.end.reason": LEFT,
        "inference.client.disconnected": True,
        "inference.legal": True,
    }


def test_server_that_cancels_the_app(telemetry: Telemetry) -> None:
    """A task that is cancelled from outside, with the client still there, is cancelled without that reason."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(20)

    middleware = LifecycleMiddleware(app, routes=[PATH], tracer_provider=telemetry.tracer_provider)

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        task = asyncio.create_task(middleware(scope, receive, send))
        await asyncio.sleep(0.02)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await JSONResponse({}, 503)(scope, receive, send)

    with serving(outer) as server:
        assert post(server).status_code == 503
    assert outcome(telemetry.span("chat")) == {"inference.outcome": "cancelled", "inference.legal": True}


def test_disconnect_after_the_response_is_nothing(telemetry: Telemetry) -> None:
    """Every server says "disconnect" once a response is out; nobody has left."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({})(scope, receive, send)
        assert (await receive())["type"] in {"http.request", "http.disconnect"}
        assert (await receive())["type"] == "http.disconnect"

    with serving(LifecycleMiddleware(app, routes=[PATH], tracer_provider=telemetry.tracer_provider)) as server:
        post(server)
    span = telemetry.span("chat")
    assert outcome(span) == {"inference.outcome": "completed", "inference.legal": True}
    assert event_names(span) == ["arrive", "output", "delivered", "complete"]


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_many_streams_on_one_loop_a_third_leaving(telemetry: Telemetry, count: int) -> None:
    """So many streams at once, every third client gone after its first token: each ends once, none stays active."""
    everybody = asyncio.Event()
    streaming = 0

    async def tokens() -> AsyncIterator[str]:
        nonlocal streaming

        async def engine() -> AsyncIterator[str]:
            for _ in range(10):
                yield "token "
                # Nobody is through before everybody is there.
                await everybody.wait()
                await asyncio.sleep(0.05)

        streaming += 1
        if streaming == count:
            everybody.set()
        async for token in lifecycle.current().stream(engine()):
            yield token

    async def handler(request: Request) -> Response:
        await request.body()
        return StreamingResponse(tokens())

    with serving(bare(telemetry, handler), backlog=count) as server:
        asyncio.run(_load(server, count))
        wait_for(lambda: len(telemetry.spans("chat")) == count, 60)
    outcomes = Counter(span["attributes"]["inference.outcome"] for span in telemetry.spans("chat"))
    leaving = len(range(0, count, 3))
    assert outcomes == {"completed": count - leaving, "cancelled": leaving}
    assert sum(point["value"] or 0 for point in telemetry.points("inference.requests")) == count
    assert sum(point["value"] or 0 for point in telemetry.points("inference.active_requests")) == 0


async def _load(server: Server, count: int) -> None:
    head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}"

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head.encode())
        await reader.readuntil(b"token ")
        if number % 3:
            await reader.read()
        writer.close()

    await asyncio.gather(*map(one, range(count)))


async def wait_for_ever(scope: Any, receive: Any, send: Any) -> None:
    """An app that is torn down while it waits."""
    await receive()
    await asyncio.get_running_loop().create_future()


def test_app_that_is_closed_with_its_loop(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """A coroutine that nobody runs on, closed in another context, ends its request and complains of nothing."""
    app = LifecycleMiddleware(wait_for_ever, routes=[PATH], tracer_provider=telemetry.tracer_provider)
    running: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def start() -> None:
        scope = {"type": "http", "method": "POST", "path": PATH, "headers": []}
        coroutine = app(scope, receive, receive)
        running.append(coroutine)
        contextvars.copy_context().run(coroutine.send, None)

    asyncio.run(start())
    running.pop().close()
    assert outcome(telemetry.span("chat")) == {"inference.outcome": "cancelled", "inference.legal": True}
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_under_trio(telemetry: Telemetry) -> None:
    """A server that runs on trio is followed as well; there the app has to listen for the disconnect itself."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        assert (await receive())["type"] == "http.disconnect"

    middleware = LifecycleMiddleware(app, routes=[PATH], tracer_provider=telemetry.tracer_provider)
    messages = iter([{"type": "http.request"}, {"type": "http.disconnect"}])

    async def receive() -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return next(messages)

    async def send(message: Any) -> None:
        raise AssertionError(message)

    scope = {"type": "http", "method": "POST", "path": PATH, "headers": []}
    trio.run(middleware, scope, receive, send)
    assert outcome(telemetry.span("chat")) == {
        "inference.outcome": "cancelled",
        "inference.end.reason": LEFT,
        "inference.client.disconnected": True,
        "inference.legal": True,
    }


def test_client_of_a_request_without_a_body_that_leaves(telemetry: Telemetry) -> None:
    """There is nothing to read, so it is noted though the handler never asks; the answer it makes is not a delivery."""
    telling = threading.Event()

    async def handler(request: Request) -> Response:
        for _ in range(500):
            if telling.is_set():
                break
            await asyncio.sleep(0.01)
        return PlainTextResponse(await request.body() or b"nothing was sent")

    head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\n"
    with serving(bare(telemetry, handler)) as server:
        telling.set()
        assert post(server).text == "nothing was sent"
        request_span(telemetry)
        telemetry.exporter.clear()
        telling.clear()
        leave_after(server.port, PATH, b"", 0, b"", head)
        time.sleep(0.1)
        telling.set()
        span = request_span(telemetry)
    assert event_names(span) == ["arrive", "client_disconnected", "output", "complete"]


def test_c29_stream_that_runs_to_its_end_is_complete(telemetry: Telemetry) -> None:
    """However soon after the app was told: it made everything, and noted that nobody wanted it."""
    told = asyncio.Event()

    async def handler(request: Request) -> Response:
        await request.body()
        made = [token async for token in lifecycle.current().stream(tokens(3, 0.02))]
        while not await request.is_disconnected():  # noqa: ASYNC110  # asking is what an app can do
            await asyncio.sleep(0.005)
        told.set()
        return JSONResponse(made)

    with serving(bare(telemetry, handler)) as server:
        leave_after(server.port, PATH, b"", 0)
        span = request_span(telemetry)
    assert (told.is_set(), token_count(span)) == (True, 3)
    assert outcome(span) == {
        "inference.outcome": "completed",
        "inference.client.disconnected": True,
        "inference.legal": True,
    }
