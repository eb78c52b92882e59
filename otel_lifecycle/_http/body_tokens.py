"""The tokens of a response body, counted as it goes by.

The app may cut its body anywhere.  ``FrameFeed`` reads pieces of a stream by itself; for a counter of the user's own
the body is cut at the ends of its events or lines.  Both take time linear in the bytes, because a frame is joined once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from otel_lifecycle.driver import Driver
from otel_lifecycle.openai import FrameFeed, read_frame

MAX_HELD: Final = 128 * 1024
"""Bytes held of a frame, or of a whole body, until the rest comes; parsing more would hold up the serving thread."""

MAX_SEPARATOR: Final = 4
"""Length of the longest end of an event."""

_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LINE_ENDS: Final = (b"\n",)
_SEPARATORS: Final = {
    b"text/event-stream": _EVENT_ENDS,
    b"application/x-ndjson": _LINE_ENDS,
    b"application/jsonl": _LINE_ENDS,
    b"application/json-lines": _LINE_ENDS,
}


class FrameCutter:
    """Cuts a body into runs of whole frames; what follows the last end is held until its rest comes."""

    __slots__ = ("_ends", "_held", "_size", "overflowed")

    def __init__(self, ends: tuple[bytes, ...]) -> None:
        self._ends = ends
        self._held: list[bytes] = []
        self._size = 0
        self.overflowed = False

    def feed(self, body: bytes, *, last: bool) -> bytes:
        """Return what is whole now.  The end of the body ends the last frame; without ends the whole body is one."""
        # An end may straddle two messages, so the last bytes of what is held are searched again.
        before = b"".join(self._held[-MAX_SEPARATOR:])[-MAX_SEPARATOR + 1 :]
        seen = before + body
        cut = max((seen.rfind(end) + len(end) for end in self._ends if end in seen), default=0) - len(before)
        if last:
            cut = len(body)
        if cut <= 0 and not last:
            return self._hold(body)
        ready = b"".join((*self._held, body[:cut]))
        self._held, self._size = [], 0
        self._hold(body[cut:])
        # For good: once a frame was dropped, later counts could never add up to the answer.
        self.overflowed = self.overflowed or len(ready) > MAX_HELD
        return b"" if self.overflowed else ready

    def _hold(self, body: bytes) -> bytes:
        if body:
            self._held.append(body)
            self._size += len(body)
        if self._size > MAX_HELD:
            self._held, self._size, self.overflowed = [], 0, True
        return b""


class BodyTokens:
    """Counts the tokens of one response as its body goes by.

    What one message holds came at one moment, so it is one frame, however many events are in it.  A body of JSON is a
    whole answer.  A compressed body is not read, and frames are looked for only in event streams, lines of JSON and
    JSON.  When an OpenAI-compatible server refuses a request, its body tells whether the input was too long, which its
    status does not: ``refusal``.
    """

    def __init__(self, driver: Driver, tokens: Any) -> None:
        self._driver = driver
        feeds = isinstance(tokens, str)
        self._stream = FrameFeed(driver.reader()) if feeds else None
        self._count = tokens
        # A text completion that was not streamed looks like a frame of a streamed one: its tokens are the usage figure.
        self._read_whole = FrameFeed(driver.reader(counts=False)) if feeds else None
        self._refused = False
        self.refusal: str | None = None
        self._cutter: FrameCutter | None = None
        self._whole = False
        self._active = False
        self._started = False

    def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Learn from the head of the response how its body is to be read, if at all."""
        known = {bytes(name).lower(): bytes(value).lower() for name, value in headers}
        kind = known.get(b"content-type", b"").partition(b";")[0].strip()
        plain = known.get(b"content-encoding", b"identity") == b"identity"
        ends = _SEPARATORS.get(kind, ())
        self._whole = kind == b"application/json" or kind.endswith(b"+json")
        self._cutter = FrameCutter(ends) if self._whole or (ends and self._stream is None) else None
        # The status of a refusal that a body can make more precise; 413 and 429 say enough by themselves.
        self._refused = status == 400 and self._whole and self._read_whole is not None
        # A counter of the user's own may know what a body of another type is made of.
        readable = self._whole or bool(ends) or self._stream is None
        # The body of any other status is the text of an error, not output of the model.
        self._active = plain and readable and (200 <= status < 300 or self._refused)

    def feed(self, body: bytes, *, last: bool) -> None:
        """Count what one message of the body holds."""
        if not self._active:
            return
        cutter = self._cutter
        ready = body if cutter is None else cutter.feed(body, last=last)
        if cutter is not None and cutter.overflowed:
            # That there was output is known, and when; how much there was is not.
            if body and not self._whole and self._is_ours():
                self._driver.item(None)
            return
        if ready and self._is_ours():
            self._mark(ready)
        # A stream may end without the blank line that closes its last event.
        if last and self._stream is not None and not self._whole and self._is_ours():
            self._stream.finish()

    def _is_ours(self) -> bool:
        """Whether this counts the tokens: a handler that marks its own tokens has begun before the first frame came."""
        # Asked once: after our first mark, the request no longer shows which marks are ours and which the handler's.
        if not self._started:
            self._started = True
            self._active = self._driver.awaits_output
        return self._active

    def _mark(self, frame: bytes) -> None:
        if self._refused:
            reason = read_frame(frame).error
            # Any other reason is no more precise than the status.
            self.refusal = reason if reason == "input_too_long" else None
        elif self._stream is None:
            count = self._driver.count_of(self._count, frame)
            (self._driver.answer if self._whole else self._driver.item)(count)
        elif self._whole and self._read_whole is not None:
            self._read_whole(read_frame(frame))
            self._driver.answer(self._driver.output_tokens)
        else:
            self._stream(frame)
