"""The end of the app: what ``configure()`` still holds is sent before the server hears that the app is done.

uvicorn dies of its signal right afterwards, without running what Python runs at exit.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from otel_lifecycle._configuration.setup import flush
from otel_lifecycle.asgi._inbox import Message

FLUSH_SECONDS: Final = 5.0
"""How long the end of the app may wait for exporters; a Collector that hangs costs no more."""

LAST: Final = ("lifespan.shutdown.complete", "lifespan.shutdown.failed")


async def flush_at_shutdown(send: Any, message: Message) -> None:
    """Pass a lifespan message on; before the last one, flush.

    The event loop waits meanwhile: every connection is closed by then, and it may be any library's loop.
    """
    if message["type"] in LAST:
        thread = threading.Thread(target=flush, name="otel-lifecycle-flush", daemon=True)
        thread.start()
        thread.join(FLUSH_SECONDS)
    await send(message)
