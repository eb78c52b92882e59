"""Frames of streamed answers, read for what they say about a request's lifecycle.

A frame is one item of a stream, in any form a server has it in hand: a mapping, an object with attributes, JSON text,
or the raw text of server-sent events (``str`` or bytes).  The dialects are OpenAI's chat completions, completions and
responses, Anthropic's messages, and Ollama's lines of JSON.  No client package is needed.  Three ways in, from plain
to complete::

    read_frame(frame)                                    # -> Frame: tokens by choice, usage, finish reasons, error
    request.stream(frames, tokens=count_tokens)          # one choice, only the tokens
    request.stream(frames, tokens=FrameFeed(request))    # several choices, and everything else a frame tells

What is a token: a piece of text, reasoning, refusal or tool call is one, or as many as the frame's own token list says
(``logprobs.content``, ``logprobs.refusal``, ``logprobs.tokens``, ``token_ids``).  Frames that hold only a role, an
empty string, usage, a keep-alive comment or ``[DONE]`` are none.  A frame of several tokens without such a list looks
like one; a usage figure then corrects the count, and nothing can correct the gaps.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from otel_lifecycle._core.tokens import total
from otel_lifecycle._frames.dialects import UNSIZED, read_body, read_data
from otel_lifecycle._frames.events import EventReader
from otel_lifecycle._frames.frame import Frame, merge_frames
from otel_lifecycle._log import say

__all__ = ["Frame", "FrameFeed", "FrameTarget", "count_tokens", "read_frame"]

MAX_TOLD_CHOICES: Final = 128
"""Choices of one answer whose finish reasons and figures are kept; the tokens of up to ``MAX_CHOICES`` are marked.

