"""The receiving side of a request: what the app reads, and a watch for a client that leaves meanwhile.

An app that computes an answer does not listen.  Once it has read the whole body, or where there is none, the only
message that can still come is ``http.disconnect``.  A task of ours then waits for it, and is cancelled as soon as the
app itself asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from types import FunctionType
from typing import Any, Final, TypeAlias

from otel_lifecycle._http.reading import flag_in, text_in
from otel_lifecycle.asgi._server_context import ServerContext
from otel_lifecycle.asgi._starlette import loses_disconnect

Message: TypeAlias = "MutableMapping[str, Any]"
Receive: TypeAlias = "Callable[[], Awaitable[Message]]"
Send: TypeAlias = "Callable[[Message], Awaitable[None]]"

_DISCONNECT: Final = "http.disconnect"


class DisconnectWatch:
    """Hands messages to the app and calls ``left(told)`` when the client has gone.

    ``told``: whether the app itself was given the message, and it reached the code that works.  ``empty``: the request
    has no body, so the watch need not wait until the app has read it; the one message that says so is kept for the app.
    """

    __slots__ = ("_body", "_closed", "_gone", "_left", "_listeners", "_read", "_receive", "_server", "_watch")

    def __init__(
        self, receive: Receive, server: ServerContext, left: Callable[[bool], None], *, empty: bool = False
    ) -> None:
        self._receive = receive
        self._server = server
        self._left = left
        # An instrumentation makes a span of each message that the app is given through it.
        self._read = empty and _innermost(receive) is receive
        self._closed = False
        self._listeners = 0
        self._watch: asyncio.Task[None] | None = None
        self._body: Message | None = None
        self._gone: Message | None = None
        self._start()

    async def receive(self) -> Message:
        """Return the next message, as the server's own ``receive`` does."""
        kept, self._body = self._body, None
        if kept is not None:
            return kept
        # The watch has consumed the message, so the app gets it each time it asks, as uvicorn gives it.
        if self._gone is not None:
            self._left(not loses_disconnect())
            return self._gone
        # Only one task may wait in the server's receive(): of two, either may get a message, and the app could miss it.
        self._stop()
        # A count: an app may listen in several tasks at once, such as a handler and Starlette's StreamingResponse.
        self._listeners += 1
        message: Message | None = None
        try:
            message = await self._server.call(self._receive)
        finally:
            self._listeners -= 1
            # Also when the app's waiting was cancelled: the app no longer listens, so the watch has to.
            self._took(message)
        return message

    def _took(self, message: Message | None) -> None:
        """Look at what the app was given; None if its wait was cancelled."""
        if message is not None and text_in(message, "type") == _DISCONNECT:
            self.close()
            self._left(not loses_disconnect())
            return
        if message is not None and not flag_in(message, "more_body"):
            self._read = True
        self._start()

    def close(self) -> None:
        """Stop watching."""
        self._closed = True
        self._stop()

    def _start(self) -> None:
        if not self._read or self._closed or self._listeners or self._watch is not None:
            return
        try:
            # Only asyncio has tasks outside a task group; under trio the app has to listen itself.
            self._watch = asyncio.get_running_loop().create_task(self._wait(), name="otel-lifecycle-disconnect")
        except RuntimeError:
            self._closed = True

    def _stop(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    async def _wait(self) -> None:
        receive = _innermost(self._receive)
        try:
            message = await self._server.call(receive)
            if text_in(message, "type") != _DISCONNECT:
                # A request without a body still has one body message.  A server gives it once: keep it for the app.
                self._body = message
                self._read = not flag_in(message, "more_body")
                # The headers were wrong and a body follows.  The app reads it, and the watch starts again afterwards.
                if not self._read:
                    self._watch = None
                    return
                message = await self._server.call(receive)
        except Exception:  # noqa: BLE001  # the app gets the server's error when it asks
            return
        if text_in(message, "type") == _DISCONNECT and not self._closed:
            self._gone = message
            self._closed = True
            self._left(False)


def _innermost(receive: Receive) -> Receive:
    """Return the server's own ``receive`` where an instrumentation has wrapped it.

    Its wrapper would make a span of this waiting, which the app never asked for.
    """
    # A bound method would give its function's attribute, a function without its self.
    inner = getattr(receive, "__wrapped__", None) if isinstance(receive, FunctionType) else None
    return _innermost(inner) if callable(inner) else receive
