"""The charts of a comparison."""

from __future__ import annotations

from typing import Final

import numpy as np
from markupsafe import Markup

from otel_lifecycle._analysis.comparison.document import Result
from otel_lifecycle._analysis.comparison.figure import Comparison
from otel_lifecycle._analysis.comparison.sides import Floats, Side
from otel_lifecycle._draw.changes import Interval, changes
from otel_lifecycle._draw.distributions import Curve, shares_below

NAMES: Final = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E of completed requests"}
# A point for each half percent: finer than a pixel of the usual width.
POINTS: Final = 201
SHOWN: Final = 0.995
"""The quantile at which an axis ends, so that a few stragglers do not squeeze the rest."""


def forest(result: Result) -> Markup:
    """The change of every figure with its interval, in percent of the baseline."""
    rows = [row for one in result.figures if (row := _interval(one)) is not None]
    return changes(
        rows,
        "change of every figure with its 95 % interval",
        "change against the baseline; green is better, red is worse, grey is no evidence",
    )


def _interval(one: Comparison) -> Interval | None:
    # Rates change by points: on an axis of percentages they would look larger than they are.
    if not one.baseline or one.low is None or one.high is None or one.rate:
        return None
    low, middle, high = (value / one.baseline for value in (one.low, one.difference or 0.0, one.high))
    shade = one.verdict if one.told else "other"
    tip = f"{one.metric}: {middle:+.1%}, {one.verdict}\n95 % interval {low:+.1%} to {high:+.1%}"
    return Interval(name=one.metric, low=low, middle=middle, high=high, shade=shade, tip=tip)


def overlays(result: Result) -> list[Markup]:
    """The share of requests at or below each time, of both sides, for each latency that both have."""
    found = []
    for column, name in NAMES.items():
        left, right = (_known(side, column) for side in (result.baseline, result.candidate))
        if len(left) and len(right):
            found.append(_overlay(name, left, right))
    return found


def _known(side: Side, column: str) -> Floats:
    values = side.column(column)
    chosen = ~np.isnan(values) & (values > 0)
    return values[chosen & (side.column("completed") == 1)] if column == "e2e" else values[chosen]


def _overlay(name: str, left: Floats, right: Floats) -> Markup:
    parts = np.linspace(0, 1, POINTS)
    curves = [
        Curve(
            name=side, shade=shade, points=list(zip(np.quantile(values, parts).tolist(), parts.tolist(), strict=True))
        )
        for side, values, shade in (("baseline", left, "muted"), ("candidate", right, "accent"))
    ]
    high = float(np.quantile(np.concatenate([left, right]), SHOWN)) * 1.05
    return shares_below(curves, high, f"{name}: share of requests within a time")
