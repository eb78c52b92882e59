"""From the symptom to the next place to look, with the evidence that led there and how sure it is.

Each rule is a function of the evidence; it gives a finding or nothing.  A finding says where to look, never what is
broken.  Several places that the evidence supports alike are all named, and the headline says that it is mixed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np
from scipy import stats

from otel_lifecycle._cli.evidence.classes import in_flight_at_arrival
from otel_lifecycle._cli.evidence.document import Document
from otel_lifecycle._cli.evidence.sketch import Floats
from otel_lifecycle._cli.evidence.workload import Workload
from otel_lifecycle._cli.text import plural
from otel_lifecycle.semconv import CACHE_USAGE

Confidence = Literal["strong", "moderate", "weak"]
GRADES: Final[tuple[Confidence, ...]] = ("strong", "moderate", "weak")

FEW: Final = 20
"""Samples below which nothing is diagnosed but single, certain events."""
SIGNIFICANT: Final = 0.01
LARGE_SHARE: Final = 0.45
"""A stage's share of the time from which it is called large: the dominance threshold of single requests."""
PREFILL_SHARE: Final = 0.1
"""A prefill of less than a tenth of the time is not worth a look, however it grows."""
SLOW_TOKEN_S: Final = 0.05
"""A token every 50 ms is 20 a second: slower than most people's reading is noticed; an SLO of TPOT replaces it."""
TAIL: Final = 3.0
"""P99 over P50 from which a tail is called long."""
FULL: Final = 0.9
"""Share of a memory budget from which it is called full."""
STALL: Final = 10.0
"""A gap so many times a request's median gap, and at least :data:`STALL_S`, is a stall."""
STALL_S: Final = 0.25


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All findings, the surest first, and the one sentence above them."""

    headline: str
    findings: tuple[Finding, ...]

    def plain(self) -> Document:
        """Return it as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Case:
    """What the rules look at: the workload, and its report."""

    workload: Workload
    report: Document

    def column(self, name: str) -> Floats:
        """Return a column of the sampled rows."""
        return self.workload.main.sample.column(name)

    def figure(self, metric: str, name: str) -> float:
        """Return a latency figure of the report; NaN where there is none."""
        found = self.report["latency"][metric][name]
        return float("nan") if found is None else float(found)

    def share(self, stage: str) -> float:
        """Return a stage's share of the time of all completed requests together."""
        rows = {row["stage"]: (row["mean"] or 0.0) for row in self.report["stages"]["rows"]}
        total = sum(rows.values())
        return rows[stage] / total if total else 0.0


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
        if case.report["requests"]["terminated"] < FEW:
            return f"too few requests to diagnose ({case.report['requests']['terminated']} ended, {FEW} needed)"
        return "no single stage stands out: look end to end (client, network, and the sum of all stages)"
    causes = list(dict.fromkeys(finding.cause for finding in found if _weighs_as_much(finding, found[0])))
    if len(causes) > 1:
        return f"mixed evidence, no one cause: {', '.join(causes[:-1])} and {causes[-1]}"
    told, mixed = case.report["stages"]["bottleneck_count"], case.report["stages"]["bottlenecks"].get("mixed", 0)
    if told >= FEW and mixed >= LARGE_SHARE * told:
        return f"mixed evidence, no one cause: {mixed} of {told} requests have no dominant stage; first, {causes[0]}"
    return f"{causes[0]} ({found[0].confidence} evidence)"


def _weighs_as_much(finding: Finding, first: Finding) -> bool:
    """Whether a finding keeps the first from being named alone: as sure, or not much less and with half its time."""
    if finding.confidence == first.confidence:
        return True
    if finding.confidence == "weak" or finding.share is None or first.share is None:
        return False
    return finding.share >= 0.5 * first.share


def _paired(*columns: Floats) -> list[Floats]:
    """Return the columns over the rows that have them all."""
    known = ~np.isnan(np.vstack(columns)).any(axis=0)
    return [column[known] for column in columns]


def prefill(case: Case) -> Finding | None:
    """TTFT or prefill that rises with the length of the prompt."""
    told, share = case.report["stages"]["count"], case.share("prefill")
    if told and share < PREFILL_SHARE:
        return None
    fitted = _slope(case)
    if fitted is None:
        return None
    metric, fit, count, reach = fitted
    quality, middle = fit.rvalue**2, case.figure("ttft", "p50")
    large = reach >= 0.5 * middle and (share >= 0.25 or not told)
    line = (
        f"{metric} = {fit.intercept:.4g} s + {fit.slope * 1000:.4g} s per 1000 input tokens"
        f" (r² {quality:.2f}, p {_p(fit.pvalue)}, {count} requests)"
    )
    scale = f"from short to long prompts (p5 to p95) that is {reach:.3g} s, of a median TTFT of {middle:.3g} s"
    part = (f"prefill is {share:.0%} of all the time of {told} completed requests",) if told else ()
    return Finding(
        cause="prefill or attention",
        symptom=f"{'TTFT' if metric == 'ttft' else metric} rises with the length of the prompt",
        look_at="prefill: attention kernels, chunked prefill, prefix caching, prompt length limits",
        evidence=(line, scale, *part),
        confidence="strong" if quality >= 0.7 and large else "moderate" if quality >= 0.4 else "weak",
        share=share if told else None,
    )


