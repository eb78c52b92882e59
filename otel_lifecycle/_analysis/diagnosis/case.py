"""The input and the findings of the rules of the diagnosis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from otel_lifecycle._analysis.diagnosis.fits import rank_correlation
from otel_lifecycle._analysis.document import Document
from otel_lifecycle._analysis.workload import Workload
from otel_lifecycle._core.outcome import DOMINANCE_THRESHOLD
from otel_lifecycle._table.text import plural

Confidence = Literal["strong", "moderate", "weak"]
GRADES: Final[tuple[Confidence, ...]] = ("strong", "moderate", "weak")

FEW: Final = 20
"""Samples below which nothing is diagnosed but single, certain events."""
# Thirteen rules look at the same data: at 1 % a false finding is rare.
SIGNIFICANT: Final = 0.01
LARGE_SHARE: Final = DOMINANCE_THRESHOLD
"""A stage's share of the time from which it is called large: the dominance threshold of single requests."""
OFTEN: Final = 0.05
"""Share of affected requests from which evidence is strong."""
SOMETIMES: Final = 0.01
"""The same for moderate evidence; below it the thing happened, but is not a pattern."""

ENDS_OFTEN, ENDS_SOMETIMES, ENDS_RARELY = 0.1, 0.02, 0.01
"""Share of abnormal ends from which they are strong, moderate and weak evidence; below, a server has failures."""

REFUSALS: Final = frozenset({"queue_full", "rate_limited", "queue_timeout"})
"""Reasons which show that the request never got past the queue, whatever stage the span has."""
MEMORY: Final = "out_of_memory"
ELSEWHERE: Final = frozenset({"shutdown", "bad_input", "input_too_long", MEMORY})
"""Reasons that have nothing to do with the place where the request was."""
CLIENT: Final = frozenset({"client_disconnected", "abandoned"})

Kind = Callable[[str, str, str], bool]
"""Whether an abnormal end counts, by its outcome, stage and reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A symptom, the place to look next, what led there, and how sure that is.

    ``share``: the part of all the time that the place took, where it is a stage.
    """

    cause: str
    symptom: str
    look_at: str
    evidence: tuple[str, ...]
    confidence: Confidence
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """The workload, and its report."""

    workload: Workload
    report: Document

    def rank(self, one: str, other: str) -> tuple[int, float]:
        """Return the number of pairs of two columns and their rank correlation; 0 where it means nothing."""
        count, r, p = rank_correlation(self.workload.table, one, other)
        # 0 and not a small figure: what is not significant must not reach a threshold.
        return count, r if count >= FEW and p < SIGNIFICANT else 0.0

    def figure(self, metric: str, name: str) -> float:
        """Return a latency figure of the report; NaN where there is none."""
        found = self.report["latency"][metric][name]
        return float("nan") if found is None else float(found)

    @property
    def terminated(self) -> int:
        """Requests that ended."""
        return int(self.report["requests"]["terminated"])

    @property
    def broken_down(self) -> int:
        """Completed requests with every boundary."""
        return int(self.report["stages"]["count"])

    def share(self, stage: str) -> float | None:
        """Return a stage's share of the time of all completed requests; None without complete boundaries."""
        rows = {row["stage"]: (row["mean"] or 0.0) for row in self.report["stages"]["rows"]}
        total = sum(rows.values())
        return rows[stage] / total if total else None

    def share_line(self, stage: str) -> tuple[str, ...]:
        """Return the line of evidence for that share; empty if it is unknown."""
        share = self.share(stage)
        if share is None:
            return ()
        return (f"{stage} is {share:.0%} of all the time of {plural(self.broken_down, 'completed request')}",)

    def ends(self, wanted: Kind) -> Counter[tuple[str, str, str]]:
        """Return how many abnormal ends there were of a kind, by outcome, stage and reason."""
        found: Counter[tuple[str, str, str]] = Counter()
        for kind in self.report["abnormal"]["kinds"]:
            key = (kind["outcome"], kind["stage"], kind["reason"])
            if wanted(*key):
                found[key] += kind["count"]
        return found


def were(number: int) -> str:
    """Return the verb that suits a number."""
    return "was" if number == 1 else "were"


def part_of(number: int, total: int) -> str:
    """Return ``3 of 200 requests (1.5%)``."""
    return f"{number:,} of {plural(total, 'request')} ({percent(number / total)})"


def percent(share: float) -> str:
    """Return a share in percent, with as many digits as a small one needs."""
    return f"{share:.0%}" if share >= 0.1 or not share else f"{share * 100:.2g}%"


def grade(share: float) -> Confidence:
    """Return the confidence in something that affected this share of all requests."""
    return "strong" if share >= OFTEN else "moderate" if share >= SOMETIMES else "weak"


def surer(one: Confidence, other: Confidence) -> Confidence:
    """Return the surer of two."""
    return min(one, other, key=GRADES.index)


def turned_away(outcome: str, stage: str, reason: str) -> bool:
    """Whether a request was refused, or ended while it waited; a client that leaves there has waited too long."""
    # A client that leaves counts here as well: it has waited too long.
    return reason in REFUSALS or (stage == "queue" and outcome != "incomplete" and reason not in ELSEWHERE)


def broken_off(outcome: str, stage: str, reason: str) -> bool:
    """Whether a request was broken off by the server, past the queue."""
    if outcome not in {"failed", "timed_out"} or turned_away(outcome, stage, reason):
        return False
    return reason not in ELSEWHERE | CLIENT


def grade_of_ends(share: float) -> Confidence:
    """Return the confidence in something that this share of all ends shows."""
    return "strong" if share >= ENDS_OFTEN else "moderate" if share >= ENDS_SOMETIMES else "weak"
