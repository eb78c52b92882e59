"""The rules of the diagnosis: each a function of the evidence that gives a finding or nothing.

A finding says where to look, never what is broken.  Its sentences state what was observed, and its confidence follows
from the share of requests that were affected.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from otel_lifecycle._analysis.diagnosis.case import (
    ENDS_OFTEN,
    ENDS_RARELY,
    FEW,
    GRADES,
    LARGE_SHARE,
    MEMORY,
    OFTEN,
    SIGNIFICANT,
    Case,
    Confidence,
    Finding,
    broken_off,
    grade,
    grade_of_ends,
    part_of,
    surer,
    turned_away,
    were,
)
from otel_lifecycle._analysis.diagnosis.fits import Line, fitted_line
from otel_lifecycle._table.text import plural
from otel_lifecycle.semconv import CACHE_USAGE, MEMORY_USED

PREFILL_SHARE: Final = 0.1
"""A prefill of less than a tenth of the time is not worth a look, however it grows."""
WAITING_SHARE: Final = 0.25
"""A queue's share of the time from which requests are said to wait."""
SLOW_TOKEN_S: Final = 0.05
"""A token every 50 ms is 20 a second: slower than most people's reading is noticed; an SLO of TPOT replaces it."""
TAIL: Final = 3.0
"""P99 over P50 from which a tail is called long."""
FULL: Final = 0.9
"""Share of a memory budget from which it is called full."""
LEVEL: Final = 0.98
"""Mean over peak of the memory in use from which it is called level."""
LONG_GAP: Final = 10.0
"""A gap so many times a request's median gap, and at least :data:`LONG_GAP_S`, is a symptom.

Far above what a live request counts as a stall (twice the usual gap and 5 ms): neighbours cause those all the time, and
a report that called each of them a symptom would find one in every workload.
"""
LONG_GAP_S: Final = 0.25
"""A quarter of a second is a pause that a reader notices."""
BRIEF: Final = 0.01
"""A preemption that takes less than this part of the mean E2E does not explain slow requests."""


def queueing(case: Case) -> Finding | None:
    """Waiting takes a large part, the tail is long with many in flight, or requests end in the queue."""
    seen, sure = _waiting(case)
    away = case.ends(turned_away)
    lost = away.total()
    # Below ENDS_RARELY refusals are part of normal operation.
    if case.terminated >= FEW and lost >= ENDS_RARELY * case.terminated:
        seen.append(("requests are refused, or end while they wait", _ends(away, case, "never got past the queue")))
        sure.append(grade_of_ends(lost / case.terminated))
    if not sure:
        return None
    return Finding(
        cause="queueing and scheduling",
        symptom="; ".join(dict.fromkeys(symptom for symptom, _ in seen if symptom)),
        look_at="queue: slots, batch size, admission, scheduling order, replicas",
        evidence=tuple(line for _, line in seen),
        confidence=min(sure, key=GRADES.index),
        share=case.share("queue"),
    )


def _waiting(case: Case) -> tuple[list[tuple[str, str]], list[Confidence]]:
    """Return (symptom, line) of what the times say about the queue, and how sure that is, if they say anything."""
    p50, p99, count = (case.figure("ttft", name) for name in ("p50", "p99", "count"))
    share = case.share("queue")
    # Written so that NaN (no TTFT at all) also ends here.
    if not count >= FEW:
        return [], []
    crowd, rises = case.rank("level", "ttft")
    # NaN fails every comparison below, as an unknown tail must.
    tail = p99 / p50 if p50 else float("nan")
    long_tail, large = tail >= TAIL and rises > 0.3, share is not None and share >= LARGE_SHARE
    if not long_tail and not large:
        return [], []
    waits = "requests wait" if share is not None and share >= WAITING_SHARE else ""
    seen = [(waits, line) for line in case.share_line("queue")]
    if tail >= TAIL:
        line = f"TTFT p99 {p99:.3g} s is {tail:.1f} times its p50 {p50:.3g} s, over {plural(int(count), 'request')}"
        seen.append(("the tail of TTFT is far above its median", line))
    if rises > 0.3:
        line = f"TTFT rises with the requests in flight on arrival (Spearman {rises:.2f}, {plural(crowd, 'request')})"
        seen.append(("TTFT rises with the requests in flight", line))
    # One sign alone is moderate: a long tail also comes from long prompts, a large queue also from a burst.
    strong = large and (long_tail or rises > 0.5 or (share or 0.0) >= 0.6)
    return seen, ["strong" if strong else "moderate"]


