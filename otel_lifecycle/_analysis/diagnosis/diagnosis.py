"""From the symptom to the next place to look, with the evidence that led there and how sure it is.

The rules are in :mod:`otel_lifecycle._analysis.diagnosis.symptoms`.  Several places that the evidence supports alike
are all named, and the headline says that it is mixed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from otel_lifecycle._analysis.diagnosis import interference, symptoms
from otel_lifecycle._analysis.diagnosis.case import FEW, GRADES, LARGE_SHARE, Case, Finding
from otel_lifecycle._analysis.document import Document
from otel_lifecycle._analysis.workload import Workload
from otel_lifecycle._table.requests.model import STAGES
from otel_lifecycle._table.text import plural

# The sort by confidence is stable: among equals this order decides, and the first one makes the headline.
RULES: Final[tuple[Callable[[Case], Finding | None], ...]] = (
    symptoms.queueing,
    interference.idle_queue,
    symptoms.endings,
    symptoms.prefill,
    symptoms.decode,
    interference.prefill_stalls,
    interference.preemption_stalls,
    interference.unexplained_stalls,
    symptoms.preprocessing,
    symptoms.capacity,
    symptoms.stalls,
    symptoms.waste,
    symptoms.unended,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All findings, the surest first, and the one sentence above them."""

    headline: str
    findings: tuple[Finding, ...]

    def plain(self) -> Document:
        """Return it as plain data."""
        return asdict(self)


def diagnose(workload: Workload, report: Document) -> Diagnosis:
    """Apply every rule."""
    case = Case(workload, report)
    found = [finding for rule in RULES if (finding := rule(case)) is not None]
    found.sort(key=lambda finding: GRADES.index(finding.confidence))
    return Diagnosis(headline=_headline(case, found), findings=tuple(found))


def _headline(case: Case, found: list[Finding]) -> str:
    if not case.report["requests"]["total"]:
        return "no request to judge"
    if not found:
        return _of_nothing(case)
    # Two rules may name one cause; it is still one cause.
    causes = list(dict.fromkeys(finding.cause for finding in found if _weighs_as_much(finding, found[0])))
    if len(causes) > 1:
        return f"mixed evidence, no one cause: {', '.join(causes[:-1])} and {causes[-1]}"
    told, mixed = case.report["stages"]["bottleneck_count"], case.report["stages"]["bottlenecks"].get("mixed", 0)
    if told >= FEW and mixed >= LARGE_SHARE * told:
        return f"mixed evidence, no one cause: {mixed} of {told} requests have no dominant stage; first, {causes[0]}"
    return f"{causes[0]} ({found[0].confidence} evidence)"


def _of_nothing(case: Case) -> str:
    """Return the headline without findings: too few requests, the largest stage, or no stage at all."""
    if case.terminated < FEW:
        return f"too few requests to diagnose ({case.terminated} ended, {FEW} needed)"
    shares = {stage: share for stage in STAGES if (share := case.share(stage)) is not None}
    stage = max(shares, key=lambda stage: shares[stage], default=None)
    if stage is not None and shares[stage] >= LARGE_SHARE:
        completed = plural(case.broken_down, "completed request")
        where = f"{stage} takes {shares[stage]:.0%} of the time of {completed}"
        return f"no symptom stands out; {where}: look there first, then end to end"
    return "no single stage stands out: look end to end (client, network, and the sum of all stages)"


def _weighs_as_much(finding: Finding, first: Finding) -> bool:
    """Whether a finding stands beside the first in the headline: as sure, or moderate with half of its time."""
    if finding.confidence == first.confidence:
        return True
    if finding.confidence == "weak" or finding.share is None or first.share is None:
        return False
    return finding.share >= 0.5 * first.share
