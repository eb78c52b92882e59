"""The requests of one WebSocket: which messages begin and end them, by the rule of their route.

A request is current in the task that received its first message, until that task asks for the next one.  It stays
current there even if it has ended before: a span that the app opened in between still lies on top of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from otel_lifecycle._core.endings import COMPLETE, Terminal, cancellation, failure
from otel_lifecycle._core.text import is_a
from otel_lifecycle._guard import guarded
from otel_lifecycle._http.reading import bytes_in, plain_text, text_in, value_in
from otel_lifecycle._http.routes import Route, Rule
from otel_lifecycle._log import say
from otel_lifecycle.asgi._disconnect_watch import Message, Receive, Send
from otel_lifecycle.asgi._response import LEFT
from otel_lifecycle.asgi._server_context import ServerContext
from otel_lifecycle.driver import Active, Driver
from otel_lifecycle.openai import FrameFeed

CLOSE_CODES: Final = {
    1000: COMPLETE,
    1001: cancellation("shutdown"),
    1003: failure("bad_input"),
    1007: failure("bad_input"),
    1009: failure("input_too_long"),
    1011: failure("engine_error"),
    1012: cancellation("shutdown"),
    1013: failure("queue_full"),
}
"""What a close code (RFC 6455, 7.4.1) of the app means for an open request; any other is its error type."""


class SocketRequests:
    """Stands between the app and the server's ``receive`` and ``send``; at most one request is open at a time."""

    __slots__ = ("_active", "_begin", "_count", "_driver", "_left", "_receive", "_route", "_send", "_server", "_tokens")

    def __init__(self, begin: Callable[..., Driver], route: Route, tokens: Any, receive: Receive, send: Send) -> None:
        self._begin = begin
        self._route = route
        self._tokens = tokens
        self._receive = receive
        self._send = send
        self._server = ServerContext()
        self._driver: Driver | None = None
        self._count: Callable[[Any], Any] | None = None
        self._active: Active | None = None
        self._left = False

    @property
    def _messages(self) -> Any:
        return self._route.messages

    async def receive(self) -> Message:
        """Return the next message; the app that asks for it is done with the one before, unless a rule says when."""
        self._deactivate()
        if self._messages.ends is None:
            guarded("a WebSocket", self._over)
        message = await self._server.call(self._receive)
        guarded("a WebSocket", self._received, message)
        return message

    async def send(self, message: Message) -> None:
        """Pass a message on, and look at it before and after."""
        guarded("a WebSocket", self._sending, message)
        try:
            await self._server.call(self._send, message)
        except OSError:
            guarded("a WebSocket", self._client_left)
            raise
        guarded("a WebSocket", self._sent, message)

    def leave(self, error: BaseException | None) -> None:
        """The app has returned, or ``error`` left it."""
        self._deactivate()
        guarded("a WebSocket", self._leave, error)

    def _received(self, message: Message) -> None:
        kind = text_in(message, "type")
        if kind == "websocket.disconnect":
            self._client_left()
        elif kind == "websocket.receive":
            data = _data_of(message)
            if self._driver is not None and self._says(self._messages.cancels, data, otherwise=False):
                self._driver.end(cancellation())
                self._driver = None
                return
            # An empty mapping of conditions begins a request, too.
            begins = self._says(self._messages.begins, data, otherwise=True)
            if begins or begins == {}:
                self._over()
                self._open(begins if isinstance(begins, dict) else None)

    def _open(self, conditions: dict[str, Any] | None) -> None:
        self._driver = self._begin(more=conditions)
        # A new feed for each request, because a feed holds the unfinished part of the last frame.
        self._count = FrameFeed(self._driver.reader()) if isinstance(self._tokens, str) else self._tokens
        self._active = self._driver.active()
        # Not a with block: the request stays current between this receive() and the next one of the same task.
        self._active.__enter__()
        self._server.enter()

    def _sending(self, message: Message) -> None:
        driver = self._driver
        if driver is None or text_in(message, "type") != "websocket.send" or self._count is None:
            return
        if isinstance(self._count, FrameFeed):
            self._count(_data_of(message))
        else:
            driver.item(driver.count_of(self._count, _data_of(message)))

    def _sent(self, message: Message) -> None:
        driver = self._driver
        if driver is None:
            return
        kind = text_in(message, "type")
        if kind == "websocket.close":
            self._end(_closed_by(value_in(message, "code")))
        elif kind == "websocket.send":
            driver.mark("delivered")
            word = self._says(self._messages.ends, _data_of(message), otherwise=False)
            if isinstance(word, str) and word:
                driver.finish(word)
                # Dropped at once: what the app still sends for it must not count for the next request.
                self._driver = None
            elif word:
                self._over()

    def _client_left(self) -> None:
        # A note and not the end: what the handler does next decides how the request ends.
        self._left = True
        if self._driver is not None:
            self._driver.mark("client_disconnected")

    def _leave(self, error: BaseException | None) -> None:
        driver, self._driver = self._driver, None
        if driver is None:
            return
        if error is not None:
            driver.leave(error)
        elif self._left:
            # The handler caught the exception that its framework raises for a departure, and returned.
            driver.end(LEFT)
        else:
            driver.answered()

    def _over(self) -> None:
        """The answer of the request that is open is complete."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.answered()

    def _end(self, terminal: Terminal) -> None:
        driver, self._driver = self._driver, None
        # A socket that the app closes normally has answered, perhaps with output that nothing marked.
        if driver is not None and terminal == COMPLETE:
            driver.answered()
        elif driver is not None:
            driver.end(terminal)

    def _deactivate(self) -> None:
        active, self._active = self._active, None
        if active is not None:
            active.__exit__(None, None, None)

    def _says(self, rule: Rule | None, data: str | bytes, *, otherwise: bool) -> Any:
        """Return what a rule gives for a message; a rule that raises gives False."""
        if rule is None:
            return otherwise
        return _ask(rule, data)


def _ask(rule: Rule, data: str | bytes) -> Any:
    try:
        said = rule(data)
        # Asked here, where what it gives may raise: its truth is all that counts of anything else.
        return said if type(said) in (dict, str, bool) else bool(said)
    except Exception as error:  # noqa: BLE001  # a rule of the server's: the message goes on, whatever the rule does
        say("rule", f"a rule for messages raised {type(error).__name__}; the message counts as none", error=error)
        return False


def _data_of(message: Message) -> str | bytes:
    text = value_in(message, "text")
    return plain_text(text) if is_a(text, str) else bytes_in(message, "bytes")


def _closed_by(code: object) -> Terminal:
    """Return how a close code ends a request; without one it is 1000."""
    if code is None:
        return COMPLETE
    known = type(code) is int and 0 < code < 5000
    return (CLOSE_CODES.get(code) or failure(str(code))) if known else failure(None)  # type: ignore[call-overload]  # an integer by the line above
