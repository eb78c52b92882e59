"""Correlation and a straight line with p-values: the statistics that the rules need.

The p-values are Fisher's (the arctangent of a correlation is nearly normal from some twenty samples on, and fewer are
not diagnosed), so that a report does not wait seconds for a statistics library to load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from otel_lifecycle._cli.evidence.sketch import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The line of least squares: ``r`` is the correlation, ``p`` its probability without any relation."""

    slope: float
    intercept: float
    r: float
    p: float


def fitted_line(x: Floats, y: Floats) -> Line:
    """Return the line of least squares through some points; both columns must vary."""
    across, up = x - x.mean(), y - y.mean()
    slope = float(across @ up / (across @ across))
    r = correlation(x, y)
    return Line(slope=slope, intercept=float(y.mean() - slope * x.mean()), r=r, p=_chance(r, len(x), 1.0))


def correlation(x: Floats, y: Floats) -> float:
    """Return Pearson's correlation; 0 where a column does not vary."""
    across, up = x - x.mean(), y - y.mean()
    spread = math.sqrt(float(across @ across) * float(up @ up))
    return max(-1.0, min(1.0, float(across @ up) / spread)) if spread else 0.0


def rank_correlation(x: Floats, y: Floats) -> tuple[float, float]:
    """Return Spearman's correlation of ranks and its p-value; equal values share the mean of their ranks."""
    r = correlation(_ranks(x), _ranks(y))
    # The variance of Spearman's by Fieller, Hartley and Pearson, Biometrika 1957.
    return r, _chance(r, len(x), 1.06)


def _ranks(values: Floats) -> Floats:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place], dtype=np.float64)


def _chance(r: float, size: int, variance: float) -> float:
    # The formula needs more than three points; a perfect correlation has an infinite arctangent.
    if size <= 3 or not -1 < r < 1:
        return 0.0 if size > 3 else 1.0
    return math.erfc(abs(math.atanh(r)) * math.sqrt((size - 3) / variance) / math.sqrt(2))
