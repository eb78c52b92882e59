"""The text form of single figures."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Final

NOTHING: Final = "-"
"""The text for an unknown value; never 0."""


def seconds(value: float | None) -> str:
    """Return a duration with three digits and a suitable unit; a dash for None."""
    if value is None or math.isnan(value):
        return NOTHING
    if value == 0:
        return "0 s"
    for limit, factor, unit in ((0.001, 1e6, "µs"), (1.0, 1e3, "ms")):
        if 0 < abs(value) < limit:
            return f"{_digits(value * factor)} {unit}"
    return f"{_digits(value)} s"


def _digits(value: float) -> str:
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def share(value: float | None) -> str:
    """Return a rate or share in percent; a dash for None."""
    return NOTHING if value is None or math.isnan(value) else f"{value * 100:.1f} %"


def number(value: float | None) -> str:
    """Return a number; a dash for None."""
    if value is None or math.isnan(value):
        return NOTHING
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"


def text(value: object) -> str:
    """Return a text, safe to print; a dash for None."""
    return NOTHING if value is None or value == "" else printable(str(value))


def printable(value: str) -> str:
    """Return a text without control characters and direction marks; a line break becomes a blank.

    Names come from the clients of the server, so they can hold anything.
    """
    # isprintable is the fast path: nearly every name passes it.
    return value if value.isprintable() else value.translate(_STEERING)


_CONTROLS: Final = (*range(0x20), *range(0x7F, 0xA0))
# Marks for the direction of text: with them a name can make a line read as something else.
_DIRECTIONS: Final = (0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_HALVES: Final = range(0xD800, 0xE000)
"""Halves of surrogate pairs, which are not characters."""
_STEERING: Final = {
    **dict.fromkeys((*_CONTROLS, *_DIRECTIONS, *_HALVES), "\N{REPLACEMENT CHARACTER}"),
    **dict.fromkeys(map(ord, "\t\n\r"), " "),
}


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def shorten(value: str, width: int = 60) -> str:
    """Return a text cut in the middle to a width."""
    if len(value) <= width:
        return value
    # In the middle: ids and model names often differ only at their ends.
    half = (width - 1) // 2
    return f"{value[:half]}…{value[-half:]}"


def instant(time_ns: int) -> str:
    """Return an instant as people write it, in UTC, to the millisecond."""
    # From integers: epoch nanoseconds as a float are off by a quarter of a microsecond.
    moment = datetime.fromtimestamp(time_ns // 10**9, tz=timezone.utc).replace(microsecond=time_ns % 10**9 // 1000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
