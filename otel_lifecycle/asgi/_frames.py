"""The tokens of a response body: cut into frames where the app cut it anyhow, and counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from otel_lifecycle._request.handle import Request
from otel_lifecycle._request.streams import count_of
from otel_lifecycle.openai import FrameFeed, read_frame

MAX_HELD: Final = 128 * 1024
"""Bytes held of a frame, or of a whole body, until the rest of it comes; parsing more would hold the serving thread."""

_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LINE_ENDS: Final = (b"\n",)
_SEPARATORS: Final = {
    b"text/event-stream": _EVENT_ENDS,
    b"application/x-ndjson": _LINE_ENDS,
    b"application/jsonl": _LINE_ENDS,
    b"application/json-lines": _LINE_ENDS,
}


class Marks:
    """A request as a feed of frames sees it: boundaries that nobody marked pass, its end may be another's.

    ``counts``: whether its tokens are marked; not where they are known better, or the frame is a whole answer: a text
    completion looks the same then as a frame of a streamed one.
    """

    def __init__(self, handle: Request, *, owned: bool, counts: bool = True) -> None:
        self._handle = handle
        self._owned = owned
        self._counts = counts

    def usage(
        self, *, input_tokens: int | None = None, output_tokens: int | None = None, cached_tokens: int | None = None
    ) -> None:
        """Note the figures the engine counted."""
        self._handle.usage(input_tokens=input_tokens, output_tokens=output_tokens, cached_tokens=cached_tokens)

    def token(self, n: int | None = 1, choice: int = 0) -> None:
        """Mark tokens of one choice."""
        if self._counts:
            self._handle._record.item(n, choice)

    def output(self, tokens: int | None = None) -> None:
        """Mark a whole answer, or note the number of its tokens."""
        if self._counts:
            self._handle._record.whole_answer(tokens)
        else:
            self.usage(output_tokens=tokens)

    def response(
        self, *, id: str | None = None, model: str | None = None, finish_reasons: Sequence[str] | None = None
    ) -> None:
        """Note what the answer says of itself."""
        self._handle.response(id=id, model=model, finish_reasons=finish_reasons)

    def cancel(self, reason: str | None = None) -> None:
        """End it as cancelled, if its end is ours."""
        if self._owned:
            self._handle.cancel(reason)

    def timeout(self, reason: str | None = None) -> None:
        """End it as timed out, if its end is ours."""
        if self._owned:
            self._handle.timeout(reason)

    def fail(self, error: str | None = None) -> None:
        """End it as failed, if its end is ours."""
        if self._owned:
            self._handle.fail(error)


class BodyCounter:
    """Counts the tokens of one response as its body goes by.

    What one message holds came at one moment, so it is one frame, however many events are in it; an event that is cut
    by the end of a message waits for its rest.  A body of JSON is a whole answer.  A compressed body is not read.  Of
    an OpenAI-compatible server's refusal it is read whether the input was too long, which its status does not say:
    ``refusal``.
    """

    def __init__(self, handle: Request, tokens: Any, *, owned: bool) -> None:
        self._record = handle._record
        feeds = isinstance(tokens, str)
        self._marks = Marks(handle, owned=owned)
        self._count = FrameFeed(self._marks) if feeds else tokens
        self._read_whole = FrameFeed(Marks(handle, owned=owned, counts=False)) if feeds else None
        self._refused = False
        self.refusal: str | None = None
        self._ends: tuple[bytes, ...] = ()
        self._whole = False
        self._held = b""
        self._active = False
        self._blind = False
        self._started = False

    def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Learn from the head of the response how its body is to be read, if at all."""
        known = {bytes(name).lower(): bytes(value).lower() for name, value in headers}
        kind = known.get(b"content-type", b"").partition(b";")[0].strip()
        plain = known.get(b"content-encoding", b"identity") == b"identity"
        self._ends = _SEPARATORS.get(kind, ())
        self._whole = kind == b"application/json" or kind.endswith(b"+json")
        self._refused = status == 400 and self._whole and self._read_whole is not None
        self._active = plain and (200 <= status < 300 or self._refused)

    def feed(self, body: bytes, *, last: bool) -> None:
        """Count what one message of the body holds."""
        if not self._active:
            return
        if not self._blind and (self._whole or self._ends):
            body = self._cut(body, last=last)
        if body and self._is_ours():
            self._mark(body)

    def _cut(self, body: bytes, *, last: bool) -> bytes:
        """Return what can be read now, and hold the rest; beyond the maximum read no more."""
        held = self._held + body
        # The end of the body ends the last event too; of a whole body nothing can be read before.
        cut = len(held) if last else max((held.rfind(end) + len(end) for end in self._ends if end in held), default=0)
        ready, self._held = held[:cut], held[cut:]
        self._blind = max(len(self._held), len(ready)) > MAX_HELD
        if not self._blind:
            return ready
        self._held = b""
        return b"" if self._whole else body

    def _is_ours(self) -> bool:
        """Whether nobody else counts the tokens: a handler that marks its own has begun before the first frame came."""
        if not self._started:
            self._started = True
            self._active = self._record.state != "decode" and self._record.status is None
        return self._active

    def _mark(self, frame: bytes) -> None:
        if self._refused:
            reason = read_frame(frame).error
            self.refusal = reason if reason == "input_too_long" else None
            return
        if self._blind:
            # That something was put out is known, and when; how much is not.
            if not self._whole:
                self._marks.token(None)
            return
        if self._whole and self._read_whole is not None:
            count_of(self._record, self._read_whole, frame)
            self._marks.output(self._record.usage.get("output_tokens"))
            return
        count = count_of(self._record, self._count, frame)
        if self._whole:
            self._marks.output(count)
        elif self._read_whole is None:
            self._marks.token(count)
