"""A workload's report as plain data: what the terminal, JSON, CSV and the page all show, each figure with its count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any, Final

from otel_lifecycle._cli.evidence.classes import arrival_pattern, class_name
from otel_lifecycle._cli.evidence.evidence import Evidence
from otel_lifecycle._cli.evidence.sketch import RELATIVE_ERROR, summary
from otel_lifecycle._cli.evidence.workload import OPEN, SHORT, UNTOLD, Workload
from otel_lifecycle._cli.requests.model import STAGES, SeenRequest
from otel_lifecycle._cli.sources.tally import TROUBLE, ReadingTally
from otel_lifecycle.semconv import OUTCOMES

Document = dict[str, Any]

SCHEMA_VERSION: Final = 1
"""Version of the report's JSON; it grows when a key is removed or changes its meaning, not when one is added."""

LATENCIES: Final = ("ttft", "tpot", "e2e")
"""Each over all requests that have it; beside them there is ``e2e_completed``, over the completed ones alone."""
SAMPLED: Final = (
    "a Jaeger holds the traces that were sampled: with head or tail sampling before it, rates, throughput and the mix"
    " of outcomes are those of the sample and not of the service; the service's own are in its metrics"
)
WITHIN: Final = ("itl_p50", "itl_p95", "itl_p99", "itl_max")
LENGTHS: Final = ("input_tokens", "output_tokens", "cached_tokens", "batch_size", "concurrency")


def report_of(workload: Workload, sources: Iterable[str]) -> Document:
    """Return the report.  Times in seconds, rates between 0 and 1, throughput per second; None is unknown."""
    main, sources = workload.main, list(sources)
    return {
        "schema_version": SCHEMA_VERSION,
        "sources": sources,
        "warnings": _warnings(workload, sources),
        "read": dict(workload.tally.read),
        "trouble": [line for line in counted(workload.tally) if line["kind"] in TROUBLE],
        "beside": [line for line in counted(workload.tally) if line["kind"] not in TROUBLE],
        "exact": main.exact,
        "relative_error": 0.0 if main.exact else RELATIVE_ERROR,
        "window": _window(workload),
        "requests": _requests(main),
        "abnormal": _abnormal(workload),
        "stages": _stages(main),
        "latency": _latency(workload),
        "interference": main.interference.describe(),
        "output": _output(workload),
        "conditions": _conditions(main),
        "classes": _classes(workload),
        "groups": [part(name, evidence) for name, evidence in _by_size(workload.groups)],
        "group_by": workload.settings.group_by,
        "apart": [part(name, evidence) for name, evidence in _by_size(workload.apart)],
        "roles": [_role(name, evidence) for name, evidence in _by_size(workload.roles)],
        "startup": {"phases": workload.resources.phases(), "launch": _plain(workload.resources.launch)},
        "resources": workload.resources.gauges(),
        "slowest": [request_row(request) for request in workload.slowest],
    }


def counted(tally: ReadingTally) -> list[Document]:
    """Return what was counted while reading, as plain data."""
    return [
        {"kind": kind, "count": number, "meaning": meaning, "places": places}
        for kind, number, meaning, places in tally.lines()
    ]


def _by_size(parts: Mapping[str, Evidence]) -> list[tuple[str, Evidence]]:
    return sorted(parts.items(), key=lambda item: (-item[1].total, item[0]))


def _plain(attributes: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in attributes.items()}


def _warnings(workload: Workload, sources: Iterable[str]) -> list[str]:
    """Return what a reader must know before using any figure."""
    told = []
    if any(source.startswith(("http://", "https://")) for source in sources):
        told.append(SAMPLED)
    key = workload.settings.group_by
    if key is not None and set(workload.groups) == {UNTOLD}:
        names = "" if key in SHORT else f"; it is an attribute's name or one of {', '.join(SHORT)}"
        told.append(f"no request has {SHORT.get(key, key)!r}, so there is nothing to group by{names}")
    return told


def span_of_time(workload: Workload) -> tuple[float, float] | None:
    """Return the window in epoch seconds; an open end is the first arrival or the last end of the requests kept."""
    start, end = workload.settings.window or OPEN
    main = workload.main
    first = main.first_arrival if start == OPEN[0] else start * 1e-9
    last = main.last_end if end == OPEN[1] else end * 1e-9
    return None if first is None or last is None else (first, last)


