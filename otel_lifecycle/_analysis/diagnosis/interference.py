"""Rules about neighbours: what the requests of one engine did to each other."""

from __future__ import annotations

from otel_lifecycle._analysis.diagnosis.case import FEW, Case, Confidence, Finding, percent
from otel_lifecycle._table.text import plural, seconds

STRONG, MODERATE, WEAK = 0.2, 0.1, 0.05
"""The part of decode time that stalls take, from which they are strong, moderate and weak evidence."""
IDLE_SHARE = 0.25
"""The idle part of the wait from which admission is a place to look."""
NOTICED_S = 0.01
"""A shorter mean wait is not worth a look, whatever was running."""


def _sure(share: float) -> Confidence | None:
    return "strong" if share >= STRONG else "moderate" if share >= MODERATE else "weak" if share >= WEAK else None


def prefill_stalls(case: Case) -> Finding | None:
    """Prefills of other requests interrupt decode."""
    return _stalled(
        case,
        "prefill",
        "prefills of other requests stall decode",
        "prefill of the neighbours: chunked prefill and its chunk size, separate prefill workers, prompt length limits",
    )


def unexplained_stalls(case: Case) -> Finding | None:
    """Decode stalls beside no prefill and in no preemption."""
    return _stalled(
        case,
        "unexplained",
        "decode stalls, and no neighbour explains it",
        "the host: garbage collection, CPU limits, weight sync, a device that other processes use",
    )


def preemption_stalls(case: Case) -> Finding | None:
    """Preemptions interrupt decode for long."""
    return _stalled(
        case,
        "preemption",
        "preemptions stall decode",
        "capacity: KV cache size, the number of running requests, how preempted requests are taken up again",
    )


def _stalled(case: Case, cause: str, symptom: str, look_at: str) -> Finding | None:
    told = case.report["interference"]["stalls"]
    share = told[cause] / told["decode_time"] if told["decode_time"] else 0.0
    sure = _sure(share)
    # The share of the decode time and not the number of stalls: many short ones may not matter.
    if sure is None or told["count"] < FEW:
        return None
    stalls, requests = plural(told["stalls"], "stall"), plural(told["stalled_requests"], "request")
    many = f"{stalls} in {requests}, the longest {seconds(told['longest'])}"
    lost = f"{seconds(told[cause])} of {seconds(told['decode_time'])} of decode ({percent(share)})"
    return Finding(
        cause=f"stalls by {cause}" if cause != "unexplained" else "unexplained stalls",
        symptom=symptom,
        look_at=look_at,
        evidence=(
            f"{lost} over {plural(told['count'], 'request')} with at least 8 gaps",
            many,
        ),
        confidence=sure,
        share=share,
    )


def idle_queue(case: Case) -> Finding | None:
    """Requests wait though none is running."""
    told = case.report["interference"]["queue"]
    # With hardly any wait, its idle share is only the cost of handing a request over.
    if told["count"] < FEW or told["wait"] < NOTICED_S * told["count"]:
        return None
    share = told["idle"] / told["wait"]
    if share < IDLE_SHARE:
        return None
    idle = f"{seconds(told['idle'])} of {seconds(told['wait'])} of waiting ({percent(share)})"
    return Finding(
        cause="admission",
        symptom="requests wait while the engine is idle",
        look_at="admission: batching windows, rate limits, locks before the scheduler, clocks of two hosts",
        evidence=(f"{idle} passed with no request running, over {plural(told['count'], 'request')}",),
        confidence="strong" if share >= 0.5 else "moderate",
        share=case.share("queue"),
    )
