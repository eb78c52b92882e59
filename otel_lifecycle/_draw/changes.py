"""Changes with their intervals, one below the other, around a line of no change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from otel_lifecycle._draw.plot import framed, tick_texts
from otel_lifecycle._draw.scale import Scale, linear
from otel_lifecycle._draw.svg import element, share_of

ROW: Final = 32.0
# With smaller changes only, noise of a percent would fill the picture.
LEAST_REACH: Final = 0.2
MOST_LEFT: Final = 1.1
"""No figure falls by more than 100 %; a very wide interval leaves the picture instead of squeezing the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A change with its interval, as parts of the baseline."""

    name: str
    low: float
    middle: float
    high: float
    shade: str
    tip: str


def changes(rows: Sequence[Interval], label: str, title: str) -> Markup:
    """Return a line for each interval, with a dot at its middle."""
    # By the middles: one wide interval would flatten all the others.
    reach = max(1.4 * max((abs(row.middle) for row in rows), default=0.0), LEAST_REACH)
    scale = linear(-min(reach, MOST_LEFT), reach, _signed)
    height = ROW * len(rows)
    zero = share_of(scale.at(0.0))
    parts = [element("line", x1=zero, x2=zero, y1="0", y2=f"{height}", class_="axis")]
    parts += [_row(row, scale, number * ROW) for number, row in enumerate(rows)]
    parts += tick_texts(scale, height + 14)
    return framed(parts, height + 20, label, title)


def _signed(value: float) -> str:
    return f"{value:+.0%}" if value else "0"


def _row(row: Interval, scale: Scale, top: float) -> Markup:
    middle = top + 22
    left, right = share_of(scale.at(row.low)), share_of(scale.at(row.high))
    return (
        element("text", row.name, x="0", y=f"{top + 11:.0f}", class_="name")
        + element("line", x1=left, x2=right, y1=middle, y2=middle, class_=f"curve wide c-{row.shade}")
        + element(
            "circle",
            cx=share_of(scale.at(row.middle)),
            cy=middle,
            r=5,
            class_=f"s-{row.shade}",
            data_tip=row.tip,
        )
    )