Fewer than a request can have: the reasons become one attribute, told again with each choice that finishes, and 128 is
the most that OpenAI's API lets a client ask for.
"""


class FrameTarget(Protocol):
    """The part of a request handle that a frame is fed to."""

    def token(self, n: int | None = 1, choice: int = 0) -> None:
        """Mark ``n`` tokens of one choice."""

    def output(self, tokens: int | None = None) -> None:
        """Mark a whole answer."""

    def usage(
        self, *, input_tokens: int | None = None, output_tokens: int | None = None, cached_tokens: int | None = None
    ) -> None:
        """Note the figures the engine counted."""

    def response(
        self,
        *,
        id: str | None = None,
        model: str | None = None,
        finish_reasons: Sequence[str] | None = None,
    ) -> None:
        """Note what the answer says about itself."""

    def cancel(self, reason: str | None = None) -> None:
        """End the request as cancelled."""

    def timeout(self, reason: str | None = None) -> None:
        """End the request as timed out."""

    def fail(self, error: str | None = None) -> None:
        """End the request as failed."""


def count_tokens(frame: object) -> int | None:
    """Return how many tokens a frame holds over all its choices; None for an unknown number.

    The ``tokens`` callable of ``request.stream`` and ``traced`` for a stream of one choice.  For a body that was not
    streamed it is the usage figure, which ``traced`` needs for its ``output``.
    """
    return read_frame(frame).count


def read_frame(frame: object) -> Frame:
    """Read a frame in whatever form it comes; never raises.

    Text may hold several server-sent events, or several of their lines: their tokens are added up, and what the later
    one says of the answer stands.  A ``data:`` line that is not JSON is one token event of unknown size.  Each text is
    read by itself; :class:`FrameFeed` also reads pieces that were cut anywhere.
    """
    if not isinstance(frame, (bytes, bytearray, memoryview, str)):
        return read_body(frame)
    text = frame if isinstance(frame, str) else bytes(frame).decode("utf-8", "replace")
    # The short way for one JSON document, which most frames are.
    if text.lstrip().startswith("{") and (whole := read_data(text)) is not UNSIZED:
        return whole
    reader = EventReader()
    return merge_frames([*reader.feed(text), *reader.finish()] or [Frame()])


def _text(piece: bytes | bytearray | memoryview | str) -> str | bytes:
    return piece if isinstance(piece, str) else bytes(piece)


class FrameFeed:
    """Feeds a request everything its frames tell, and tells ``request.stream`` to mark nothing itself.

    Tokens go to the choice they belong to; usage, response id and model, and finish reasons (in the order of the
    choices, as the convention has it) are noted.  An error frame inside a stream that began well ends the request as
    failed or timed out, the finish reason ``error`` as failed, and ``abort`` as cancelled: a 200 is not a success then.

    Call it with every frame, or hand it to ``request.stream`` as ``tokens``.  Text and bytes may be cut anywhere: a
    frame counts when the piece that completes it comes.
    """

    __slots__ = (
        "_assumes",
        "_counted",
        "_durations",
        "_ended",
        "_figures",
        "_finished",
        "_finished_order",
        "_reader",
        "_request",
        "_told",
    )

    def __init__(self, request: FrameTarget) -> None:
        self._request = request
        self._reader: EventReader | None = None
        self._finished: dict[int, str] = {}
        self._finished_order: list[int] = []
        self._counted: dict[int, int] = {}
        self._figures: dict[int, int] = {}
        self._told = False
        self._ended = False
        # Both optional for a target that the user wrote.
        self._assumes: Callable[[], object] | None = getattr(request, "assume_sizes", None)
        self._durations: Callable[[Mapping[str, float]], object] | None = getattr(request, "durations", None)

    def __call__(self, item: object) -> int:
        """Feed one frame, or one piece of text; return 0, since its tokens are marked by then."""
        if isinstance(item, Frame):
            self._feed(item)
        elif isinstance(item, (bytes, bytearray, memoryview, str)):
            if self._reader is None:
                self._reader = EventReader()
            self._feed_all(self._reader.feed(_text(item)))
        else:
            self._feed(read_body(item))
        return 0

    def finish(self) -> None:
        """Take the end of the stream as the end of its last frame; without it a frame cut short stays unread."""
        if self._reader is not None:
            self._feed_all(self._reader.finish())

    def _feed_all(self, frames: list[Frame]) -> None:
        # What one piece completes came at one moment: no gap lies between its tokens.
        if frames:
            self._feed(merge_frames(frames))

    def _feed(self, frame: Frame) -> None:
        if not frame.known:
            say("frames", "frames of an unknown dialect: what they hold is not counted")
        self._mark(frame)
        # After an error or an abort only tokens are marked: they count as wasted, and the end stays as it is.
        if not self._ended:
            self._note(frame)
            self._end(frame)

    def _mark(self, frame: Frame) -> None:
        if frame.whole:
            self._request.output(frame.count)
            return
        if frame.tokens and not frame.sized and self._assumes is not None:
            # The request then treats its gaps as ITL samples only until a usage figure disproves one token a frame.
            self._assumes()
            self._assumes = None
        for choice, tokens in frame.tokens:
            self._request.token(tokens, choice)
            # Bounded: the number of a choice comes from outside, and a broken stream could count upwards for ever.
            if choice in self._counted or len(self._counted) < MAX_TOLD_CHOICES:
                self._counted[choice] = self._counted.get(choice, 0) + (tokens or 0)

    def _note(self, frame: Frame) -> None:
        # Once: every frame of a stream repeats both.
        if not self._told and (frame.response_id or frame.model):
            self._told = True
            self._request.response(id=frame.response_id, model=frame.model)
        if frame.finish_reasons and self._finish(frame.finish_reasons):
            self._request.response(finish_reasons=[self._finished[choice] for choice in self._finished_order])
        if self._durations is not None and (durations := frame.durations):
            self._durations(durations)
        output = self._total_of(frame)
        # A figure of 0 for the input is one the server has not counted yet, or never does.
        if frame.input_tokens or output is not None or frame.cached_tokens is not None:
            self._request.usage(
                input_tokens=frame.input_tokens or None, output_tokens=output, cached_tokens=frame.cached_tokens
            )

    def _finish(self, reasons: Sequence[tuple[int, str]]) -> bool:
        """Keep the finish reasons of a frame; return whether any of them is new."""
        changed = False
        for choice, reason in reasons:
            if choice not in self._finished:
                if len(self._finished) >= MAX_TOLD_CHOICES:
                    continue
                # Sorted by choice, as the convention wants them; choices finish in any order.
                insort(self._finished_order, choice)
            changed = changed or self._finished.get(choice) != reason
            self._finished[choice] = reason
        return changed

    def _end(self, frame: Frame) -> None:
        self._ended = frame.error is not None or frame.cancelled
        if frame.error is not None:
            self._note_missing_reasons()
        if frame.error == "deadline":
            self._request.timeout(frame.error)
        elif frame.error is not None:
            self._request.fail(frame.error)
        elif frame.cancelled:
            self._request.cancel()

    def _note_missing_reasons(self) -> None:
        """Give the choices that an error cut off the finish reason ``error``, as the GenAI convention has it."""
        begun = self._counted.keys() | self._finished.keys()
        if begun - self._finished.keys():
            reasons = [self._finished.get(choice, "error") for choice in sorted(begun)]
            self._request.response(finish_reasons=reasons)

    def _total_of(self, frame: Frame) -> int | None:
        """Return the figure of a frame where it counts the whole answer, as far as that has come.

        A figure is final once the choices of its frame have finished: with that frame, or with one before it, as
        where OpenRouter repeats an empty choice beside the usage.  Until then it is a running figure (vLLM's
        ``continuous_usage_stats``).  For several choices, some servers count each one separately (vLLM's running
        figures, llama.cpp's last ones): such a figure is below what the frames have shown, and they add up once every
        choice has closed with one.  A 0 after output is not a count.
        """
        figure = frame.output_tokens
        if figure is None or frame.whole or (frame.choices and not self._all_finished(frame)):
            return None
        if frame.choices == 1 and frame.finish_reasons:
            choice = frame.finish_reasons[0][0]
            if choice in self._finished:
                self._figures[choice] = figure
            if len(self._figures) > 1 and self._figures.keys() >= self._counted.keys():
                figure = total(self._figures.values()) or 0
        partial = len(self._counted) > 1 and figure < sum(self._counted.values())
        return None if partial or (figure == 0 and self._counted) else figure

    def _all_finished(self, frame: Frame) -> bool:
        """Return whether the frame finishes a choice, or every choice that has put out anything has finished."""
        return bool(frame.finish_reasons) or (bool(self._finished) and self._finished.keys() >= self._counted.keys())
