"""A comparison as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from otel_lifecycle._analysis.comparison import blocks, verdicts
from otel_lifecycle._analysis.comparison.conditions import Difference
from otel_lifecycle._analysis.comparison.figure import Comparison
from otel_lifecycle._analysis.comparison.gates import Ruling
from otel_lifecycle._analysis.comparison.sides import Side

SCHEMA_VERSION: Final = 1
"""Version of the comparison's JSON; it grows when a key is removed or changes its meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Two sides, the conditions in which they differ (``varied``: on purpose), and the result for each figure.

    ``min_effect``: the relative change below which there is no verdict.
    """

    baseline: Side
    candidate: Side
    differences: Sequence[Difference]
    varied: Sequence[Difference]
    figures: Sequence[Comparison]
    rulings: Sequence[Ruling]
    min_effect: float
    forced: bool = False

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        better = [one.metric for one in self.figures if one.verdict == "better"]
        worse = [one.metric for one in self.figures if one.verdict == "worse"]
        if not better and not worse:
            return "no evidence of a difference"
        told = [f"better: {_few(better)}"] if better else []
        told += [f"worse: {_few(worse)}"] if worse else []
        return "; ".join(told)

    @property
    def by_runs(self) -> bool:
        """Whether figures of runs are compared, and not samples of one."""
        return min(len(self.baseline.runs), len(self.candidate.runs)) >= blocks.ENOUGH_RUNS

    @property
    def _interval(self) -> str:
        return "Student's t over runs" if self.by_runs else f"block bootstrap, {blocks.RESAMPLES} resamples"

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "schema_version": SCHEMA_VERSION,
            "headline": self.headline,
            "baseline": _side(self.baseline),
            "candidate": _side(self.candidate),
            "comparable": not self.differences,
            "forced": self.forced,
            "condition_differences": [asdict(one) for one in self.differences],
            "varied": [asdict(one) for one in self.varied],
            "method": {
                "interval": f"{blocks.CONFIDENCE:.0%}, {self._interval}",
                "correction": "Holm, over all figures tested",
                "alpha": verdicts.ALPHA,
                "min_effect": self.min_effect,
            },
            "metrics": [
                {**asdict(one), "difference": one.difference, "relative": one.relative} for one in self.figures
            ],
            "gates": [
                {
                    "name": one.gate.text,
                    "change": one.change,
                    "judged": one.judged,
                    "failed": one.failed,
                    "reason": one.reason,
                }
                for one in self.rulings
            ],
        }


def _few(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _side(side: Side) -> dict[str, Any]:
    return {
        "sources": list(side.sources),
        "runs": len(side.runs),
        "requests": side.total,
        "trouble": {
            kind: sum(run.trouble.get(kind, 0) for run in side.runs)
            for kind in sorted({kind for run in side.runs for kind, count in run.trouble.items() if count})
        },
    }
