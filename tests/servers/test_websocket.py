"""WebSockets: several requests on one socket, by the rule of their route, and clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import websockets.asyncio.server
import websockets.sync.client
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

import otel_lifecycle as lifecycle
from otel_lifecycle.asgi import LifecycleMiddleware, Messages, Route
from otel_lifecycle.errors import ConfigurationError
from tests.integration.support_http import PARENT_ID, TRACE_ID, TRACEPARENT, serving, wait_for
from tests.servers.support import COMPLETED, DEADLINE, FAILED, LEFT, LoopThread, async_engine, ending_of, request_spans
from tests.support.plain import Span
from tests.support.telemetry import Telemetry

CANCELLED = {"inference.outcome": "cancelled"}


async def tokens_of(kind: str) -> AsyncIterator[str]:
    """The answer to one message, marked on the current request."""
    current = lifecycle.current()
    async with current.stage("queue"):
        pass
    async with current.stage("preprocessing"):
        pass
    async for token in current.stream(async_engine(kind)):
        yield token


async def chat(socket: WebSocket) -> None:
    """One message, one answer, then the next."""
    await socket.accept()
    try:
        while True:
            kind = await socket.receive_text()
            async for token in tokens_of(kind):
                await socket.send_text(token)
            await socket.send_text("end")
    except WebSocketDisconnect:
        pass


async def swallow(socket: WebSocket) -> None:
    """A handler that lets a departure through."""
    await socket.accept()
    async for token in tokens_of(await socket.receive_text()):
        await socket.send_text(token)


async def refuse(socket: WebSocket) -> None:
    """A handler that closes with the code it is sent."""
    await socket.accept()
    await socket.close(int(await socket.receive_text()))


@contextmanager
def served(telemetry: Telemetry, handler: Any, messages: Messages, **options: Any) -> Iterator[str]:
    """Serve a handler below /ws with a rule; gives the address."""
    inner = Starlette(routes=[WebSocketRoute("/ws", handler)])
    app = LifecycleMiddleware(
        inner, routes=[Route("/ws", messages=messages, **options)], tracer_provider=telemetry.tracer_provider
    )
    with serving(app, ws="websockets-sansio") as server:
        yield f"ws://127.0.0.1:{server.port}/ws"


def connect(address: str) -> Any:
    """Connect as a caller with a trace."""
    return websockets.sync.client.connect(address, additional_headers={"traceparent": TRACEPARENT}, proxy=None)


def converse(address: str, *kinds: str) -> list[list[str]]:
    """Send one message after the other, each after the answer to the one before; returns the answers."""
    answers = []
    with connect(address) as client:
        for kind in kinds:
            client.send(kind)
            answers.append(list(iter(client.recv, "end")))
    return answers


def ended(telemetry: Telemetry, count: int) -> list[Span]:
    """So many requests, in the order they ended, each legal and below the caller."""
    wait_for(lambda: len(request_spans(telemetry)) == count)
    spans = request_spans(telemetry)
    assert [(span["trace_id"], span["parent_id"]) for span in spans] == [(TRACE_ID, PARENT_ID)] * count
    assert all(span["attributes"]["inference.legal"] for span in spans)
    assert sum(point["value"] or 0 for point in telemetry.points("inference.active_requests")) == 0
    return spans


RULES = [
    Messages(),
    Messages(ends=lambda data: data == "end"),
    Messages(begins=lambda data: {"model": "tiny"}, ends=lambda data: "stop" if data == "end" else None),
]


@pytest.mark.parametrize("messages", RULES, ids=["next", "ends", "words"])
def test_several_requests_on_one_socket(telemetry: Telemetry, messages: Messages) -> None:
    """Each message is a request of its own, with its stages and tokens."""
    with served(telemetry, chat, messages) as address:
        assert converse(address, "good", "good") == [["t0 ", "t1 ", "t2 "]] * 2
        spans = ended(telemetry, 2)
    assert [(ending_of(span), span["attributes"]["inference.streamed_tokens"]) for span in spans] == [
        (COMPLETED, 3)
    ] * 2
    assert spans[0]["end_ns"] <= spans[1]["start_ns"]


def test_messages_that_begin_nothing(telemetry: Telemetry) -> None:
    """A rule that says no, and one that raises."""

    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        for _ in range(3):
            text = await socket.receive_text()
            await socket.send_text(f"{bool(lifecycle.current())} {text}")
        await socket.send_text("end")

    messages = Messages(begins=lambda data: {"operation": json.loads(data)["op"]} if data[:1] != "p" else False)
    with served(telemetry, echo, messages) as address, connect(address) as client:
        for text in ("ping", '{"op": "chat"}', "{"):
            client.send(text)
        assert list(iter(client.recv, "end")) == ["False ping", 'True {"op": "chat"}', "False {"]
        (span,) = ended(telemetry, 1)
    assert span["name"] == "chat"


def test_tokens_are_counted_from_the_messages(telemetry: Telemetry) -> None:
    """A handler that marks nothing: a counter of the route's."""

    async def handler(socket: WebSocket) -> None:
        await socket.accept()
        await socket.receive_text()
        for token in ("t0", "t1", "end"):
            await socket.send_text(token)

    with served(telemetry, handler, Messages(), tokens=lambda data: int(data != "end")) as address:
        assert converse(address, "good") == [["t0", "t1"]]
        (span,) = ended(telemetry, 1)
    assert (ending_of(span), span["attributes"]["inference.streamed_tokens"]) == (COMPLETED, 2)


