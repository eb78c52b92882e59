"""``lifecycle.serving`` inside the frameworks that have no adapter, each with a real client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import platform
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import aiohttp.web
import httpx
import pytest
import sanic
import tornado.httpserver
import tornado.netutil
import tornado.web

import otel_lifecycle as lifecycle
from tests.integration.support_http import PARENT_ID, TRACE_ID, TRACEPARENT, leave_after
from tests.servers.support import (
    COMPLETED,
    DEADLINE,
    FAILED,
    LEFT,
    EngineError,
    LoopThread,
    async_engine,
    check,
    ending_of,
    refused,
    the_span,
)
from tests.support.telemetry import Telemetry

# Sanic asks for it when it starts; the first answer in a process is that of a program, and later ones are remembered.
platform.processor()

Write = Callable[[str], Awaitable[Any]]
Served = AsyncIterator[int]


async def answer(telemetry: Telemetry, headers: Any, kind: str, write: Write) -> None:
    """What every handler does."""
    provider = telemetry.tracer_provider
    async with lifecycle.serving(
        headers, deadline=0.05 if kind == "slow" else None, tracer_provider=provider
    ) as request:
        async with request.stage("queue"):
            await asyncio.sleep(0.002)
        async with request.stage("preprocessing"):
            await asyncio.sleep(0.002)
        if kind == "slow":
            await asyncio.wait_for(asyncio.sleep(20), 0.05)
        async for token in request.stream(async_engine(kind)):
            await write(token)


@contextlib.asynccontextmanager
async def on_aiohttp(telemetry: Telemetry) -> Served:
    """Ten lines of aiohttp."""

    async def handler(http: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        response = aiohttp.web.StreamResponse()

        async def write(token: str) -> None:
            if not response.prepared:
                await response.prepare(http)
            await response.write(token.encode())

        if http.match_info["kind"] == "busy":
            async with lifecycle.serving(http.headers, tracer_provider=telemetry.tracer_provider):
                raise aiohttp.web.HTTPTooManyRequests
        await answer(telemetry, http.headers, http.match_info["kind"], write)
        return response

    app = aiohttp.web.Application()
    app.router.add_post("/{kind}", handler)
    runner = aiohttp.web.AppRunner(app, access_log=None)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


@contextlib.asynccontextmanager
async def on_tornado(telemetry: Telemetry) -> Served:
    """Ten lines of Tornado."""

    async def post(self: Any, kind: str) -> None:
        async def write(token: str) -> None:
            self.write(token)
            await self.flush()

        if kind == "busy":
            async with lifecycle.serving(self.request.headers, tracer_provider=telemetry.tracer_provider):
                raise tornado.web.HTTPError(429)
        await answer(telemetry, self.request.headers, kind, write)

    handler: Any = type("Handler", (tornado.web.RequestHandler,), {"post": post})
    app: Any = tornado.web.Application([(r"/(\w+)", handler)], log_function=lambda handler: None)
    (listening,) = tornado.netutil.bind_sockets(0, "127.0.0.1")
    server = tornado.httpserver.HTTPServer(app)
    server.add_sockets([listening])
    yield listening.getsockname()[1]
    server.stop()
    await server.close_all_connections()


@contextlib.asynccontextmanager
async def on_sanic(telemetry: Telemetry) -> Served:
    """Ten lines of Sanic."""

    async def handler(http: Any, kind: str) -> None:
        if kind == "busy":
            async with lifecycle.serving(http.headers, tracer_provider=telemetry.tracer_provider):
                raise sanic.SanicException("no", status_code=429)
        response: Any = None

        async def write(token: str) -> None:
            nonlocal response
            response = response or await http.respond(content_type="text/plain")
            await response.send(token)

        await answer(telemetry, http.headers, kind, write)

    app: Any = sanic.Sanic(f"test-{uuid.uuid4().hex}", configure_logging=False)
    # It rewrites its own source once a process otherwise, which a second app does not survive.
    app.config.TOUCHUP = False
    app.add_route(handler, "/<kind>", methods=["POST"])
    listening = socket.create_server(("127.0.0.1", 0))
    server = await app.create_server(sock=listening, return_asyncio_server=True, access_log=False)
    await server.startup()
    await server.start_serving()
    yield listening.getsockname()[1]
    server.close()
    await server.wait_closed()


@pytest.fixture(params=[on_aiohttp, on_tornado, on_sanic], ids=["aiohttp", "tornado", "sanic"])
def port(request: pytest.FixtureRequest, telemetry: Telemetry) -> Iterator[int]:
    """The port of each framework."""
    loop = LoopThread()
    served = request.param(telemetry)
    yield loop.run(served.__aenter__)
    loop.run(lambda: served.__aexit__(None, None, None))
    loop.stop()


def post(port: int, kind: str) -> httpx.Response:
    """POST as a caller with a trace."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False) as client:
        return client.post(f"/{kind}", headers={"TraceParent": TRACEPARENT})


def test_a_stream(port: int, telemetry: Telemetry) -> None:
    """Stages, tokens and the caller."""
    assert post(port, "good").text == "t0 t1 t2 "
    span = check(telemetry, COMPLETED, tokens=3)
    assert {"inference.queue_wait", "inference.preprocessing", "inference.ttft"} <= set(span["attributes"])


def test_c114_a_client_that_leaves_while_it_is_written_to(port: int, telemetry: Telemetry) -> None:
    """The framework's error, or its cancellation, is a cancel."""
    head = f"POST /endless HTTP/1.1\r\nhost: localhost\r\ntraceparent: {TRACEPARENT}\r\n"
    leave_after(port, "/endless", b"t", 3, b"", head)
    span = check(telemetry, ending_of(the_span(telemetry)))
    assert span["attributes"]["inference.outcome"] == "cancelled"
    assert span["attributes"].get("inference.end.reason") in ("client_disconnected", None)


