"""From values to places between 0 and 1, and the ticks between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from typing import Final, TypeAlias

from otel_lifecycle._table.text import seconds

Label: TypeAlias = Callable[[float], str]

TICKS: Final = 5
# The steps of a clock: 15 and 30 instead of 20 and 50.
_STEPS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30)
_STEPS_MIN: Final = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 7200, 14400, 43200)
TIME_STEPS: Final = (*_STEPS_S, *(60 * minutes for minutes in _STEPS_MIN))
DAY: Final = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The values from ``low`` to ``high``, linear or logarithmic, with their ticks and how a tick is written."""

    low: float
    high: float
    ticks: tuple[float, ...] = ()
    label: Label = str
    log: bool = False

    def at(self, value: float) -> float:
        """Return the place of a value, cut to 0 and 1."""
        # The floor keeps a value of 0 at the left edge.
        low, high, value = (math.log(max(one, 1e-12)) if self.log else one for one in (self.low, self.high, value))
        return min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.0


def linear(low: float, high: float, label: Label = str, count: int = TICKS) -> Scale:
    """Return a linear scale with about ``count`` round ticks."""
    # Written so that NaN ends here, too.
    if not high > low:
        high = low + 1
    return Scale(low=low, high=high, ticks=tuple(_round_ticks(low, high, count)), label=label)


def logarithmic(low: float, high: float, label: Label) -> Scale:
    """Return a logarithmic scale with ticks at 1, 2 and 5 of every decade, or fewer where there are many decades."""
    wide = high / low
    digits = (1, 2, 5) if wide < 60 else (1, 3) if wide < 1000 else (1,)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**decade for decade in decades for digit in digits]
    return Scale(low=low, high=high, ticks=tuple(at for at in ticks if low <= at <= high), label=label, log=True)


def moments(start: float, end: float, zone: tzinfo | None = timezone.utc, count: int = TICKS) -> Scale:
    """Return a scale of epoch seconds; ``zone`` None is the machine's own."""
    if not end > start:
        end = start + 1
    step = next((one for one in TIME_STEPS if (end - start) / one <= count + 1), TIME_STEPS[-1])
    # Ticks are round in the reader's zone, which need not be whole hours away from UTC.
    shift = (datetime.fromtimestamp(start, tz=zone).astimezone().utcoffset() if zone is None else None) or None
    offset = 0.0 if shift is None else shift.total_seconds()
    first = math.ceil((start + offset) / step) * step - offset
    ticks = tuple(first + step * number for number in range(int((end - first) / step) + 1))
    form = "%d %b" if step >= DAY else "%d %b %H:%M" if end - start > DAY else "%H:%M" if step >= 60 else "%H:%M:%S"

    def label(value: float) -> str:
        # A microsecond more, so that rounding down does not show the second before.
        text = datetime.fromtimestamp(value + 1e-6, tz=zone).strftime(form)
        return text if step >= 1 else f"{text}.{round(value % 1 * 1000) % 1000:03d}"

    return Scale(low=start, high=end, ticks=ticks, label=label)


def _round_ticks(low: float, high: float, count: int) -> Iterable[float]:
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    # A little below the rough step: a float just above a round number would choose the next larger one.
    step = next(size * digit for digit in (1, 2, 5, 10) if size * digit >= rough * 0.999)
    # Multiples of the step and not a running sum, which would collect rounding errors.
    at = math.ceil(low / step - 1e-9)
    while at * step <= high * (1 + 1e-9):
        yield at * step
        at += 1


def short_seconds(value: float) -> str:
    """Return a duration for a tick, without digits that say nothing."""
    if value <= 0:
        return "0"
    figure, unit = seconds(value).split()
    return f"{figure.rstrip('0').rstrip('.') if '.' in figure else figure} {unit}"


def percent(value: float) -> str:
    """Return a share for a tick."""
    return f"{value:.0%}"


def whole(value: float) -> str:
    """Return a count for a tick; fractions of a request are not counted."""
    return f"{value:,.0f}" if float(value).is_integer() else ""