@pytest.mark.parametrize("handler", [chat, swallow])
def test_a_client_that_leaves(telemetry: Telemetry, handler: Any) -> None:
    """In the middle of an answer: cancelled, whether the handler catches what its framework raises or not."""
    with served(telemetry, handler, Messages()) as address:
        with connect(address) as client:
            client.send("endless")
            client.recv()
        (span,) = ended(telemetry, 1)
    assert ending_of(span) == LEFT


def test_a_client_that_cancels(telemetry: Telemetry) -> None:
    """A message may give up the request that is open; the socket goes on."""

    async def handler(socket: WebSocket) -> None:
        await socket.accept()
        await socket.receive_text()
        await socket.receive_text()
        await socket.send_text("stopped")

    messages = Messages(
        begins=lambda data: data == "go", ends=lambda data: data == "end", cancels=lambda data: data == "cancel"
    )
    with served(telemetry, handler, messages) as address, connect(address) as client:
        client.send("go")
        client.send("cancel")
        assert client.recv() == "stopped"
        (span,) = ended(telemetry, 1)
    assert ending_of(span) == CANCELLED


@pytest.mark.parametrize("kind", ["broken", "cut"])
def test_an_error_of_the_engine(telemetry: Telemetry, kind: str) -> None:
    """Before the first message of the answer or after it."""
    with served(telemetry, chat, Messages()) as address:
        with pytest.raises(websockets.exceptions.ConnectionClosed):
            converse(address, kind)
        (span,) = ended(telemetry, 1)
    assert ending_of(span) == FAILED


CODES = [
    (1000, COMPLETED),
    (1009, {"inference.outcome": "failed", "inference.end.reason": "input_too_long", "error.type": "input_too_long"}),
    (1013, {"inference.outcome": "failed", "inference.end.reason": "queue_full", "error.type": "queue_full"}),
    (4000, {"inference.outcome": "failed", "error.type": "4000"}),
]


@pytest.mark.parametrize(("code", "ending"), CODES)
def test_a_socket_that_is_closed_on_a_request(telemetry: Telemetry, code: int, ending: dict[str, Any]) -> None:
    """The close code of the app is how the request ended."""
    with served(telemetry, refuse, Messages()) as address:
        with connect(address) as client:
            client.send(str(code))
            with pytest.raises(websockets.exceptions.ConnectionClosed):
                client.recv()
        (span,) = ended(telemetry, 1)
    assert ending_of(span) == ending