def _ends(found: Counter[tuple[str, str, str]], case: Case, what: str) -> str:
    """Say how many requests ended this way, and the most frequent reasons."""
    ways: Counter[str] = Counter()
    for (outcome, _, reason), count in found.items():
        ways[outcome if reason == "-" else f"{outcome}, {reason}"] += count
    told = "; ".join(f"{count:,} {way}" for way, count in ways.most_common(3))
    return f"{part_of(found.total(), case.terminated)} that ended {what}: {told}"


def endings(case: Case) -> Finding | None:
    """Requests that the server ended after the queue; the stage with most of them is named."""
    found = case.ends(broken_off)
    broken = found.total()
    if case.terminated < FEW or broken < ENDS_RARELY * case.terminated:
        return None
    stages: Counter[str] = Counter()
    for (_, stage, _), count in found.items():
        stages[stage] += count
    stage, most = stages.most_common(1)[0]
    known = stage != "-"
    where = "; ".join(f"{count:,} in {name}" for name, count in stages.most_common() if name != "-")
    return Finding(
        cause=f"failures in {stage}" if known and most > broken / 2 else "failures",
        symptom="requests fail or run out of time" + (f", most of them in {stage}" if known else ""),
        look_at=(f"{stage}: " if known else "") + "the server's log of these requests, its deadlines and resources",
        evidence=(_ends(found, case, "were broken off by the server"), *([f"by stage: {where}"] if where else [])),
        confidence=grade_of_ends(broken / case.terminated),
    )


def unended(case: Case) -> Finding | None:
    """Requests without a terminal event."""
    total, endless = case.report["requests"]["total"], case.report["requests"]["incomplete"]
    if total < FEW or endless < OFTEN * total:
        return None
    return Finding(
        cause="requests without an end",
        symptom="requests never end",
        look_at="the server: paths that drop a request without a terminal event, processes that were killed",
        evidence=(f"{part_of(endless, total)} have no terminal event",),
        confidence="strong" if endless >= ENDS_OFTEN * total else "moderate",
    )


def prefill(case: Case) -> Finding | None:
    """TTFT or prefill that rises with the length of the prompt."""
    share = case.share("prefill")
    # An unknown share does not rule prefill out: then TTFT alone must show it.
    if share is not None and share < PREFILL_SHARE:
        return None
    fitted = _slope(case)
    if fitted is None:
        return None
    metric, fit = fitted
    quality, middle = fit.r**2, case.figure("ttft", "p50")
    large = fit.reach >= 0.5 * middle and (share is None or share >= WAITING_SHARE)
    line = (
        f"{metric} = {fit.intercept:.4g} s + {fit.slope * 1000:.4g} s per 1000 input tokens"
        f" (r² {quality:.2f}, p {_p(fit.p)}, {plural(fit.count, 'request')})"
    )
    scale = f"from short to long prompts (p5 to p95) that is {fit.reach:.3g} s, of a median TTFT of {middle:.3g} s"
    return Finding(
        cause="prefill or attention",
        symptom=f"{'TTFT' if metric == 'ttft' else metric} rises with the length of the prompt",
        look_at="prefill: attention kernels, chunked prefill, prefix caching, prompt length limits",
        evidence=(line, scale, *case.share_line("prefill")),
        confidence="strong" if quality >= 0.7 and large else "moderate" if quality >= 0.4 else "weak",
        share=share,
    )


def _slope(case: Case) -> tuple[str, Line] | None:
    """Return metric and line of a slope over the length of the prompt that counts, or None."""
    for metric in ("prefill", "ttft"):
        fit = fitted_line(case.workload.table, "input_tokens", metric)
        # Fewer than five lengths are groups, not a line.
        if fit is None or fit.count < FEW or fit.distinct < 5:
            continue
        # Significance alone is not enough: the slope must also explain a visible part of TTFT.
        if fit.p < SIGNIFICANT and fit.reach > 0.25 * case.figure("ttft", "p50") and fit.r**2 >= 0.1:
            return metric, fit
    return None


