"""The start and the end of the app.

At the start, a forked worker builds its exporters, so that its first request does not wait for them.  At the end, what
``configure()`` still holds is sent before the server hears that the app is done: uvicorn dies of its signal right
afterwards, without running what Python runs at exit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from otel_lifecycle._configuration.setup import flush, prepare
from otel_lifecycle.asgi._disconnect_watch import Message, Receive

FLUSH_SECONDS: Final = 5.0
"""How long the end of the app may wait for exporters; a Collector that hangs costs no more."""

LAST: Final = ("lifespan.shutdown.complete", "lifespan.shutdown.failed")


async def live(app: Callable[[Any, Any, Any], Awaitable[None]], scope: Message, receive: Receive, send: Any) -> None:
    """Pass the lifespan of an app on."""

    async def flushed(message: Message) -> None:
        # The event loop waits meanwhile: every connection is closed by then, and it may be any library's loop.
        if message["type"] in LAST:
            flush(FLUSH_SECONDS)
        await send(message)

    # Before the app starts: its own start-up may make spans already.
    prepare()
    await app(scope, receive, flushed)
