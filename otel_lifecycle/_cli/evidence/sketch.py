"""A distribution in fixed memory: counts in bins whose edges grow by one percent.

Any quantile of it is within 0.5 % of a true sample, whatever the distribution, and two of them add up exactly.  That is
the guarantee of DDSketch (Masson, Rim and Lee, VLDB 2019), over a fixed range instead of a sparse store.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

GROWTH: Final = 1.01
RELATIVE_ERROR: Final = 0.005
"""Largest relative error of a quantile: half the width of a bin, to first order."""
# From a nanosecond to four months, and as token counts up to ten million: every column fits the same bins.
SMALLEST: Final = 1e-9
LARGEST: Final = 1e7
_LOG: Final = math.log(GROWTH)
BINS: Final = math.ceil(math.log(LARGEST / SMALLEST) / _LOG) + 1

Floats = NDArray[np.float64]


class Sketch:
    """Counts, sum, minimum and maximum are exact; quantiles within :data:`RELATIVE_ERROR`.

    Zeros and what is smaller than a nanosecond have a bin of their own; what is not known is not a sample.
    """

    __slots__ = ("counts", "maximum", "minimum", "n", "total", "zeros")

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(BINS, dtype=np.int64)
        self.zeros = 0
        self.n = 0
        self.total = 0.0
        self.minimum = math.inf
        self.maximum = -math.inf

    def add(self, values: Floats) -> None:
        """Add samples; NaN and infinity are none."""
        known = values[np.isfinite(values)]
        if not known.size:
            return
        self.n += known.size
        self.total += float(known.sum())
        self.minimum = min(self.minimum, float(known.min()))
        self.maximum = max(self.maximum, float(known.max()))
        # A logarithm has no bin for 0.
        positive = known[known >= SMALLEST]
        self.zeros += known.size - positive.size
        index = np.floor(np.log(np.minimum(positive, LARGEST) / SMALLEST) / _LOG).astype(np.int64)
        self.counts += np.bincount(np.minimum(index, BINS - 1), minlength=BINS)

    @property
    def mean(self) -> float | None:
        """The exact mean; None without samples."""
        return self.total / self.n if self.n else None

    def quantile(self, q: float) -> float | None:
        """Return the q-quantile within the relative error; None without samples."""
        if not self.n:
            return None
        rank = q * (self.n - 1)
        if rank < self.zeros:
            return max(self.minimum, 0.0)
        bin_ = int(np.searchsorted(np.cumsum(self.counts), rank - self.zeros, side="right"))
        middle: float = SMALLEST * GROWTH ** (bin_ + 0.5)
        # A bin's middle can lie outside all samples; the exact extremes bound it.
        return min(max(middle, self.minimum), self.maximum)


def summary(sketch: Sketch, samples: Floats | None = None) -> dict[str, Any]:
    """Return count, mean, p50, p95, p99, max of a distribution; all ``samples``, if kept, make them exact.

    Exact quantiles are by linear interpolation, as those of ``summarize_workload``.
    """
    known = None if samples is None else samples[~np.isnan(samples)]
    quantiles = {
        name: sketch.quantile(q) if known is None else (float(np.quantile(known, q)) if known.size else None)
        for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    }
    return {"count": sketch.n, "mean": sketch.mean, **quantiles, "max": sketch.maximum if sketch.n else None}