def _p(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"{value:.2g}"


def decode(case: Case) -> Finding | None:
    """Slow tokens, and most of the time spent in decode."""
    slo = case.workload.settings.slo
    limit = slo.tpot if slo is not None and slo.tpot is not None else SLOW_TOKEN_S
    tpot, tail, count = case.figure("tpot", "p50"), case.figure("tpot", "p95"), case.report["latency"]["tpot"]["count"]
    share, line = _decode_share(case)
    if share is None or count < FEW or not (tpot > limit or tail > 2 * tpot) or share < LARGE_SHARE:
        return None
    told = [f"TPOT p50 {tpot:.4g} s, p95 {tail:.4g} s over {plural(count, 'request')}, against {limit:.4g} s", line]
    level, crowd = case.rank("level", "tpot")
    length, context = case.rank("input_tokens + output_tokens", "tpot")
    if crowd > 0.3:
        told.append(f"TPOT rises with the requests in flight (Spearman {crowd:.2f}, {level}): batching, scheduling")
    if context > 0.3:
        told.append(f"TPOT rises with the context length (Spearman {context:.2f}, {length}): KV cache reads")
    slow = "tokens come slowly" if tpot > limit else "tokens come slowly for some"
    return Finding(
        cause="decode",
        symptom=f"{slow}, and decode takes {'most' if share > 0.5 else 'a large part'} of the time",
        look_at="decode: batch size, KV cache, scheduling, memory bandwidth",
        evidence=tuple(told),
        confidence="strong" if tpot > limit and share >= 0.6 else "moderate" if tpot > limit else "weak",
        share=share,
    )


def _decode_share(case: Case) -> tuple[float | None, str]:
    """Return decode's share and its line; without boundaries, that of the time after the first token."""
    share = case.share("decode")
    if share is not None and case.broken_down >= FEW:
        return share, case.share_line("decode")[0]
    count, after = case.workload.table.one(
        "SELECT count(*), sum(e2e - ttft) / nullif(sum(e2e), 0) FROM live WHERE completed AND e2e IS NOT NULL"
        " AND ttft IS NOT NULL"
    )
    if count < FEW or after is None:
        return None, ""
    return after, f"{after:.0%} of E2E comes after the first token, over {plural(count, 'completed request')}"


def preprocessing(case: Case) -> Finding | None:
    """Preparation takes a large part."""
    share = case.share("preprocessing")
    if share is None or case.broken_down < FEW or share < 0.3:
        return None
    return Finding(
        cause="preprocessing",
        symptom="preparing the input takes a large part of the time",
        look_at="preprocessing: tokeniser, image or document fetch, worker threads",
        evidence=case.share_line("preprocessing"),
        confidence="strong" if share >= LARGE_SHARE else "moderate",
        share=share,
    )


def capacity(case: Case) -> Finding | None:
    """Memory near its budget, together with something that it explains; or requests that failed for lack of it."""
    full, level = _full_cache(case), _level_memory(case)
    failed = case.ends(lambda _outcome, _stage, reason: reason == MEMORY).total()
    evicted, stuck = case.report["stages"]["preempted_requests"], _batch_does_not_grow(case)
    often_failed = failed / max(case.terminated, 1)
    evicts = evicted > 0 and grade(evicted / case.report["requests"]["total"]) != "weak"
    waits = bool(full or level) and (case.share("queue") or 0.0) >= WAITING_SHARE
    effects = [
        *(["running requests are preempted"] if evicts else []),
        *(["the batch does not grow"] if stuck else []),
        *(["requests wait"] if waits else []),
    ]
    # An engine aims at a full cache, so a full cache is a symptom only together with an effect.
    if not failed and not (full and effects) and not (level and stuck):
        return None
    symptoms = ["the key-value cache is full"] if full else ["memory in use stays level"] if level else []
    symptoms += ["requests fail for lack of memory"] if failed else []
    told = full + level
    told += [f"{part_of(failed, case.terminated)} that ended failed for lack of memory"] if failed else []
    told += [_preempted(case)] if evicted else []
    told += [stuck] if stuck else []
    told += case.share_line("queue") if waits else ()
    sure: Confidence = grade(often_failed) if failed else "weak"
    if full and effects:
        sure = surer(sure, "strong" if evicts and stuck else "moderate")
    return Finding(
        cause="capacity",
        symptom="; ".join(symptoms + effects),
        look_at="capacity: KV cache size, precision, context limit, another device",
        evidence=tuple(told),
        confidence=sure,
    )


def _full_cache(case: Case) -> list[str]:
    return [
        f"the key-value cache was {gauge['peak']:.0%} full at its peak and {gauge['mean']:.0%} on average"
        f" ({plural(gauge['count'], 'reading')})"
        for gauge in case.report["resources"]
        if gauge["name"] == CACHE_USAGE.name and gauge["peak"] >= FULL
    ]


def _level_memory(case: Case) -> list[str]:
    """Return what the memory in use says: its budget is recorded nowhere, but what stays at its peak may be at it."""
    return [
        f"memory in use{' of ' + gauge['labels'] if gauge['labels'] else ''} stays at its peak of"
        f" {gauge['peak'] / 1e9:.3g} GB ({plural(gauge['count'], 'reading')}); its budget is not recorded"
        for gauge in case.report["resources"]
        if gauge["name"] == MEMORY_USED.name and gauge["count"] >= FEW and gauge["mean"] >= LEVEL * gauge["peak"] > 0
    ]


def _batch_does_not_grow(case: Case) -> str | None:
    batch = case.report["conditions"]["measured"].get("batch_size")
    peak = case.report["output"]["in_flight_peak"]
    # The 95th percentile at the maximum shows a limit rather than a single peak.
    if not batch or batch["count"] < FEW or peak is None or batch["p95"] < batch["max"] or peak <= batch["max"]:
        return None
    return f"the batch stays at {batch['max']:.0f} while up to {peak:.0f} requests are in flight"


def _preempted(case: Case) -> str:
    evicted, times = case.report["stages"]["preempted_requests"], case.report["stages"]["preemptions"]
    lost = case.report["stages"]["preempted"]
    told = f"{part_of(evicted, case.report['requests']['total'])} {were(evicted)} preempted, {plural(times, 'time')}"
    # An engine may report a preemption without its length.
    return told + (f", for {lost['mean']:.3g} s on average" if lost["count"] else "")


def stalls(case: Case) -> Finding | None:
    """A gap in the middle of decode, or a preemption."""
    judged, gaps, longest = case.workload.table.one(
        f"SELECT count(*), count(*) FILTER (stalled), max(itl_max) FILTER (WHERE stalled) FROM (SELECT itl_max,"
        f" itl_max >= {LONG_GAP_S} AND itl_max >= {LONG_GAP} * itl_p50 AS stalled FROM live"
        " WHERE itl_p50 IS NOT NULL AND itl_max IS NOT NULL)"
    )
    evicted = case.report["stages"]["preempted_requests"]
    if not gaps and not evicted:
        return None
    told, symptoms = [], []
    sure: Confidence = "weak"
    if gaps:
        symptoms.append("gaps in the middle of decode")
        told.append(
            f"a gap of at least {LONG_GAP:.0f} times the median gap"
            f" in {gaps} of {plural(judged, 'request')};"
            f" the longest is {longest:.3g} s"
        )
        often = gaps / judged
        # One pause of the host can cause a few gaps, and in a small run they are a large share.
        sure = grade(often) if gaps >= 5 else "weak"
    if evicted:
        symptoms.append("running requests are preempted")
        told.append(_preempted(case))
        if not _brief(case):
            sure = surer(sure, grade(evicted / case.report["requests"]["total"]))
    return Finding(
        cause="preemption" if evicted and evicted >= gaps else "a stall in decode",
        symptom=", ".join(symptoms),
        look_at="decode: preemption and recompute, garbage collection, weight sync, a shared device",
        evidence=tuple(told),
        confidence=sure,
    )


def _brief(case: Case) -> bool:
    lost, whole = case.report["stages"]["preempted"]["mean"], case.report["latency"]["e2e"]["mean"]
    return lost is not None and whole is not None and lost < BRIEF * whole


def waste(case: Case) -> Finding | None:
    """Tokens after the end: the server goes on, maybe for clients that left."""
    output, counts, total = case.report["output"], case.workload.counts, case.report["requests"]["total"]
    wasted, lag, unseen = output["wasted_tokens"], output["cancel_lag"], output["completed_without_client"]
    # Tokens after a normal end point to the engine's loop, not to cancellation.
    left = unseen + case.ends(lambda outcome, _stage, _reason: outcome in {"cancelled", "timed_out"}).total()
    told, shares = [], [0.0]
    if wasted:
        told.append(f"{plural(wasted, 'token')} produced after their request had ended")
        shares.append(wasted / (wasted + (output["output_tokens"] or 0)))
        shares.append(counts["wasting_requests"] / max(total, 1))
    if lag:
        told.append(f"the server went on for {lag['mean']:.3g} s on average ({plural(lag['count'], 'request')})")
        shares.append(lag["count"] / max(total, lag["count"]))
    if unseen:
        told.append(f"{part_of(unseen, total)} ran to the end though the client had left")
        shares.append(unseen / total)
    if not told:
        return None
    symptoms = [
        *(["tokens after the end"] if wasted or lag else []),
        *(["requests that run on without their client"] if unseen else []),
    ]
    if left:
        cause, look_at = "work for clients that left", "cancellation: does a disconnect reach the engine, and how soon"
        told += [f"{part_of(left, total)} lost their client or ran out of time"] if wasted or lag else []
    else:
        cause, look_at = "tokens after the end", "the engine's loop: what it produces after a request has completed"
    return Finding(
        cause=cause, symptom=", ".join(symptoms), look_at=look_at, evidence=tuple(told), confidence=grade(max(shares))
    )
