"""One HTTP exchange: what its messages say about the request, and how it ends.

The request ends with the last part of its response, or with what leaves the app before.  The response of an error waits
for the exception behind it: a framework answers 500 first and lets the exception go on afterwards.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import Any, Final

from otel_lifecycle._core.endings import Terminal, cancellation, failure, timeout
from otel_lifecycle._request.clock import NOW, AtNs, monotonic
from otel_lifecycle.asgi._frames import BodyCounter
from otel_lifecycle.asgi._inbox import Message
from otel_lifecycle.driver import Driver

_LEFT: Final = "client_disconnected"
_BACKGROUND: Final = frozenset({"starlette.background", "litestar.background_tasks"})

STOPS_WITHIN_NS: Final = 500_000_000
"""How soon after an app was told that its client left its response is over, if that is why."""

_STATUSES: Final = {
    400: failure("bad_input"),
    404: failure("bad_input"),
    405: failure("bad_input"),
    408: timeout("deadline"),
    413: failure("input_too_long"),
    415: failure("bad_input"),
    422: failure("bad_input"),
    429: failure("rate_limited"),
    499: cancellation(_LEFT),
    503: failure("queue_full"),
    504: timeout("deadline"),
    507: failure("out_of_memory"),
}
"""What a status means; of any other from 400 on, the status itself is the error type, as HTTP's conventions have it."""


class Exchange:
    """What is known of a response so far.  ``owned``: the request's end is ours."""

    __slots__ = (
        "_counter",
        "_driver",
        "_told_at",
        "done_at",
        "left",
        "quiet",
        "send_error",
        "status",
        "streamed",
    )

    def __init__(self, drive: Driver, tokens: Any) -> None:
        self._driver = drive
        self._counter = None if tokens is None else BodyCounter(drive, tokens)
        self.status: int | None = None
        self.done_at: int | None = None
        self.streamed = False
        self.quiet = False
        self.left = False
        self._told_at: int | None = None
        self.send_error: BaseException | None = None

    # ------------------------------------------------------------------------------------------------- messages

    def client_left(self, told: bool) -> None:
        """Note that the client left, unless the response was complete: then every server says so.

        ``told``: whether the app was, too.
        """
        if self.done_at is not None:
            return
        if told and self._told_at is None:
            self._told_at = monotonic_ns()
        if not self.left:
            self.left = True
            self._driver.mark("client_disconnected")

    def sending(self, message: Message) -> None:
        """Take note of a message before the server has it."""
        if message["type"] == "http.response.start":
            self.status = message.get("status")
            if self._counter is not None:
                self._counter.begin(self.status or 0, _headers(message))
        elif self._counter is not None and message["type"] == "http.response.body":
            self._counter.feed(bytes(message.get("body") or b""), last=is_last(message))
        if self._driver.owned and is_last(message) and self._of_response() is None:
            # Whatever nobody marked by now is an answer that is simply there.
            self._driver.answer(None)

    def sent(self, message: Message) -> None:
        """Take note of a message that the server has taken."""
        if self.done_at is None and carries_bytes(message):
            self.quiet = self._counter is None
            if not self.left:
                self._driver.mark("delivered")
        if is_last(message):
            self.finished()
        elif message["type"] != "http.response.start":
            self.streamed = True

    def refused(self, message: Message, error: OSError) -> None:
        """Take note that the server could not send: the client has gone."""
        self.send_error = error
        self.client_left(told=False)
        if is_last(message):
            # All of the answer was made; that nobody wanted it is noted.
            self.finished()

    def finished(self) -> None:
        """The last part of the response is out; what comes after it, a background task say, is not the request's."""
        if self.done_at is not None:
            return
        self.done_at = monotonic_ns()
        if not self._awaits_error:
            self._end(None)
        else:
            self._driver.end_unless(self._ending(None), at_ns=self._ended_at())

    @property
    def _awaits_error(self) -> bool:
        """Whether the response is one that its own exception may follow.

        A stream that breaks below Starlette's BaseHTTPMiddleware is ended in good order first.
        """
        return self.status is None or self.status >= 500 or self.streamed

    # ------------------------------------------------------------------------------------------------- the end

    def leave(self, error: BaseException | None) -> None:
        """The app has returned, or ``error`` left it: end the request unless it has ended."""
        if self.done_at is None or self._awaits_error:
            self._end(None if error is not None and _is_of_background(error) else error)

    def _end(self, error: BaseException | None) -> None:
        if not self._driver.ended:
            self._driver.end(self._ending(error), at_ns=self._ended_at())

    def _ended_at(self) -> AtNs:
        """The end of the response where that is over, in epoch nanoseconds; else now."""
        if self.done_at is None or not self._awaits_error:
            return NOW
        return monotonic(ns=self.done_at)

    def _ending(self, error: BaseException | None) -> Terminal | None:
        """Return how the request ends; None if it was answered."""
        if error is not None:
            return self._of_error(error)
        if self.done_at is None:
            return cancellation(_LEFT) if self.left else failure(None)
        return self._of_response()

    def _of_response(self) -> Terminal | None:
        """Return how a response that is over ends the request; None if it answered it."""
        if self._app_knows:
            # It was told, and stopped: what it sent last it sent to nobody.
            return cancellation(_LEFT)
        if self.status is None:
            return failure(None)
        if self.status < 300:
            return None
        if self.status < 400:
            # Sent elsewhere: neither answered here nor failed.
            return cancellation(None)
        if self._counter is not None and self._counter.refusal is not None:
            return failure(self._counter.refusal)
        return _STATUSES.get(self.status) or failure(str(self.status))

    @property
    def _app_knows(self) -> bool:
        """Whether the app has been told that its client left, and is stopping.

        It has not stopped if its stream ran to the end.  Else only the time since tells it from an app whose answer got
        lost on the way: Starlette's BaseHTTPMiddleware takes the message and the handler below it works on.
        """
        stopping = self._told_at is not None and monotonic_ns() - self._told_at <= STOPS_WITHIN_NS
        return stopping and not self._driver.exhausted

    def _of_error(self, error: BaseException) -> Terminal:
        leaves = _leaves(error)
        one = leaves[0] if len(leaves) == 1 else error
        ending = self._driver.terminal_for(one) or failure(None)
        if self.left and (ending == cancellation(None) or all(map(self._is_departure, leaves))):
            return cancellation(_LEFT)
        return ending

    def _is_departure(self, error: BaseException) -> bool:
        """Whether the error only says that the client left: it came of a send that failed, or bears the name."""
        seen: BaseException | None = error
        for _ in range(8):
            if seen is None:
                return False
            if seen is self.send_error or type(seen).__name__ == "ClientDisconnect":
                return True
            seen = seen.__cause__ or seen.__context__
        return False


