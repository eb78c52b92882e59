"""Real servers on loopback, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn

if TYPE_CHECKING:
    from tests.support.plain import Span
    from tests.support.telemetry import Telemetry

PATH = "/v1/chat/completions"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"


class Server:
    """A uvicorn in a thread of this process; ``base`` is its URL, ``errors`` what its loop could not place."""

    def __init__(self, app: Any, *, lifespan: Any = "off", **settings: Any) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.base = f"http://127.0.0.1:{self.port}"
        self.errors: list[dict[str, Any]] = []
        config = uvicorn.Config(app, log_config=None, lifespan=lifespan, timeout_graceful_shutdown=5, **settings)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="test-server", daemon=True)

    def _run(self) -> None:
        async def serve() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: self.errors.append(context))
            await self._server.serve([self._socket])

        asyncio.run(serve())

    def start(self) -> None:
        """Return when it listens."""
        self._thread.start()
        wait_for(lambda: self._server.started)

    def stop(self) -> None:
        """Return when every request has ended and the thread is gone."""
        self._server.should_exit = True
        self._thread.join(10)
        self._server.force_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive(), "the server does not stop"


@contextmanager
def serving(app: Any, **settings: Any) -> Iterator[Server]:
    """Serve an ASGI app over HTTP while the block runs; ``settings`` are uvicorn's."""
    server = Server(app, **settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()
    assert server.errors == []


def wait_for(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Return when the condition holds; AssertionError after the time."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"{condition} did not come true in {seconds} s"
        time.sleep(0.005)


def leave_after(port: int, path: str, part: bytes, times: int = 0, body: bytes = b"{}", head: str = "") -> bytes:
    """POST, read until ``part`` has come that many times, and close the connection; returns what came."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        head = head or f"POST {path} HTTP/1.1\r\nhost: localhost\r\n"
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        read = b""
        until = time.monotonic() + 10
        while read.count(part) < times:
            assert time.monotonic() < until, f"{part!r} did not come {times} times: {read[-200:]!r}"
            read += connection.recv(65536)
        return read


def frame(text: str | None = None, **more: Any) -> bytes:
    """One event of an OpenAI-compatible stream."""
    delta = {"role": "assistant"} if text is None else {"content": text}
    body = {"id": "chat-1", "model": "tiny", "choices": [{"index": 0, "delta": delta, **more}]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def request_span(telemetry: Telemetry, name: str = "chat") -> Span:
    """The one request span, once it is there."""
    wait_for(lambda: telemetry.spans(name))
    return telemetry.span(name)


def outcome(span: Span) -> dict[str, Any]:
    """Everything a request span says about how the request ended."""
    keys = (
        "inference.outcome",
        "inference.end.reason",
        "error.type",
        "inference.failure.stage",
        "inference.client.disconnected",
        "inference.legal",
    )
    return {key: span["attributes"][key] for key in keys if key in span["attributes"]}


def event_names(span: Span) -> list[str]:
    """The names of a span's events in order."""
    return [event["name"] for event in span["events"]]


def post(server: Server, path: str = PATH, **arguments: Any) -> httpx.Response:
    """POST to a server."""
    with httpx.Client(base_url=server.base, timeout=20, trust_env=False) as client:
        return client.post(path, **arguments)


def token_count(span: Span) -> Any:
    """How many tokens a request span counts; None if that is not known."""
    return span["attributes"].get("inference.streamed_tokens")