def instant(seconds: float) -> str:
    """Return an instant as people write it, in UTC."""
    return datetime.fromtimestamp(seconds, tz=timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _window(workload: Workload) -> Document:
    span = span_of_time(workload)
    return {
        # A window without a request has no bounds rather than those of the epoch.
        "start": None if span is None else instant(span[0]),
        "end": None if span is None else instant(span[1]),
        "seconds": None if span is None else span[1] - span[0],
        "chosen": workload.settings.window is not None,
        "requests_outside": workload.outside_window,
    }


def _requests(main: Evidence) -> Document:
    counts: Document = {outcome: main.outcomes[outcome] for outcome in OUTCOMES}
    return {"total": main.total, "terminated": main.terminated, **counts}


def request_row(request: SeenRequest) -> Document:
    """Return what a table says of a single request."""
    return {
        "request": request.attributes.get("inference.request.id"),
        "trace_id": request.trace_id,
        "span_id": request.span_id,
        "arrival": instant(request.start_ns * 1e-9),
        "outcome": request.outcome,
        "stage": request.failure_stage,
        "reason": request.reason,
        "input_tokens": request.input_tokens,
        "output_tokens": request.output_tokens,
        "bottleneck": request.bottleneck,
        "ttft": request.seconds.get("ttft"),
        "e2e": request.seconds.get("e2e"),
    }


def _abnormal(workload: Workload) -> Document:
    kinds = [
        {"outcome": outcome, "stage": stage, "reason": reason, "count": number}
        for (outcome, stage, reason), number in workload.main.abnormal.most_common()
    ]
    return {
        "count": sum(kind["count"] for kind in kinds),
        "kinds": kinds,
        "requests": [request_row(request) for request in workload.abnormal],
    }


def _stages(main: Evidence) -> Document:
    shares = main.mean_shares()
    return {
        "completed": main.outcomes["completed"],
        "count": main.shared,
        "rows": [{"stage": stage, "mean_share": shares.get(stage), **main.stage(stage)} for stage in STAGES],
        "bottlenecks": dict(main.bottlenecks.most_common()),
        "bottleneck_count": sum(main.bottlenecks.values()),
        "preemptions": main.notes["preemptions"],
        "preempted_requests": main.notes["preempted_requests"],
        "preempted": main.distribution("preempted"),
    }


def _latency(workload: Workload) -> Document:
    main = workload.main
    told = {name: main.distribution(name) for name in LATENCIES}
    gaps, how = summary(main.gaps), "every gap of the requests whose token times tell their gaps"
    # Spans first: their gaps are exact, those of the metric lie anywhere within a bucket.
    if not main.gaps.n:
        from_metric = workload.resources.inter_token_latency()
        gaps = from_metric or gaps
        how = "every gap, from the histogram metric; quantiles within a bucket" if from_metric else "no gaps recorded"
    within = {name: main.distribution(name) for name in WITHIN}
    # Buckets differ in width, so the metric's quantiles have no single error.
    error = RELATIVE_ERROR if main.gaps.n else None
    return {
        **told,
        "e2e_completed": main.completed_e2e(),
        "itl": {**gaps, "of": how, "relative_error": error},
        "itl_within_requests": within,
    }


def _output(workload: Workload) -> Document:
    main, span = workload.main, span_of_time(workload)
    seconds = None if span is None else span[1] - span[0]
    tokens = main.sketch("output_tokens")
    wasted = workload.resources.wasted_tokens()
    mean_in_flight, peak_in_flight = _in_flight(workload)
    return {
        "terminated": main.terminated,
        "success_rate": main.rate(main.outcomes["completed"]),
        "rejected": main.rejected,
        "rejection_rate": main.rate(main.rejected),
        "timed_out": main.outcomes["timed_out"],
        "timeout_rate": main.rate(main.outcomes["timed_out"]),
        "seconds": seconds,
        # None, not 0: a window of no length has no throughput.
        "request_throughput": main.outcomes["completed"] / seconds if seconds else None,
        "token_throughput": tokens.total / seconds if seconds and tokens.n else None,
        "output_tokens": int(tokens.total) if tokens.n else None,
        "output_tokens_count": tokens.n,
        "slo_judged": main.slo_judged,
        "goodput": main.slo_met / main.slo_judged if main.slo_judged else None,
        "goodput_throughput": main.slo_met / seconds if seconds and main.slo_judged else None,
        "in_flight_mean": mean_in_flight,
        "in_flight_peak": peak_in_flight,
        "illegal": main.notes["illegal"],
        "breaches": dict(main.breaches.most_common()),
        # The metric first: our spans end before late tokens are known, only replayed ones show them.
        "wasted_tokens": main.notes["wasted_tokens"] if wasted is None else wasted,
        "cancel_lag": workload.resources.cancel_lag(),
        "completed_without_client": main.notes["completed_without_client"],
    }


def _in_flight(workload: Workload) -> tuple[float | None, int | None]:
    """Return the mean and the peak of the number in flight within the window."""
    span = span_of_time(workload)
    return (None, None) if span is None else workload.main.in_flight.within(*span)


def _conditions(main: Evidence) -> Document:
    dispersion = main.timeline.dispersion()
    return {
        "stated": main.conditions.describe(),
        "measured": {name: main.distribution(name) for name in LENGTHS if main.sketch(name).n},
        "arrivals": {
            "pattern": arrival_pattern(main),
            "count": main.total,
            "dispersion": None if dispersion is None else dispersion[0],
        },
    }


def _classes(workload: Workload) -> list[Document]:
    parts = [part(class_name(name, evidence), evidence) for name, evidence in _by_size(workload.classes)]
    labelled = workload.main.conditions.counts["workload"]
    return [{**one, "labelled": one["name"] in labelled} for one in parts]


def part(name: str, evidence: Evidence) -> Document:
    """Return the short form of a report, of one class, group or kind of traffic."""
    return {
        "name": name,
        **_requests(evidence),
        "success_rate": evidence.rate(evidence.outcomes["completed"]),
        **{metric: evidence.distribution(metric) for metric in LATENCIES},
        "e2e_completed": evidence.completed_e2e(),
        "input_tokens": evidence.distribution("input_tokens"),
        "output_tokens": evidence.distribution("output_tokens"),
        "bottlenecks": dict(evidence.bottlenecks.most_common()),
        "mean_shares": evidence.mean_shares(),
        "arrivals": arrival_pattern(evidence),
        "exact": evidence.exact,
    }


def _role(name: str, evidence: Evidence) -> Document:
    columns = ("queue_wait", "preprocessing", "prefill", "decode_time")
    return {"name": name, "total": evidence.total, **{column: evidence.distribution(column) for column in columns}}
