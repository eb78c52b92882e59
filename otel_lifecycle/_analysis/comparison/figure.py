"""One figure of both sides, and the comparison of two sides by their runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from otel_lifecycle._analysis.comparison import blocks

Verdict = Literal["better", "worse", "no evidence", "no samples"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One figure of both sides: of all their samples, or the mean over their runs where runs are compared.

    ``low`` and ``high``: the 95 % interval of the difference.  ``p``: of the test named in ``test``, uncorrected;
    ``p_corrected`` by Holm over all figures tested.  ``reason``: why there is no better verdict than the one given.
    """

    metric: str
    baseline: float | None
    candidate: float | None
    baseline_count: int
    candidate_count: int
    more_is_better: bool = False
    rate: bool = False
    low: float | None = None
    high: float | None = None
    p: float | None = None
    test: str = ""
    p_corrected: float | None = None
    verdict: Verdict = "no evidence"
    reason: str = ""

    @property
    def difference(self) -> float | None:
        """Candidate less baseline."""
        if self.baseline is None or self.candidate is None:
            return None
        return self.candidate - self.baseline

    @property
    def relative(self) -> float | None:
        """The difference as a part of the baseline; None where that is 0."""
        # From 0 there is no percentage; infinity would pass every limit.
        return None if self.difference is None or not self.baseline else self.difference / self.baseline

    @property
    def tested(self) -> bool:
        """Whether there is an interval and a test."""
        return self.p is not None and self.low is not None and self.high is not None

    @property
    def told(self) -> bool:
        """Whether there is a verdict."""
        return self.verdict in {"better", "worse"}


def by_runs(made: Comparison, left: Sequence[float | None], right: Sequence[float | None], turns: bool) -> Comparison:
    """Compare a figure of each run; ``turns``: the k-th runs of both sides are pairs, if each run has the figure."""
    # A run without the figure breaks the pairs, so the test for unpaired runs is used.
    turns = turns and None not in left and None not in right
    one, other = ([value for value in values if value is not None] for values in (left, right))
    p, (low, high) = blocks.runs_p(one, other, turns=turns)
    test = "paired t-test of runs by turns" if turns else "Welch's t-test of runs"
    return replace(made, baseline=average(one), candidate=average(other), p=p, low=low, high=high, test=test)


def average(values: Sequence[float | None]) -> float | None:
    """Return the mean of what is known; None of nothing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
