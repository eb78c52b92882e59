"""The same streaming server as an ASGI app and as a WSGI app: ``GET /?tokens=N&gap=SECONDS``.

Every answer bears the process it came from in the header ``x-pid``.  By the environment: ``WITHOUT_CONFIGURE`` leaves
telemetry to whoever imports this, ``SHUTDOWN_IN_LIFESPAN`` ends it when the server stops serving.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any
from urllib.parse import parse_qs

import otel_lifecycle as lifecycle

if "WITHOUT_CONFIGURE" not in os.environ:
    lifecycle.configure()


def _asked(query: str) -> tuple[int, float]:
    asked = parse_qs(query)
    return int(asked.get("tokens", ["3"])[0]), float(asked.get("gap", ["0"])[0])


async def asgi(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
    """Serve one connection's worth of ASGI."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
        return
    tokens, gap = _asked(scope["query_string"].decode())
    with lifecycle.request(model="tiny") as request:
        pid = str(os.getpid()).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-pid", pid)]})
        with request.stage("queue"):
            await asyncio.sleep(0)
        with request.stage("preprocessing"):
            pass
        async for token in request.stream(_generate(tokens, gap)):
            await send({"type": "http.response.body", "body": token, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _generate(tokens: int, gap: float) -> AsyncIterator[bytes]:
    for number in range(tokens):
        await asyncio.sleep(gap)
        yield b"token %d\n" % number


async def _lifespan(receive: Callable[..., Any], send: Callable[..., Any]) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.shutdown" and "SHUTDOWN_IN_LIFESPAN" in os.environ:
            await asyncio.to_thread(lifecycle.shutdown)
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def wsgi(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Serve one request of WSGI."""
    tokens, gap = _asked(environ["QUERY_STRING"])
    start_response("200 OK", [("x-pid", str(os.getpid()))])
    return _answer(tokens, gap)


@lifecycle.traced(model="tiny")
def _answer(tokens: int, gap: float) -> Iterator[bytes]:
    for number in range(tokens):
        time.sleep(gap)
        yield b"token %d\n" % number
