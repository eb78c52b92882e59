"""Samples in blocks of time, and tests on these blocks.

Requests that are in a server together wait for each other, so a run of n requests holds less evidence than n
independent ones.  A test that treats them as independent finds differences between two equal runs.  A run is
therefore cut into blocks of neighbours in time, and blocks, not requests, are drawn and exchanged.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.signal import detrend

from otel_lifecycle._analysis.comparison.sides import Floats

# More blocks narrow the interval only a little; fewer requests per block bring the dependence back.
BLOCKS: Final = 24
"""Blocks of a run, at most."""
MEMORY: Final = 3.0
"""A block is this many times longer than the memory of the series, so that blocks are independent."""
# Four blocks a side have 70 permutations, so the smallest p-value is about 0.03.
FEWEST: Final = 4
"""Blocks of a side below which nothing is tested."""
# The 2.5 % tails are then 50 draws each.
RESAMPLES: Final = 2000
CONFIDENCE: Final = 0.95
# Two runs a side leave one degree of freedom a side, with which hardly any difference is significant.
ENOUGH_RUNS: Final = 3
"""With at least this many runs a side, the runs themselves are compared."""

ROUNDING: Final = 1e-6
"""The part of a time by which it may be rounded."""

# The weights of 2000 resamples of a whole run at once would take hundreds of megabytes.
_SLICE: Final = 100


@dataclass(frozen=True, slots=True)
class Blocked:
    """Samples of one side, and the number of the block that each belongs to."""

    values: Floats
    block: NDArray[np.int64]
    blocks: int

    def drawn(self, random: np.random.Generator, number: int) -> NDArray[np.int64]:
        """Return how often each block is drawn, in each of some resamples."""
        return random.multinomial(self.blocks, np.full(self.blocks, 1 / self.blocks), size=number)

    def sums(self) -> Floats:
        """Return the sum of the samples of each block."""
        return np.bincount(self.block, self.values, minlength=self.blocks).astype(np.float64)

    def sizes(self) -> NDArray[np.int64]:
        """Return the number of samples in each block."""
        return np.bincount(self.block, minlength=self.blocks)


def blocked(runs: Sequence[Floats]) -> Blocked:
    """Cut the samples of each run, in the order of time, into blocks of equal size that hardly depend on each other."""
    labels = [np.empty(0, dtype=np.int64)]
    blocks = 0
    for values in runs:
        count = _count(values)
        labels.append(blocks + _labels(len(values), count))
        blocks += count
    return Blocked(np.concatenate([*runs, np.empty(0)]), np.concatenate(labels), blocks)


def blocked_pairs(baseline: Floats, candidate: Floats) -> tuple[Blocked, Blocked]:
    """Cut both sides of a pair of runs at the same places, by the memory of their differences."""
    count = _count(candidate - baseline)
    labels = _labels(len(baseline), count)
    return Blocked(baseline, labels, count), Blocked(candidate, labels, count)


def _count(values: Floats) -> int:
    length = 1 + math.ceil(MEMORY * (memory(values) - 1))
    return max(1, min(BLOCKS, len(values) // length)) if len(values) else 0


def _labels(size: int, count: int) -> NDArray[np.int64]:
    return np.arange(size) * count // max(size, 1)


def memory(values: Floats) -> float:
    """Return the memory of a series in samples: 1 if they are independent.

    The integrated autocorrelation time of its ranks, by Geyer's initial positive sequence (Statistical Science, 1992),
    about a straight line: a queue that grows through the run is a trend, not memory.
    """
    # Differences within a clock's rounding count as constant, because rounding has patterns.
    if len(values) < 8 or np.ptp(values) <= ROUNDING * np.abs(values).max():
        return 1.0
    ranks = detrend(stats.rankdata(values))
    # By FFT: a direct sum is quadratic in the number of requests.  Padding to twice the length avoids wrapping.
    spectrum = np.abs(np.fft.rfft(ranks, 2 * len(ranks))) ** 2
    lags = np.fft.irfft(spectrum)[: len(ranks)]
    if lags[0] <= 0:
        return 1.0
    pairs = (lags[0 : len(lags) // 2 * 2 : 2] + lags[1::2]) / lags[0]
    negative = np.flatnonzero(pairs <= 0)
    kept = pairs[: negative[0]] if len(negative) else pairs
    return max(1.0, float(2 * kept.sum() - 1))


def quantile_draws(side: Blocked, q: float, random: np.random.Generator) -> Floats:
    """Return the q-quantile of :data:`RESAMPLES` resamples, each of as many blocks, drawn with replacement."""
    # Sorted once: a resample only changes weights, so no resample is sorted again.
    order = np.argsort(side.values, kind="stable")
    values, block = side.values[order], side.block[order]
    draws = np.empty(RESAMPLES)
    for at in range(0, RESAMPLES, _SLICE):
        weight = np.cumsum(side.drawn(random, _SLICE)[:, block], axis=1)
        # The value at or above which a share q of the resample's weight lies.
        place = (weight < q * weight[:, -1:]).sum(axis=1)
        draws[at : at + _SLICE] = values[np.minimum(place, len(values) - 1)]
    return draws


def mean_draws(side: Blocked, random: np.random.Generator) -> Floats:
    """Return the mean of the same resamples."""
    drawn = side.drawn(random, RESAMPLES)
    return np.asarray(drawn @ side.sums() / (drawn @ side.sizes()), dtype=np.float64)


def interval(baseline: Floats, candidate: Floats, figure: float | None = None) -> tuple[float, float]:
    """Return the percentile interval of the difference of two sets of draws.

    ``figure``: what the baseline is, where it is a time.  As long as that is above 0 in every draw the interval is that
    of the ratio, told as a difference from the figure: no time falls by more than all of it.
    """
    tail = (1 - CONFIDENCE) / 2
    change = candidate - baseline
    if figure is not None and (baseline > 0).all() and (candidate >= 0).all():
        change = figure * change / baseline
    low, high = np.quantile(change, [tail, 1 - tail])
    return float(low), float(high)


def too_few(*sides: Blocked) -> str:
    """Return why nothing is tested, or nothing if there are blocks enough."""
    least = min(side.blocks for side in sides)
    if least >= FEWEST:
        return ""
    told = "1 block" if least == 1 else f"{least} blocks"
    return f"too few independent samples: {told} of time there, {FEWEST} needed"


def permutation_p(baseline: Blocked, candidate: Blocked) -> float | None:
    """Return the p-value of a difference in mean: blocks exchanged between the sides (scipy's permutation test).

    None where a side has fewer than :data:`FEWEST` blocks.
    """
    if min(baseline.blocks, candidate.blocks) < FEWEST:
        return None
    sums = np.concatenate(
        [np.bincount(side.block, side.values, minlength=side.blocks) for side in (baseline, candidate)]
    )
    sizes = np.concatenate([np.bincount(side.block, minlength=side.blocks) for side in (baseline, candidate)])

    def difference(one: NDArray[np.int64], other: NDArray[np.int64], axis: int) -> Floats:
        left = sums[one].sum(axis=axis) / sizes[one].sum(axis=axis)
        right = sums[other].sum(axis=axis) / sizes[other].sum(axis=axis)
        return np.asarray(right - left, dtype=np.float64)

    numbers = np.arange(baseline.blocks + candidate.blocks)
    return _permuted((numbers[: baseline.blocks], numbers[baseline.blocks :]), difference, "independent")


def paired_p(baseline: Blocked, candidate: Blocked) -> float | None:
    """Return the p-value of a difference in mean between two runs cut alike: each block's two sides exchanged.

    None where there are fewer than :data:`FEWEST` blocks.
    """
    if baseline.blocks < FEWEST:
        return None

    def difference(one: Floats, other: Floats, axis: int) -> Floats:
        return np.asarray((other - one).mean(axis=axis), dtype=np.float64)

    return _permuted((baseline.sums(), candidate.sums()), difference, "samples")


def _permuted(
    sides: tuple[Any, Any], difference: Callable[..., Floats], kind: Literal["independent", "samples"]
) -> float:
    found = stats.permutation_test(
        sides,
        difference,
        permutation_type=kind,
        vectorized=True,
        n_resamples=9999,
        batch=1000,
        # A fixed seed, so that the same files give the same verdict.
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)


def beyond(side: Blocked, limit: float) -> Blocked:
    """Return, for each sample, whether it lies beyond a limit."""
    return Blocked((side.values > limit).astype(np.float64), side.block, side.blocks)


def runs_p(baseline: Sequence[float], candidate: Sequence[float], *, turns: bool) -> tuple[float, tuple[float, float]]:
    """Return the p-value and the interval of a difference between runs, by one figure a run.

    Welch's t-test; with ``turns``, where the k-th runs of both sides were neighbours in time, the paired one.  What
    disturbs a run makes it slower by some part, so figures above 0 are compared by their logarithms, and the interval
    is that of their ratio.  Where no run differs from another of its side there is nothing to test.
    """
    left, right = np.asarray(baseline, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    if np.allclose(left, left[0]) and np.allclose(right, right[0]):
        change = float(right[0] - left[0])
        return (1.0 if np.isclose(left[0], right[0]) else 0.0), (change, change)
    # A logarithm needs figures above 0; one run with 0 is compared by differences like the rest.
    ratios = bool((left > 0).all() and (right > 0).all())
    one, other = (np.log(left), np.log(right)) if ratios else (left, right)
    with warnings.catch_warnings():
        # Scipy warns where the runs of a side hardly vary, as the success rate of a good server does.
        warnings.simplefilter("ignore", RuntimeWarning)
        found = stats.ttest_rel(other, one) if turns else stats.ttest_ind(other, one, equal_var=False)
        inside = found.confidence_interval(CONFIDENCE)
    low, high = (float(np.expm1(end) * left.mean()) if ratios else float(end) for end in (inside.low, inside.high))
    return float(found.pvalue), (low, high)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for their number by Holm's method; None stays None."""
    known = sorted((value, index) for index, value in enumerate(values) if value is not None)
    corrected: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (value, index) in enumerate(known):
        # Holm's p-values must not fall as the raw ones rise.
        highest = max(highest, min(1.0, value * (len(known) - rank)))
        corrected[index] = highest
    return corrected


def proportions(a: int, n: int, b: int, m: int) -> tuple[float, float, float]:
    """Return p, low and high of a difference between a of n and b of m: Fisher's exact test, Newcombe's interval."""
    p = float(stats.fisher_exact(np.array([[a, n - a], [b, m - b]])).pvalue)
    # Wilson's interval stays within 0 and 1 and has a width even if nothing happened.
    (low_a, high_a), (low_b, high_b) = (
        stats.binomtest(number, of).proportion_ci(CONFIDENCE, "wilson") for number, of in ((a, n), (b, m))
    )
    one, other = a / n, b / m
    low = other - one - math.hypot(other - low_b, high_a - one)
    high = other - one + math.hypot(high_b - other, one - low_a)
    return p, low, high
