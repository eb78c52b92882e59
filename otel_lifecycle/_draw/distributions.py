"""How values are spread: histograms, curves of shares, and one value against another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from otel_lifecycle._draw.bars import legend
from otel_lifecycle._draw.plot import Plot
from otel_lifecycle._draw.scale import Label, Scale, linear, logarithmic, percent, short_seconds, whole
from otel_lifecycle._table.text import seconds, share

NARROW: Final = 4
"""Largest over smallest value below which an axis is linear."""
MARGIN: Final = 1.3
"""Room above the highest bar for the names of the marks."""
POINTS: Final = 20
"""Points of a curve that are explained."""


def histogram(edges: Sequence[float], counts: Sequence[float], marks: Mapping[str, float | None], title: str) -> Markup:
    """Return the number of values in seconds between each pair of edges, with ``marks`` such as p50."""
    narrow = edges[-1] / edges[0] < NARROW
    low, high = edges[0] / 1.1, edges[-1] * 1.1
    x = linear(low, high, short_seconds) if narrow else logarithmic(low, high, short_seconds)
    plot = Plot(x, Scale(low=0, high=(max(counts) or 1) * MARGIN), height=150)
    for left, right, count in zip(edges, edges[1:], counts, strict=False):
        if count:
            plot.box(left, right, 0, count, "accent", f"{count:,.0f} from {seconds(left)} to {seconds(right)}")
    # 0 has no place on a logarithmic axis.
    known = [(name, value) for name, value in marks.items() if value]
    for level, (name, value) in enumerate(known):
        plot.upright(value, f"{name} {seconds(value)}", level)
    told = ", ".join(f"{name} {seconds(value)}" for name, value in known)
    return plot.markup(f"{title}: {told}", title)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A line through points (value in seconds, share at or below it)."""

    name: str
    shade: str
    points: Sequence[tuple[float, float]]


def shares_below(curves: Sequence[Curve], high: float, title: str) -> Markup:
    """Return the share of values at or below each time, a line a curve; ``high`` is the end of the axis."""
    plot = Plot(linear(0, high, short_seconds), linear(0, 1, percent, 4), height=170)
    for curve in curves:
        plot.curve(curve.points, curve.shade)
        # Each explained point is a stop for the keyboard.
        step = max(len(curve.points) // POINTS, 1)
        for value, part in curve.points[::step]:
            if value <= high:
                tip = f"{curve.name}: {share(part)} within {seconds(value)}"
                plot.dot(value, part, curve.shade, tip, size=2.5)
    names = " and ".join(curve.name for curve in curves)
    return legend((curve.shade, curve.name) for curve in curves) + plot.markup(f"{title}, {names}", title)


def against(
    points: Sequence[tuple[float, float]], title: str, *, x_label: Label = whole, y_label: Label = short_seconds
) -> Markup:
    """Return a dot for each pair of values."""
    x = linear(0, max(value for value, _ in points) * 1.02, x_label)
    plot = Plot(x, linear(0, max(value for _, value in points) * 1.05, y_label, 4), height=170)
    for one, other in points:
        plot.dot(one, other, "accent", size=1.8)
    return plot.markup(title, title)
