"""The differences between two sides, figure by figure, and whether they exceed noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from otel_lifecycle._analysis.comparison import blocks
from otel_lifecycle._analysis.comparison.blocks import Blocked, blocked
from otel_lifecycle._analysis.comparison.figure import Comparison, by_runs
from otel_lifecycle._analysis.comparison.rates import rates, throughputs
from otel_lifecycle._analysis.comparison.sides import Floats, Side, in_turns

ALPHA: Final = 0.05
MIN_EFFECT: Final = 0.05
"""A smaller relative change gets no verdict, however sure, where several runs of each side are compared."""
ONE_RUN_EFFECT: Final = 0.10
"""The same for fewer runs: other load of the machine affects a whole run, and nothing in the run shows it."""
MIN_PART: Final = 0.01
"""A stage that changed by less than this part of the whole request's time is not a verdict either."""
MIN_POINTS: Final = 0.01
"""The same for rates, in absolute terms."""
PAIRS: Final = 10
"""Requests from which on two runs of the same prompts in the same order are compared pair by pair."""
BEYOND: Final = 5
"""Samples that must lie beyond a quantile, on each side, before a verdict on it is given."""

STATISTICS: Final = {"mean": None, "p50": 0.5, "p95": 0.95, "p99": 0.99}
FIGURES: Final = {
    "ttft": ("p50", "p95", "p99"),
    "tpot": ("p50", "p95", "p99"),
    "e2e": ("p50", "p95", "p99"),
    "itl_p99": ("p95",),
    "itl_max": ("p95",),
    "queue_wait": ("mean",),
    "preprocessing": ("mean",),
    "prefill": ("mean",),
    "decode_time": ("mean",),
    "stall_share": ("mean",),
}
"""The figures compared for each duration; with more figures, the correction demands more of each."""
STAGES: Final = ("queue_wait", "preprocessing", "prefill", "decode_time")


def compare(baseline: Side, candidate: Side, min_effect: float, extra: Sequence[str] = ()) -> list[Comparison]:
    """Return every figure that either side has; ``extra``: further ones, such as ``ttft.mean`` or a rate that is 0.

    ``min_effect``: the least relative change that gets a verdict, usually :func:`usual_effect`.
    """
    ordered = in_turns(baseline, candidate)
    turns = ordered is not None
    baseline, candidate = ordered or (baseline, candidate)
    found = [
        *_durations(baseline, candidate, extra, turns),
        *rates(baseline, candidate, extra, turns),
        *throughputs(baseline, candidate, turns),
    ]
    # Over all figures at once: among thirty tests at 5 %, one false alarm is to be expected.
    corrected = blocks.holm([one.p for one in found])
    whole = _mean_e2e(baseline)
    return [judged(replace(one, p_corrected=p), min_effect, whole) for one, p in zip(found, corrected, strict=True)]


def usual_effect(baseline: Side, candidate: Side) -> float:
    """Return the least change that is worth a verdict: smaller if there are enough runs to measure their spread."""
    enough = min(len(baseline.runs), len(candidate.runs)) >= blocks.ENOUGH_RUNS
    return MIN_EFFECT if enough else ONE_RUN_EFFECT


def _mean_e2e(side: Side) -> float | None:
    values = np.concatenate([run[~np.isnan(run)] for run in _samples(side, "e2e")])
    return _figure(values, None)


def judged(one: Comparison, min_effect: float, whole: float | None = None) -> Comparison:
    """Return a figure with its verdict; ``whole``: the mean seconds of a request, the measure for its stages."""
    if one.baseline is None or one.candidate is None:
        side = "baseline" if one.baseline is None else "candidate"
        return replace(one, verdict="no samples", reason=f"the {side} has none")
    # Certainty before size: "small" is only said of a change that was shown to exist.
    unsure = _unsure(one)
    if unsure:
        return replace(one, reason=unsure)
    small = abs(one.difference or 0.0) < MIN_POINTS if one.rate else abs(one.relative or math.inf) < min_effect
    if small:
        return replace(one, reason=f"sure, but less than {'1 point' if one.rate else f'{min_effect:.0%}'}")
    change = abs(one.difference or 0.0)
    if whole is not None and one.metric.partition(".")[0] in STAGES and change < MIN_PART * whole:
        return replace(one, reason=f"sure, but less than {MIN_PART:.0%} of a whole request")
    return replace(one, verdict="better" if ((one.difference or 0.0) > 0) == one.more_is_better else "worse")


