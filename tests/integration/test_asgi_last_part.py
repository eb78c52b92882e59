"""The last part of a response: the request ends when it goes to the server, which may take long to send it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle.asgi import LifecycleMiddleware
from tests.integration.support_http import PATH, event_names, outcome
from tests.support.plain import Span
from tests.support.telemetry import Telemetry

SLOW_S = 0.05
WHOLE = [(b"an answer", False)]
STREAM = [(b"one", True), (b"two", True), (b"", False)]
LAST_HAS_BYTES = [(b"one", True), (b"two", False)]


class SlowServer:
    """A server that takes a while to send the last part, and does ``meanwhile`` in that time.

    ``refuses``: its send() raises then.  ``leaves``: its receive() says so then.
    """

    def __init__(self, meanwhile: Callable[[], None] = lambda: None, *, refuses: bool = False, leaves: bool = False):
        self._meanwhile = meanwhile
        self._refuses = refuses
        self._leaves = leaves
        self._gone = asyncio.Event()
        self._asked = False
        self.started = self.reached = self.done = 0.0

    async def receive(self) -> dict[str, Any]:
        """Give the body once, and then the departure."""
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"{}", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """Take a message."""
        if message["type"] != "http.response.body" or message["more_body"]:
            return
        self.reached = time.perf_counter()
        self._meanwhile()
        if self._leaves:
            self._gone.set()
        await asyncio.sleep(SLOW_S)
        if self._refuses:
            raise OSError("the client has gone")
        self.done = time.perf_counter()


def serve(
    telemetry: Telemetry,
    parts: list[tuple[bytes, bool]],
    server: Callable[[], SlowServer] = SlowServer,
    *,
    status: int = 200,
    first: Callable[[], None] = lambda: None,
) -> tuple[SlowServer, Span]:
    """Answer one request; return the server, and the request's span."""

    async def app(scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        await receive()
        first()
        await send({"type": "http.response.start", "status": status, "headers": []})
        for body, more in parts:
            await send({"type": "http.response.body", "body": body, "more_body": more})

    async def run() -> SlowServer:
        made = server()
        middleware = LifecycleMiddleware(app, routes=[PATH], tracer_provider=telemetry.tracer_provider)
        scope = {"type": "http", "method": "POST", "path": PATH, "headers": [(b"content-length", b"2")]}
        made.started = time.perf_counter()
        with contextlib.suppress(OSError):
            await middleware(scope, made.receive, made.send)
        return made

    return asyncio.run(run()), telemetry.span("chat")


@pytest.mark.parametrize("parts", [WHOLE, STREAM, LAST_HAS_BYTES], ids=["whole", "stream", "last has bytes"])
@pytest.mark.parametrize("status", [200, 500])
def test_the_end_is_before_the_server_has_the_last_part(
    telemetry: Telemetry, parts: list[tuple[bytes, bool]], status: int
) -> None:
    """A client may be done before send() returns: its time is never below ours."""
    server, span = serve(telemetry, parts, status=status)
    assert span["attributes"]["inference.e2e"] <= server.reached - server.started
    assert span["attributes"]["inference.violations"] == 0
    assert event_names(span)[-1] == ("complete" if status == 200 else "fail")


@pytest.mark.parametrize("parts", [WHOLE, STREAM, LAST_HAS_BYTES], ids=["whole", "stream", "last has bytes"])
def test_delivered_lies_between_the_output_and_the_end(telemetry: Telemetry, parts: list[tuple[bytes, bool]]) -> None:
    """The first byte of a whole answer goes with the last one."""
    _, span = serve(telemetry, parts)
    attributes = span["attributes"]
    assert attributes["inference.delivered"] <= attributes["inference.e2e"]
    assert event_names(span)[-2:] == (["delivered", "complete"] if parts is WHOLE else ["output", "complete"])


COMPLETED = {"inference.outcome": "completed", "inference.client.disconnected": True, "inference.legal": True}
CANCELLED = {
    "inference.outcome": "cancelled",
    "inference.end.reason": "client_disconnected",
    "inference.failure.stage": "decode",
    "inference.client.disconnected": True,
    "inference.legal": True,
}


@pytest.mark.parametrize(
    ("parts", "server", "expected"),
    [
        # The app made all of it, and nothing stopped it.
        pytest.param(WHOLE, lambda: SlowServer(leaves=True), COMPLETED, id="whole, receive says so"),
        pytest.param(STREAM, lambda: SlowServer(leaves=True), COMPLETED, id="stream, receive says so"),
        pytest.param(WHOLE, lambda: SlowServer(refuses=True), COMPLETED, id="whole, send refuses"),
        # The departure left the app as an exception, before its stream was over.
        pytest.param(STREAM, lambda: SlowServer(refuses=True), CANCELLED, id="stream, send refuses"),
    ],
)
def test_a_client_that_leaves_during_the_last_part(
    telemetry: Telemetry, parts: list[tuple[bytes, bool]], server: Callable[[], SlowServer], expected: dict[str, Any]
) -> None:
    """Its departure is noted, comes before the end, and nothing says that it was given a whole answer."""
    made, span = serve(telemetry, parts, server)
    assert outcome(span) == expected
    assert event_names(span)[-2] == "client_disconnected"
    assert ("inference.delivered" in span["attributes"]) is (parts is STREAM)
    assert span["attributes"]["inference.violations"] == 0
    assert span["attributes"]["inference.e2e"] >= made.reached - made.started


def test_a_token_that_is_marked_during_the_last_part(telemetry: Telemetry) -> None:
    """It counts, and the end comes after it."""
    held: list[lifecycle.Request] = []

    def first() -> None:
        held.append(lifecycle.current())
        held[0].token()

    def meanwhile() -> None:
        held[0].token()

    made, span = serve(telemetry, STREAM, lambda: SlowServer(meanwhile), first=first)
    assert span["attributes"]["inference.violations"] == 0
    assert span["attributes"]["inference.streamed_tokens"] == 2
    assert span["attributes"]["inference.e2e"] >= made.reached - made.started