@pytest.mark.parametrize(("kind", "tokens"), [("broken", 0), ("cut", 2)])
def test_an_error_of_the_engine(port: int, telemetry: Telemetry, kind: str, tokens: int) -> None:
    """Before the first byte or after it."""
    try:
        post(port, kind)
    except httpx.HTTPError:
        assert tokens
    check(telemetry, FAILED, tokens=tokens)


def test_a_deadline(port: int, telemetry: Telemetry) -> None:
    """A handler that runs out of time."""
    assert post(port, "slow").status_code >= 500
    check(telemetry, DEADLINE)


def test_c117_a_refusal(port: int, telemetry: Telemetry) -> None:
    """The exception of each framework."""
    assert post(port, "busy").status_code == 429
    check(telemetry, refused("rate_limited"))


class Gone(ConnectionResetError):
    """What a write to a client that left raises."""


def test_c114_the_engines_connection_is_not_the_clients(telemetry: Telemetry) -> None:
    """The same class out of ``stream()`` is a failure; while writing it is a cancel."""

    def broken() -> Iterator[str]:
        yield "t0"
        raise Gone

    with contextlib.suppress(Gone), lifecycle.serving(tracer_provider=telemetry.tracer_provider) as request:
        list(request.stream(broken()))
    with contextlib.suppress(Gone), lifecycle.serving(tracer_provider=telemetry.tracer_provider) as request:
        for _ in request.stream(iter(["t0", "t1"])):
            raise Gone
    endings = [ending_of(span) for span in telemetry.spans() if "inference.outcome" in span["attributes"]]
    assert endings == [{"inference.outcome": "failed", "error.type": f"{__name__}.Gone"}, LEFT]


def test_what_is_current_in_the_block(telemetry: Telemetry) -> None:
    """The request, its span, and the baggage of the headers; none of it afterwards."""
    from opentelemetry import baggage, trace

    headers = [(b"TRACEPARENT", TRACEPARENT.encode()), (b"baggage", b"tenant=one")]
    with lifecycle.serving(headers, tracer_provider=telemetry.tracer_provider) as request:
        assert lifecycle.current() is request
        assert baggage.get_baggage("tenant") == "one"
        assert f"{trace.get_current_span().get_span_context().trace_id:032x}" == TRACE_ID
    assert (bool(lifecycle.current()), baggage.get_baggage("tenant")) == (False, None)
    assert the_span(telemetry)["parent_id"] == PARENT_ID


@pytest.mark.parametrize(
    "headers",
    [
        {"Traceparent": TRACEPARENT},
        {"traceparent": [TRACEPARENT]},
        {"HTTP_TRACEPARENT": TRACEPARENT, "wsgi.input": object()},
        [("traceparent", TRACEPARENT)],
        [(b"traceparent", TRACEPARENT.encode())],
        httpx.Headers({"traceparent": TRACEPARENT}),
        (("traceparent", TRACEPARENT), ("binary-bin", b"\xff")),
    ],
    ids=["mapping", "lists", "environ", "pairs", "bytes", "httpx", "metadata"],
)
def test_headers_of_any_kind(telemetry: Telemetry, headers: Any) -> None:
    """Any case, text or bytes, mappings and pairs."""
    with lifecycle.serving(headers, tracer_provider=telemetry.tracer_provider):
        pass
    assert the_span(telemetry)["parent_id"] == PARENT_ID


@pytest.mark.parametrize("headers", [7, "text", [1, 2], [("one",)], {"traceparent": object()}, {1: 2}], ids=range(6))
def test_hostile_headers_cost_the_parent_alone(telemetry: Telemetry, headers: Any) -> None:
    """The block runs all the same."""
    with lifecycle.serving(headers, tracer_provider=telemetry.tracer_provider) as request:
        request.output(2)
    span = the_span(telemetry)
    assert (span["parent_id"], ending_of(span)) == (None, COMPLETED)


def test_an_answer_that_nobody_marked(telemetry: Telemetry) -> None:
    """A block that ends is an answer that is there at once."""
    with lifecycle.serving(tracer_provider=telemetry.tracer_provider):
        pass
    assert [event["name"] for event in the_span(telemetry)["events"]] == ["arrive", "output", "complete"]


def test_inside_another_request(telemetry: Telemetry) -> None:
    """The block acts on the current request and leaves its end to its owner."""
    provider = telemetry.tracer_provider
    with lifecycle.serving(tracer_provider=provider) as outer:
        with lifecycle.serving({"traceparent": TRACEPARENT}, tracer_provider=provider) as inner:
            inner.set(model="tiny")
        assert (inner, outer.report) == (outer, None)
    assert ending_of(the_span(telemetry)) == COMPLETED


def test_without_an_sdk() -> None:
    """Everything is a no-op, and exceptions pass."""
    error = EngineError()

    def serve() -> None:
        with lifecycle.serving({"traceparent": TRACEPARENT}) as request:
            assert not request
            raise error

    with pytest.raises(EngineError) as caught:
        serve()
    assert caught.value is error


def test_every_thread_has_its_own(telemetry: Telemetry) -> None:
    """A threaded server: the block is current in its own thread alone."""

    def one(number: int) -> bool:
        with lifecycle.serving(tracer_provider=telemetry.tracer_provider) as request:
            request.set(request_id=str(number))
            return lifecycle.current() is request

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(one, range(20)))
    ids = {span["attributes"].get("inference.request.id") for span in telemetry.spans()}
    assert ids == {str(number) for number in range(20)}