def _leaves(error: BaseException) -> list[BaseException]:
    """Return the exceptions of a group, as the task groups of anyio raise them even for one; of any other, itself."""
    inner = getattr(error, "exceptions", None)
    if inner and isinstance(inner, tuple):
        return [leaf for one in inner for leaf in _leaves(one)]
    return [error]


def carries_bytes(message: Message) -> bool:
    """Whether the message puts the first bytes of a body on their way."""
    if message["type"] == "http.response.body":
        return bool(message.get("body"))
    return message["type"] in {"http.response.pathsend", "http.response.zerocopysend"}


def is_last(message: Message) -> bool:
    """Whether the message is the last one with a part of the body."""
    if message["type"] in {"http.response.body", "http.response.zerocopysend"}:
        return not message.get("more_body", False)
    return bool(message["type"] == "http.response.pathsend")


def _headers(message: Message) -> list[tuple[bytes, bytes]]:
    """Return the headers of a response, which may come as an iterable that can be read only once."""
    if not isinstance(message.get("headers", ()), (list, tuple)):
        message["headers"] = list(message["headers"])
    headers: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
    return headers


def _is_of_background(error: BaseException) -> bool:
    """Whether a background task raised it, which runs when the response is out and is no part of the request."""
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_globals.get("__name__") in _BACKGROUND:
            return True
        traceback = traceback.tb_next
    return False
