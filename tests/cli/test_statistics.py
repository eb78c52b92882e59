"""The statistics are what they say they are."""

from __future__ import annotations

import numpy as np
import pytest

from otel_lifecycle._analysis.comparison import blocks
from otel_lifecycle._analysis.comparison.blocks import Blocked, blocked, blocked_pairs


def series(seed: int, size: int, keep: float = 0.0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return a series in which each value keeps a part of the one before."""
    noise = np.random.default_rng(seed).normal(size=size)
    values = np.empty(size)
    last = 0.0
    for index, step in enumerate(noise):
        last = keep * last + step
        values[index] = last
    return values


def test_independent_samples_have_no_memory() -> None:
    """Their blocks are many."""
    assert blocks.memory(series(1, 5000)) == pytest.approx(1.0, abs=0.3)
    assert blocked([series(1, 5000)]).blocks == blocks.BLOCKS


def test_memory_is_the_autocorrelation_time() -> None:
    """Of a first-order series it is (1 + a) / (1 - a), a little less of its ranks."""
    assert blocks.memory(series(2, 40_000, keep=0.9)) == pytest.approx(19, rel=0.25)
    assert blocked([series(2, 400, keep=0.97)]).blocks <= 8


def test_a_trend_is_no_memory() -> None:
    """A queue that grows through the run."""
    ramp = np.arange(500.0) + series(3, 500)
    assert blocks.memory(ramp) == pytest.approx(1.0, abs=0.5)


@pytest.mark.parametrize("q", [0.5, 0.95])
def test_quantile_draws_are_those_of_plain_resampling(q: float) -> None:
    """Weighting blocks is drawing them with replacement."""
    values = series(4, 240)
    side = Blocked(values, np.arange(240) // 10, 24)
    fast = blocks.quantile_draws(side, q, np.random.default_rng(1))
    random, parts = np.random.default_rng(2), values.reshape(24, 10)
    slow = [
        np.quantile(parts[random.integers(0, 24, 24)].ravel(), q, method="inverted_cdf")
        for _ in range(blocks.RESAMPLES)
    ]
    assert fast.mean() == pytest.approx(np.mean(slow), abs=0.03)
    assert fast.std() == pytest.approx(np.std(slow), rel=0.1)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Of two equal series with memory, in at least nine of ten pairs."""
    covered = 0
    for seed in range(40):
        one, other = (blocked([series(1000 + 2 * seed + side, 1500, keep=0.5)]) for side in (0, 1))
        random = np.random.default_rng(seed)
        low, high = blocks.interval(blocks.mean_draws(one, random), blocks.mean_draws(other, random))
        covered += low <= 0 <= high
    assert covered >= 34


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0.0, 0.8])
def test_the_test_errs_as_rarely_as_it_says(keep: float) -> None:
    """Equal series give p below 0.05 about once in twenty, with memory or without."""
    wrong = 0
    for seed in range(40):
        one, other = (blocked([series(2 * seed + side, 1200, keep=keep)]) for side in (0, 1))
        p = blocks.permutation_p(one, other)
        assert p is not None
        wrong += p < 0.05
    assert wrong <= 6


def test_a_shift_is_found() -> None:
    """And in pairs, one that is far smaller than the spread of the samples."""
    left, right = series(1, 600), series(2, 600)
    p = blocks.permutation_p(blocked([left]), blocked([right + 1]))
    assert p is not None
    assert p < 0.001
    spread = 100 * series(3, 600)
    paired = blocks.paired_p(*blocked_pairs(spread + left, spread + right + 1))
    assert paired is not None
    assert paired < 0.001


def test_too_few_blocks_are_not_tested() -> None:
    """Three against three prove nothing at any level."""
    small = Blocked(np.arange(3.0), np.arange(3), 3)
    assert blocks.permutation_p(small, small) is None
    assert blocks.paired_p(small, small) is None


def test_no_time_falls_by_more_than_all_of_it() -> None:
    """The difference of two wild means does; their ratio does not, and holds 0 exactly where that does."""
    random = np.random.default_rng(5)
    one, other = random.lognormal(0, 1, 2000), random.lognormal(-3, 0.1, 2000)
    assert blocks.interval(one, other)[0] < -1
    low, high = blocks.interval(one, other, 1.0)
    assert -1 < low < high < 0
    assert blocks.interval(one, 0 * other, 1.0) == (-1, -1)
    assert blocks.interval(one - one.min(), other, 1.0) == blocks.interval(one - one.min(), other)


@pytest.mark.parametrize(("count", "reason"), [(1, "1 block of time there"), (3, "3 blocks of time there"), (4, "")])
def test_too_few_blocks_are_said(count: int, reason: str) -> None:
    """With how many there have to be."""
    side = Blocked(np.arange(12.0), np.arange(12) % count, count)
    expected = f"too few independent samples: {reason}, 4 needed" if reason else ""
    assert blocks.too_few(blocked([series(1, 500)]), side) == expected


def test_holm_corrects_step_by_step() -> None:
    """The example: 0.01, 0.04, 0.03 become 0.03, 0.06, 0.06; what was not tested stays so."""
    assert blocks.holm([0.01, 0.04, None, 0.03]) == pytest.approx([0.03, 0.06, None, 0.06])


def test_a_difference_of_rates_has_newcombes_interval() -> None:
    """His example: 56 of 70 against 48 of 80 differ by 0.2, from 0.0524 to 0.3339 (Statistics in Medicine, 1998)."""
    p, low, high = blocks.proportions(48, 80, 56, 70)
    assert (low, high) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert 0.005 < p < 0.02


def test_neighbours_in_time_are_compared_as_pairs() -> None:
    """A machine that slows by the hour hides a change of a fifth from all but the paired test."""
    baseline = [1.0, 1.5, 2.1, 3.0, 4.2]
    candidate = [1.2 * value * wobble for value, wobble in zip(baseline, (1.01, 0.99, 1.0, 1.01, 0.99), strict=True)]
    apart, _ = blocks.runs_p(baseline, candidate, turns=False)
    paired, (low, high) = blocks.runs_p(baseline, candidate, turns=True)
    assert apart > 0.5
    assert paired < 0.001
    mean = sum(baseline) / len(baseline)
    assert low / mean < 0.2 < high / mean


def test_runs_that_do_not_vary_need_no_test() -> None:
    """Five runs without a failure, against the same or against five with one of ten."""
    assert blocks.runs_p([1.0] * 5, [1.0] * 5, turns=False) == (1.0, (0.0, 0.0))
    p, (low, high) = blocks.runs_p([1.0] * 5, [0.9] * 5, turns=False)
    assert p == 0
    assert (low, high) == pytest.approx((-0.1, -0.1))
