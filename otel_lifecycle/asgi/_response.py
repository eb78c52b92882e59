"""One HTTP response: what its messages say about the request, and how it ends.

The request ends with the last part of its response, or with the exception that leaves the app before it.  After an
error response we wait for its exception: a framework answers 500 first and raises the exception afterwards.

A client that left is a note, unless the app stopped for it.  An app stops in one of three ways: an exception leaves it,
it returns without finishing its response, or it finishes early.  Only the last one needs judgement, see
:meth:`HttpResponse._stopped`.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic_ns
from typing import Any, Final

from otel_lifecycle._core.endings import COMPLETE, Terminal, cancellation, failure, of_status, read_status
from otel_lifecycle._core.exceptions_read import class_name, leaves
from otel_lifecycle._http.body_tokens import BodyTokens
from otel_lifecycle._http.reading import bytes_in, flag_in, headers_in, text_in, value_in
from otel_lifecycle._request.clock import NOW, monotonic
from otel_lifecycle.asgi._disconnect_watch import Message
from otel_lifecycle.driver import Driver

LEFT: Final = cancellation("client_disconnected")
MAX_CAUSES: Final = 8
"""Exceptions looked at behind one that left the app: frameworks wrap two or three deep, and chains can be endless."""

# The modules that run a task after the response.  Where a release moves one of them, an error of such a task counts
# as the request's own.
_BACKGROUND: Final = frozenset({"starlette.background", "litestar.background_tasks"})


class HttpResponse:
    """What is known about a response so far."""

    __slots__ = (
        "_counter",
        "_done_ns",
        "_driver",
        "_end",
        "_last",
        "_parts_since_told",
        "_parts_to_come",
        "_progress_when_told",
        "_send_error",
        "_status",
        "_streamed",
        "quiet",
    )

    def __init__(self, driver: Driver, tokens: Any) -> None:
        self._driver = driver
        self._counter = None if tokens is None else BodyTokens(driver, tokens)
        self._status: int | None = None
        self._streamed = False
        self._done_ns: int | None = None
        self._last: tuple[int, tuple[str, int]] | None = None
        self._end: Terminal = failure(None)
        self._progress_when_told: tuple[str, int] | None = None
        self._parts_since_told = 0
        self._parts_to_come = 0
        self._send_error: BaseException | None = None
        self.quiet = False

    def client_left(self, told: bool) -> None:
        """Note that the client left, unless the response is out: after it, every server sends this message.

        ``told``: whether the app was, too.
        """
        if self._done_ns is not None:
            return
        if told:
            # From now on every message matters, also in the middle of a stream.
            self.quiet = False
            if self._progress_when_told is None:
                self._progress_when_told = self._progress
                # In the middle of a stream, a thread may still be making one more part.
                self._parts_to_come = 1 if self._status is not None else 0
        if not self._driver.client_left:
            self._driver.mark("client_disconnected")

    def sending(self, message: Message) -> None:
        """Take note of a message before the server has it."""
        kind, last = text_in(message, "type"), is_last(message)
        if kind == "http.response.start":
            self._status = read_status(value_in(message, "status"))
            if self._counter is not None:
                self._counter.begin(self._status or 0, headers_in(message))
        elif self._counter is not None and kind == "http.response.body":
            self._counter.feed(bytes_in(message, "body"), last=last)
        # The last message proves nothing: an app that stops early also closes its response.
        if self._progress_when_told is not None and not last and carries_bytes(message):
            self._parts_since_told += 1
        if last:
            self._sending_last()

    def _sending_last(self) -> None:
        """Judge the response before the server has its last part: waiting for a slow client is not part of it."""
        self._end = self._of_response()
        if self._end == COMPLETE and self._driver.owned:
            # Nothing was marked so far, so the answer appeared as a whole.
            self._driver.answer()
        if self._last is None:
            # Read last, after every mark of ours.  A client may be done before send() returns, so a later reading
            # would be longer than what the client measures.
            self._last = monotonic_ns(), self._progress

    def sent(self, message: Message) -> None:
        """Take note of a message that the server has taken."""
        last = is_last(message)
        if self._done_ns is None and carries_bytes(message):
            # After the first byte, only the last message and a departure matter, unless tokens are counted.
            self.quiet = self._counter is None and self._progress_when_told is None
            if not self._driver.client_left:
                # The first byte of a whole answer goes with the last one, and may not come after the end.
                self._driver.mark("delivered", at_ns=monotonic(ns=self._out_ns()) if last else NOW)
        if last:
            self._finished()
        elif text_in(message, "type") != "http.response.start":
            self._streamed = True

    def refused(self, message: Message, error: OSError) -> None:
        """Take note that the server could not send: the client has gone."""
        self._send_error = error
        self.client_left(told=False)
        if is_last(message):
            # The server produced the whole answer; the note says that the client did not receive it.
            self._finished()

    def _finished(self) -> None:
        """The last part of the response is out; a background task that follows it is not part of the request."""
        if self._done_ns is not None:
            return
        self._done_ns = self._out_ns()
        # The time of the end is fixed here; only the verdict waits for an exception that may follow.
        at_ns = monotonic(ns=self._done_ns)
        if self._awaits_error:
            self._driver.end_unless(self._end, at_ns=at_ns)
        else:
            self._driver.end(self._end, at_ns=at_ns)

    def _out_ns(self) -> int:
        """Return when the last part went to the server.

        It is now if something happened since: an end may not come before a departure that was noted, or before a mark.
        """
        if self._last is None or self._driver.client_left or self._last[1] != self._progress:
            return monotonic_ns()
        return self._last[0]

    @property
    def _awaits_error(self) -> bool:
        """Whether the response is one that its own exception may follow.

        Starlette's BaseHTTPMiddleware ends a stream that breaks below it normally, and raises afterwards.
        """
        return self._status is None or self._status >= 500 or self._streamed

    def leave(self, error: BaseException | None) -> None:
        """The app has returned, or ``error`` left it: end the request unless it has ended."""
        if self._driver.ended:
            return
        # A background task that fails must not turn an answered request into a failed one.
        if error is not None and not (self._done_ns is not None and _is_of_background(error)):
            self._leave_by(error)
        elif self._done_ns is not None:
            self._driver.end(self._end, at_ns=monotonic(ns=self._done_ns))
        else:
            self._driver.end(LEFT if self._driver.client_left else failure(None))

    def _leave_by(self, error: BaseException) -> None:
        # A group is a departure only if all its members are: one real error in it decides the end.
        if self._driver.client_left and all(map(self._is_departure, leaves(error) or (error,))):
            self._driver.end(LEFT)
        else:
            self._driver.leave(error)

    def _of_response(self) -> Terminal:
        """Return how a response that is over ends the request."""
        if self._stopped:
            # The client was gone before this last part was sent.
            return LEFT
        if self._status is None:
            return failure(None)
        if self._counter is not None and self._counter.refusal is not None:
            return failure(self._counter.refusal)
        ending = of_status(self._status)
        # What came out of the engine says more than a 500 that was made of it, or a 200 whose head was out by then.
        raised = self._driver.raised if ending == COMPLETE or self._status >= 500 else None
        return raised or ending

    @property
    def _progress(self) -> tuple[str, int]:
        return self._driver.state, self._driver.token_marks

    @property
    def _stopped(self) -> bool:
        """Whether the app finished early because it was told that its client left.

        It went on if its ``stream()`` ran to the end, or if it moved its request on or put out more of its stream.  One
        part of a stream may still come from an app that stops, because a thread that is making it cannot be
        interrupted.  No clock decides: how long an app takes to stop depends on what it is waiting for.
        """
        told = self._progress_when_told
        if told is None or self._driver.exhausted or self._parts_since_told > self._parts_to_come:
            return False
        came = self._driver.token_marks - told[1]
        return 0 < came <= self._parts_to_come or told == self._progress

    def _is_departure(self, error: BaseException) -> bool:
        """Whether the error says that the client left: it came from a send that failed, or has the name."""
        # By name: importing Starlette to compare the class would make it a dependency.
        return any(one is self._send_error or class_name(type(one)) == "ClientDisconnect" for one in _causes(error))


def carries_bytes(message: Message) -> bool:
    """Whether the message sends the first bytes of a body."""
    kind = text_in(message, "type")
    if kind == "http.response.body":
        return flag_in(message, "body")
    return kind in {"http.response.pathsend", "http.response.zerocopysend"}


def is_last(message: Message) -> bool:
    """Whether the message is the last one with a part of the body."""
    kind = text_in(message, "type")
    if kind in {"http.response.body", "http.response.zerocopysend"}:
        return not flag_in(message, "more_body")
    return kind == "http.response.pathsend"


# The descriptors of BaseException itself: the server's exception may have attributes of these names that raise.
_CAUSE: Final = vars(BaseException)["__cause__"]
_CONTEXT: Final = vars(BaseException)["__context__"]


def _causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if one is None:
            return
        yield one
        one = _CAUSE.__get__(one) or _CONTEXT.__get__(one)


def _is_of_background(error: BaseException) -> bool:
    """Whether a background task raised it, which runs when the response is out and is not part of the request."""
    traceback = vars(BaseException)["__traceback__"].__get__(error)
    while traceback is not None:
        if traceback.tb_frame.f_globals.get("__name__") in _BACKGROUND:
            return True
        traceback = traceback.tb_next
    return False