def _unsure(one: Comparison) -> str:
    """Return why a difference may be none; nothing where the corrected test and the interval say it is one."""
    if one.p is None or one.p_corrected is None or one.low is None or one.high is None:
        return one.reason or "too few independent samples"
    # Interval and test come from different methods; a verdict needs both.
    if one.low <= 0 <= one.high:
        return "within noise"
    if one.p_corrected < ALPHA:
        return ""
    return "not proven after correction" if one.p < ALPHA else f"not proven: p = {one.p:.2f}"


def _durations(baseline: Side, candidate: Side, extra: Sequence[str], turns: bool) -> list[Comparison]:
    paired, found = are_paired(baseline, candidate), []
    for column, usual in FIGURES.items():
        left, right = _samples(baseline, column), _samples(candidate, column)
        if paired:
            # A pair in which one side is missing says nothing about the difference.
            both = ~np.isnan(left[0]) & ~np.isnan(right[0])
            left, right = ([runs[0][both]] if both.any() else runs for runs in (left, right))
        left, right = ([values[~np.isnan(values)] for values in runs] for runs in (left, right))
        if sum(map(len, left)) or sum(map(len, right)):
            names = [name for name in STATISTICS if name in usual or f"{column}.{name}" in extra]
            found += [_duration(f"{column}.{name}", STATISTICS[name], left, right, paired, turns) for name in names]
    return found


def are_paired(baseline: Side, candidate: Side) -> bool:
    """Return whether the sides are one run each of the same prompts in the same order: their lengths are equal."""
    if len(baseline.runs) != 1 or len(candidate.runs) != 1 or not (baseline.complete and candidate.complete):
        return False
    left, right = (side.column("input_tokens") for side in (baseline, candidate))
    # Equal lengths throughout say nothing about the order.
    return len(left) >= PAIRS and len(np.unique(left)) > 1 and np.array_equal(left, right)


def _samples(side: Side, column: str) -> list[Floats]:
    """Return the samples of each run in the order of arrival, NaN where unknown; E2E of completed requests only."""
    runs = []
    for run in side.runs:
        values = run.columns[column]
        runs.append(np.where(run.columns["completed"] == 1, values, np.nan) if column == "e2e" else values)
    return runs


def _figure(values: Floats, q: float | None) -> float | None:
    if not len(values):
        return None
    return float(values.mean() if q is None else np.quantile(values, q))


def _duration(
    metric: str, q: float | None, left: list[Floats], right: list[Floats], paired: bool, turns: bool
) -> Comparison:
    one, other = np.concatenate(left), np.concatenate(right)
    made = Comparison(
        metric=metric,
        baseline=_figure(one, q),
        candidate=_figure(other, q),
        baseline_count=len(one),
        candidate_count=len(other),
    )
    # p99 of 100 requests is a single request; the small term absorbs rounding of 1 - q.
    needed = math.ceil(BEYOND / (1 - (q or 0.5)) - 1e-9)
    if min(len(one), len(other)) < needed:
        return replace(made, reason=f"{needed} samples needed, {min(len(one), len(other))} there")
    if min(sum(len(run) > 0 for run in side) for side in (left, right)) >= blocks.ENOUGH_RUNS:
        return by_runs(made, [_figure(run, q) for run in left], [_figure(run, q) for run in right], turns)
    if paired:
        return _by_blocks(made, q, *blocks.blocked_pairs(one, other), paired=True)
    return _by_blocks(made, q, blocked(left), blocked(right), paired=False)


def _by_blocks(made: Comparison, q: float | None, left: Blocked, right: Blocked, *, paired: bool) -> Comparison:
    few = blocks.too_few(left, right)
    if few:
        return replace(made, reason=few)
    # The same seed for both sides: of a pair of runs, the same blocks are drawn from both.
    seeds = np.random.default_rng(0), np.random.default_rng(0 if paired else 1)
    draws = [
        blocks.mean_draws(side, seed) if q is None else blocks.quantile_draws(side, q, seed)
        for side, seed in zip((left, right), seeds, strict=True)
    ]
    low, high = blocks.interval(draws[0], draws[1], made.baseline)
    how = "mean"
    if q is not None:
        # Blocks exchange sums and counts, which a quantile is not made of; a share beyond a common limit is.
        limit = float(np.quantile(np.concatenate([left.values, right.values]), q))
        left, right = blocks.beyond(left, limit), blocks.beyond(right, limit)
        how = "share beyond the common quantile"
    p = blocks.paired_p(left, right) if paired else blocks.permutation_p(left, right)
    kind = "of paired" if paired else "of"
    return replace(made, low=low, high=high, p=p, test=f"permutation {kind} time blocks ({how})")
