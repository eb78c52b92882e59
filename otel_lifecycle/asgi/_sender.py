"""The sending side of a request: each message is looked at before and after the server takes it.

With a ``Server-Timing`` header the head of the response waits for the first byte of the body, because only then the
stages up to it are over.  A framework sends the head of a stream before the model has begun.
"""

from __future__ import annotations

from otel_lifecycle._guard import guarded
from otel_lifecycle._http.reading import flag_in, text_in
from otel_lifecycle._http.server_timing import NAME, server_timing
from otel_lifecycle.asgi._disconnect_watch import Message, Send
from otel_lifecycle.asgi._response import HttpResponse, carries_bytes, is_last
from otel_lifecycle.asgi._server_context import ServerContext
from otel_lifecycle.driver import Driver


class ResponseSender:
    """``timed``: the request whose stages the head of the response tells; None for no header."""

    __slots__ = ("_held", "_response", "_send", "_server", "_timed")

    def __init__(self, send: Send, server: ServerContext, response: HttpResponse, timed: Driver | None) -> None:
        self._send = send
        self._server = server
        self._response = response
        self._timed = timed
        # A list, because an app may send an early hint or an empty part between the head and the first byte.
        self._held: list[Message] = []

    async def send(self, message: Message) -> None:
        """Pass a message on, or hold it until the first byte of the body comes."""
        if self._timed is not None and not carries_bytes(message) and not is_last(message):
            guarded("a response", self._response.sending, message)
            self._held.append(message)
            return
        if self._timed is not None:
            await self.release()
        # Without a token counter, the middle of a stream adds nothing: it passes at the cost of this check.
        telling = not (self._response.quiet and flag_in(message, "more_body"))
        if telling:
            guarded("a response", self._response.sending, message)
        await self._pass_on(message)
        if telling:
            guarded("a response", self._response.sent, message)

    async def release(self) -> None:
        """Send what is held, with the stages so far in its head."""
        # Cleared before sending: if the server refuses the head, a second call must not send it again.
        timed, self._timed = self._timed, None
        held, self._held = self._held, []
        for message in held:
            if timed is not None and text_in(message, "type") == "http.response.start":
                guarded("a Server-Timing header", _add_timing, message, timed)
            await self._pass_on(message)

    async def _pass_on(self, message: Message) -> None:
        try:
            if flag_in(message, "more_body") and not self._server.spans:
                # The server starts nothing that outlives this call before the last part is sent.
                await self._send(message)
            else:
                await self._server.call(self._send, message)
        # Since ASGI 2.4 a server raises an OSError from send() for a client that left; older ones drop the message.
        except OSError as error:
            guarded("a response", self._response.refused, message, error)
            raise


def _add_timing(message: Message, timed: Driver) -> None:
    value = server_timing(timed)
    if value is None:
        return
    try:
        # A new list: an app may use its list of headers for every response.
        message["headers"] = [*message.get("headers", ()), (NAME.lower().encode(), value.encode())]
    except Exception:  # noqa: BLE001  # the app's own headers, which the server is going to refuse
        return