def _slope(case: Case) -> tuple[str, Any, int, float] | None:
    """Return metric, fit, number and reach (p5 to p95 of the lengths, in seconds) of a slope that counts, or None."""
    for metric in ("prefill", "ttft"):
        length, seconds = _paired(case.column("input_tokens"), case.column(metric))
        if len(length) < FEW or len(np.unique(length)) < 5:
            continue
        fit = stats.linregress(length, seconds)
        reach = fit.slope * float(np.quantile(length, 0.95) - np.quantile(length, 0.05))
        if fit.pvalue < SIGNIFICANT and reach > 0.25 * case.figure("ttft", "p50") and fit.rvalue**2 >= 0.1:
            return metric, fit, len(length), reach
    return None


def _p(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"{value:.2g}"


def decode(case: Case) -> Finding | None:
    """Slow tokens, and most of the time spent in decode."""
    slo = case.workload.settings.slo
    limit = slo.tpot if slo is not None and slo.tpot is not None else SLOW_TOKEN_S
    tpot, count, share = case.figure("tpot", "p50"), case.report["latency"]["tpot"]["count"], case.share("decode")
    tail = case.figure("tpot", "p95")
    if count < FEW or not (tpot > limit or tail > 2 * tpot) or share < LARGE_SHARE:
        return None
    told = [
        f"TPOT p50 {tpot:.4g} s, p95 {tail:.4g} s over {count} requests, against {limit:.4g} s",
        f"decode is {share:.0%} of all the time of {case.report['stages']['count']} completed requests",
    ]
    (level, crowd), (length, context) = _against_tpot(case)
    if crowd > 0.3:
        told.append(f"TPOT rises with the requests in flight (Spearman {crowd:.2f}, {level}): batching, scheduling")
    if context > 0.3:
        told.append(f"TPOT rises with the context length (Spearman {context:.2f}, {length}): KV cache reads")
    sure: Confidence = "strong" if tpot > limit and share >= 0.6 else "moderate" if tpot > limit else "weak"
    return Finding(
        cause="decode",
        symptom="tokens come slowly, and decode takes most of the time",
        look_at="decode: batch size, KV cache, scheduling, memory bandwidth",
        evidence=tuple(told),
        confidence=sure,
        share=share,
    )


def _against_tpot(case: Case) -> tuple[tuple[int, float], tuple[int, float]]:
    tpot = case.column("tpot")
    return _rank(in_flight_at_arrival(case.workload.main), tpot), _rank(
        case.column("input_tokens") + case.column("output_tokens"), tpot
    )


def _rank(one: Floats, other: Floats) -> tuple[int, float]:
    """Return the number of pairs and their rank correlation; 0 where it means nothing."""
    left, right = _paired(one, other)
    if len(left) < FEW or np.ptp(left) == 0 or np.ptp(right) == 0:
        return len(left), 0.0
    found = stats.spearmanr(left, right)
    return len(left), float(found.statistic) if found.pvalue < SIGNIFICANT else 0.0


def capacity(case: Case) -> Finding | None:
    """Memory near its budget, and a batch that does not grow."""
    told: list[str] = []
    usage = [gauge for gauge in case.report["resources"] if gauge["name"] == CACHE_USAGE.name]
    full = [gauge for gauge in usage if gauge["peak"] >= FULL]
    told += [
        f"the key-value cache was {gauge['peak']:.0%} full at its peak ({gauge['count']} readings)" for gauge in full
    ]
    out_of_memory = sum(kind["count"] for kind in case.report["abnormal"]["kinds"] if kind["reason"] == "out_of_memory")
    if out_of_memory:
        told.append(f"{out_of_memory} requests failed for want of memory")
    evicted = case.report["stages"]["preempted_requests"]
    if evicted:
        told.append(f"{evicted} running requests were preempted, {case.report['stages']['preemptions']} times")
    stuck = _batch_does_not_grow(case)
    if not (full or out_of_memory) or (not stuck and not evicted and not out_of_memory):
        return None
    return Finding(
        cause="capacity",
        symptom="memory is near its budget, and the batch does not grow",
        look_at="capacity: KV cache size, precision, context limit, another device",
        evidence=tuple(told + ([stuck] if stuck else [])),
        confidence="strong" if len(told) + bool(stuck) >= 3 else "moderate",
    )


def _batch_does_not_grow(case: Case) -> str | None:
    batch = case.report["conditions"]["measured"].get("batch_size")
    peak = case.report["output"]["in_flight_peak"]
    if not batch or batch["count"] < FEW or peak is None or batch["p95"] < batch["max"] or peak <= batch["max"]:
        return None
    return f"the batch stays at {batch['max']:.0f} while up to {peak:.0f} requests are in flight"


def queueing(case: Case) -> Finding | None:
    """Waiting takes a large part, or the tail is long while many are in flight."""
    p50, p99, count = (case.figure("ttft", name) for name in ("p50", "p99", "count"))
    if not count >= FEW:
        return None
    crowd, rises = _rank(in_flight_at_arrival(case.workload.main), case.column("ttft"))
    share, tail = case.share("queue"), p99 / p50 if p50 else float("nan")
    long_tail = tail >= TAIL and rises > 0.3
    if not long_tail and share < LARGE_SHARE:
        return None
    told = [f"the queue is {share:.0%} of all the time of {case.report['stages']['count']} completed requests"]
    if tail >= TAIL:
        told.append(f"TTFT p99 {p99:.3g} s is {tail:.1f} times its p50 {p50:.3g} s, over {count:.0f} requests")
    if rises > 0.3:
        told.append(f"TTFT rises with the requests in flight on arrival (Spearman {rises:.2f}, {crowd} requests)")
    rejected = case.report["output"]["rejected"]
    if rejected:
        told.append(f"{rejected} requests were rejected")
    strong = share >= LARGE_SHARE and (long_tail or rises > 0.5 or share >= 0.6)
    return Finding(
        cause="queueing and scheduling",
        symptom="requests wait, and the tail is far above the median",
        look_at="queue: slots, batch size, admission, scheduling order, replicas",
        evidence=tuple(told),
        confidence="strong" if strong else "moderate" if share >= 0.25 or long_tail else "weak",
        share=share,
    )


def preprocessing(case: Case) -> Finding | None:
    """Preparation takes a large part."""
    share, count = case.share("preprocessing"), case.report["stages"]["count"]
    if count < FEW or share < 0.3:
        return None
    return Finding(
        cause="preprocessing",
        symptom="preparing the input takes a large part of the time",
        look_at="preprocessing: tokeniser, image or document fetch, worker threads",
        evidence=(f"preprocessing is {share:.0%} of all the time of {count} completed requests",),
        confidence="strong" if share >= LARGE_SHARE else "moderate",
        share=share,
    )


def stalls(case: Case) -> Finding | None:
    """A gap in the middle of decode."""
    median, longest = _paired(case.column("itl_p50"), case.column("itl_max"))
    stalled = (longest >= STALL_S) & (longest >= STALL * median)
    number, evicted = int(stalled.sum()), case.report["stages"]["preempted_requests"]
    if not number and not evicted:
        return None
    told = []
    if number:
        of = plural(len(longest), "sampled request")
        told.append(
            f"a gap of at least {STALL:.0f} times the median gap in {number} of {of};"
            f" the longest is {float(longest[stalled].max()):.3g} s"
        )
    if evicted:
        told.append(f"{evicted} requests were preempted, {case.report['stages']['preemptions']} times")
    often = number / len(longest) if len(longest) else 0.0
    return Finding(
        cause="preemption" if evicted and evicted >= number else "a stall in decode",
        symptom="gaps in the middle of decode",
        look_at="decode: preemption and recompute, garbage collection, weight sync, a shared device",
        evidence=tuple(told),
        confidence="strong" if often >= 0.05 or evicted else "moderate" if often >= 0.01 and number >= 5 else "weak",
    )


def waste(case: Case) -> Finding | None:
    """Tokens after the end: the server goes on for clients that left."""
    output = case.report["output"]
    told = []
    if output["wasted_tokens"]:
        told.append(f"{plural(output['wasted_tokens'], 'token')} produced after their request had ended")
    if output["cancel_lag"]:
        lag = output["cancel_lag"]
        told.append(f"the server went on for {lag['mean']:.3g} s on average ({lag['count']} requests)")
    if output["completed_without_client"]:
        told.append(
            f"{plural(output['completed_without_client'], 'request')} ran to the end though the client had left"
        )
    if not told:
        return None
    return Finding(
        cause="work for clients that left",
        symptom="tokens after the end",
        look_at="cancellation: does a disconnect reach the engine, and how soon",
        evidence=tuple(told),
        confidence="strong",
    )


RULES: Final[tuple[Callable[[Case], Finding | None], ...]] = (
    queueing,
    prefill,
    decode,
    preprocessing,
    capacity,
    stalls,
    waste,
)
