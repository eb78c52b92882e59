"""What one frame says, whatever its dialect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from otel_lifecycle._core.tokens import total


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What one frame says.

    ``tokens`` holds a pair (choice, tokens) for each choice that has any; the tokens are None where the frame holds an
    unknown number of them.  ``sized``: whether the frame itself says how many tokens it holds (a token list, ids or
    log-probabilities); where it does not, each of its pieces of text counts as one token, and a usage figure may show
    that it held more.  ``finish_reasons`` holds pairs (choice, reason) in the order of the frame.  Token counts are
    those of the engine's usage figure, None where the frame has none; an output count of 0 beside output comes from a
    server that does not count, and is None too.  ``error`` is the reason (of the closed list) that an error frame
    amounts to; its message is not kept.  ``cancelled``: the engine says that it was stopped.  ``done`` is the end of
    the stream, ``whole`` a body that was not streamed.  ``known``: whether its dialect is known at all.
    ``load_time``, ``prefill_time``, ``decode_time`` and ``total_time``: seconds, as the engine timed itself.
    """

    tokens: tuple[tuple[int, int | None], ...] = ()
    sized: bool = False
    finish_reasons: tuple[tuple[int, str], ...] = ()
    response_id: str | None = None
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    choices: int = 0
    error: str | None = None
    cancelled: bool = False
    done: bool = False
    whole: bool = False
    known: bool = True
    load_time: float | None = None
    prefill_time: float | None = None
    decode_time: float | None = None
    total_time: float | None = None

    @property
    def count(self) -> int | None:
        """Tokens in the frame, over all choices; None if that is not known."""
        # A whole answer lists no tokens: the engine's figure is the only count.
        if self.whole and self.output_tokens is not None:
            return self.output_tokens
        return total(n for _, n in self.tokens)

    @property
    def durations(self) -> dict[str, float]:
        """How long the stages took, if the engine says so: what it does before a request queues, prefill and decode."""
        if self.prefill_time is None or self.decode_time is None:
            return {}
        # Loading the model comes before the queue; of one that is loaded it is a few milliseconds.
        before = {} if self.load_time is None else {"preprocessing": self.load_time}
        return {**before, "prefill": self.prefill_time, "decode": self.decode_time}


_LAST_WINS = (
    "response_id",
    "model",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "error",
    "load_time",
    "prefill_time",
    "decode_time",
    "total_time",
)


def merge_frames(frames: Sequence[Frame]) -> Frame:
    """Return several frames that came at one moment as one.

    Their tokens add up, because no time lies between them; of everything else the later frame wins.
    """
    if len(frames) == 1:
        return frames[0]
    tokens: dict[int, int | None] = {}
    for choice, n in (pair for frame in frames for pair in frame.tokens):
        tokens[choice] = total((tokens.get(choice, 0), n))
    latest: dict[str, Any] = {name: _last(getattr(frame, name) for frame in frames) for name in _LAST_WINS}
    return Frame(
        tokens=tuple(tokens.items()),
        # Frames without tokens have no size to tell.
        sized=all(frame.sized for frame in frames if frame.tokens),
        finish_reasons=tuple(pair for frame in frames for pair in frame.finish_reasons),
        choices=sum(frame.choices for frame in frames),
        cancelled=any(frame.cancelled for frame in frames),
        done=any(frame.done for frame in frames),
        whole=any(frame.whole for frame in frames),
        known=all(frame.known for frame in frames),
        **latest,
    )


def _last(values: Iterable[Any]) -> Any:
    known = [value for value in values if value is not None]
    return known[-1] if known else None