def test_a_deadline(telemetry: Telemetry) -> None:
    """The handler's own timeout at the deadline of the route; and the socket goes on with the next message."""

    async def handler(socket: WebSocket) -> None:
        await socket.accept()

        async def answer(kind: str) -> None:
            async for token in tokens_of(kind):
                await socket.send_text(token)

        for _ in range(2):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(answer(await socket.receive_text()), 0.1)
            await socket.send_text("end")

    with served(telemetry, handler, Messages(), deadline=0.1) as address:
        _, answer = converse(address, "endless", "good")
        assert answer == ["t0 ", "t1 ", "t2 "]
        spans = ended(telemetry, 2)
    assert [ending_of(span) for span in spans] == [DEADLINE, COMPLETED]


def test_a_server_that_cancels_at_the_deadline(telemetry: Telemetry) -> None:
    """The timeout lies around the app, as a server's own does: its cancellation is the deadline."""

    def limited(app: Any) -> Any:
        async def call(scope: Any, receive: Any, send: Any) -> None:
            with contextlib.suppress(asyncio.TimeoutError):
                # Long after the deadline: a slow handshake is a part of this time, and not of the request's.
                await asyncio.wait_for(app(scope, receive, send), 2)

        return call

    inner = Starlette(routes=[WebSocketRoute("/ws", swallow)])
    routes = [Route("/ws", messages=Messages(), deadline=0.05)]
    app = limited(LifecycleMiddleware(inner, routes=routes, tracer_provider=telemetry.tracer_provider))
    with serving(app, ws="websockets-sansio") as server:
        with connect(f"ws://127.0.0.1:{server.port}/ws") as client:
            client.send("endless")
            with pytest.raises(websockets.exceptions.ConnectionClosed):
                list(iter(client.recv, "end"))
        (span,) = ended(telemetry, 1)
    assert ending_of(span) == DEADLINE


def test_a_route_of_http_follows_no_socket(telemetry: Telemetry) -> None:
    """Nor does one of sockets follow HTTP."""

    async def handler(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text(str(bool(lifecycle.current())))

    inner = Starlette(routes=[WebSocketRoute("/ws", handler)])
    app = LifecycleMiddleware(inner, routes=["/ws"], tracer_provider=telemetry.tracer_provider)
    with serving(app, ws="websockets-sansio") as server, connect(f"ws://127.0.0.1:{server.port}/ws") as client:
        assert client.recv() == "False"
    assert request_spans(telemetry) == []


@pytest.mark.parametrize("messages", [{}, 7, Messages(begins=7), Messages(ends="end")])  # type: ignore[arg-type]
def test_rules_that_make_no_sense_are_refused(messages: Any) -> None:
    """At set-up."""
    with pytest.raises(ConfigurationError):
        Route("/ws", messages=messages)


def test_the_websockets_library(telemetry: Telemetry) -> None:
    """Without ASGI: a block for each message; a client that leaves is a cancel (C114); a deadline, and errors."""
    provider = telemetry.tracer_provider

    async def handler(socket: Any) -> None:
        async for kind in socket:
            async with lifecycle.serving(socket.request.headers, tracer_provider=provider):
                if kind == "late":
                    lifecycle.current().set(deadline=0.05)
                await asyncio.wait_for(reply(socket, kind), 0.05 if kind == "late" else None)
                await socket.send("end")

    async def reply(socket: Any, kind: str) -> None:
        async for token in tokens_of("endless" if kind == "late" else kind):
            await socket.send(token)

    async def start() -> Any:
        return await websockets.asyncio.server.serve(handler, "127.0.0.1", 0)

    loop = LoopThread()
    server = loop.run(start)
    address = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        assert converse(address, "good") == [["t0 ", "t1 ", "t2 "]]
        with connect(address) as client:
            client.send("endless")
            client.recv()
        for kind in ("late", "broken", "cut"):
            with pytest.raises(websockets.exceptions.ConnectionClosed):
                converse(address, kind)
        spans = ended(telemetry, 5)
    finally:
        server.close()
        loop.run(lambda: asyncio.wait_for(server.wait_closed(), 10))
        loop.stop()
    assert [ending_of(span) for span in spans] == [COMPLETED, LEFT, DEADLINE, FAILED, FAILED]
