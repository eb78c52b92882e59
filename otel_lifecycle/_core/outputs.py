"""Outputs that are not tokens: seconds of audio, denoising steps, images.

How it works.  Each mark is one output, which the timeline keeps like a single token, so that stages, the first output
and gaps are those of the marks.  How much an output is, in its unit, is added up here.  At the end, the report is
turned into one of outputs (:func:`as_outputs`), so that nothing of it enters a figure about tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_lifecycle._core.report import Report
from otel_lifecycle._core.text import shown
from otel_lifecycle._core.values import MAX_OUTPUT, seconds, whole
from otel_lifecycle.errors import InvalidValue

OUTPUT_EVENTS: Final = frozenset({"token", "first_token", "output"})
"""The events that carry an amount."""


class OutputAmounts:
    """The amounts of one request that are not 1: how many marks, and how much they are together."""

    __slots__ = ("_amount", "_marks")

    def __init__(self) -> None:
        self._marks = 0
        self._amount: float | None = 0

    def add(self, amount: float | None) -> None:
        """Add the amount of one mark; None: unknown."""
        self._marks += 1
        self._amount = None if amount is None or self._amount is None else self._amount + amount

    def total(self, marks: int | None) -> float | None:
        """Return how much ``marks`` outputs are together; a mark that was not added is 1."""
        return None if marks is None or self._amount is None else marks - self._marks + self._amount


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFigures:
    """What is published about the outputs of a finished request.

    ``unit``: what they are counted in.  ``amount``: how much in that unit, None if unknown.  ``first``: seconds from
    arrival to the first, None if unknown.  ``gaps``: between neighbouring outputs, nanoseconds, sorted.
    """

    unit: str
    amount: float | None
    first: float | None
    gaps: list[int]


def read_amount(count: object, event: str, state: str | None = None) -> float | None:
    """Return the amount of one mark; InvalidValue unless it is None or a finite number from 0."""
    amount = whole(count) if count is None or whole(count) is not None else seconds(count)
    if count is not None and (amount is None or not 0 <= amount <= MAX_OUTPUT):
        what = f"the amount of {event!r} is {shown(count)}; it must be None or a number from 0 to {MAX_OUTPUT}"
        raise InvalidValue(what, state=state, event=event)
    return amount


def as_outputs(report: Report, unit: str, amounts: OutputAmounts) -> Report:
    """Return a report whose marks are outputs of a unit: it counts no tokens, and its gaps lie between no tokens."""
    told: Report = {
        **report,
        "unit": unit,
        "outputs": amounts.total(report["output_tokens"]),
        "output_gaps": report["itl"],
        "output_tokens": None,
        "itl": [],
    }
    # What a usage figure says of frames is about tokens.
    told.pop("streamed_chunks", None)
    return told
