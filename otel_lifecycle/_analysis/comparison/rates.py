"""Rates and throughputs of both sides.

Whether a request meets its SLO depends on its neighbours, as its latency does, so rates are compared in blocks of time
as well.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

import numpy as np

from otel_lifecycle._analysis.comparison import blocks
from otel_lifecycle._analysis.comparison.blocks import blocked
from otel_lifecycle._analysis.comparison.figure import Comparison, average, by_runs
from otel_lifecycle._analysis.comparison.sides import Floats, Run, Side

Counted = tuple[int, int]

RATES: Final[dict[str, tuple[bool, str]]] = {
    "success_rate": (True, "completed"),
    "rejection_rate": (False, "rejected"),
    "timeout_rate": (False, "timed_out"),
    "failure_rate": (False, "failed"),
    "goodput": (True, "slo_met"),
}
"""Rate -> whether more is better, and the column that is 1 where a request counts."""
THROUGHPUTS: Final = ("request_throughput", "token_throughput")


def rates(baseline: Side, candidate: Side, asked: Collection[str], turns: bool) -> list[Comparison]:
    """Return the rates that are not 0 on both sides, and those that are ``asked`` for."""
    found = []
    for name in RATES:
        left, right = ([run.counts[name] for run in side.runs] for side in (baseline, candidate))
        # A rate of 0 on both sides would only add a test, which the correction charges to all others.
        some = any(number for number, _ in (*left, *right)) or name in asked
        if some and any(of for _, of in (*left, *right)):
            found.append(_rate(name, (baseline, candidate), left, right, turns))
    return found


def _rate(name: str, both: tuple[Side, Side], left: list[Counted], right: list[Counted], turns: bool) -> Comparison:
    more_is_better, column = RATES[name]
    (a, n), (b, m) = (tuple(map(sum, zip(*side, strict=True))) for side in (left, right))
    made = Comparison(
        metric=name,
        baseline=a / n if n else None,
        candidate=b / m if m else None,
        baseline_count=n,
        candidate_count=m,
        more_is_better=more_is_better,
        rate=True,
    )
    if not n or not m:
        return made
    if min(sum(of > 0 for _, of in side) for side in (left, right)) >= blocks.ENOUGH_RUNS:
        one, other = ([number / of if of else None for number, of in side] for side in (left, right))
        return by_runs(made, one, other, turns)
    return _by_blocks(made, (a, n), (b, m), *([_met(run, column) for run in side.runs] for side in both))


def _by_blocks(
    made: Comparison, baseline: Counted, candidate: Counted, left: list[Floats], right: list[Floats]
) -> Comparison:
    """Compare by blocks, but be no surer than for independent requests: rare events are in too few blocks.

    Where only some of the requests are compared one by one, the interval is moved to the rates of all of them.
    """
    one, other = blocked(left), blocked(right)
    few = blocks.too_few(one, other)
    if few:
        return replace(made, reason=few)
    draws = [blocks.mean_draws(side, np.random.default_rng(seed)) for seed, side in enumerate((one, other))]
    p, low, high = blocks.proportions(*baseline, *candidate)
    by_block = blocks.permutation_p(one, other)
    shift = (made.difference or 0.0) - float(other.values.mean() - one.values.mean())
    lower, upper = (end + shift for end in blocks.interval(draws[0], draws[1]))
    test = "permutation of time blocks (share), no surer than Fisher's exact test"
    # The weaker of two answers: blocks know dependence, the exact test knows rare events.
    return replace(made, p=max(p, by_block or p), low=min(low, lower), high=max(high, upper), test=test)


def _met(run: Run, column: str) -> Floats:
    """Return 1 or 0 for each request of a run that the rate is of, in the order of arrival."""
    values: Floats = run.columns[column][run.columns["terminated"] == 1]
    known: Floats = values[~np.isnan(values)]
    return known


def throughputs(baseline: Side, candidate: Side, turns: bool) -> list[Comparison]:
    """Return the throughputs, one figure for each run."""
    found = []
    for name in THROUGHPUTS:
        left, right = ([_throughput(run, name) for run in side.runs] for side in (baseline, candidate))
        made = Comparison(
            metric=name,
            baseline=average(left),
            candidate=average(right),
            baseline_count=baseline.total,
            candidate_count=candidate.total,
            more_is_better=True,
            # Throughput belongs to a run as a whole, so its requests cannot be resampled.
            reason=f"a run gives one figure: {blocks.ENOUGH_RUNS} runs a side needed",
        )
        if min(sum(value is not None for value in side) for side in (left, right)) >= blocks.ENOUGH_RUNS:
            made = by_runs(made, left, right, turns)
        found.append(made)
    return [one for one in found if one.baseline is not None or one.candidate is not None]


def _throughput(run: Run, name: str) -> float | None:
    number = run.completed if name == "request_throughput" else run.output_tokens
    return None if number is None or run.length is None else number / run.length
