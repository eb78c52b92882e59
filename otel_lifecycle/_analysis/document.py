"""A workload's report as plain data: what the terminal, JSON, CSV and the page all show, each figure with its count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from otel_lifecycle._analysis.arrivals import arrivals, class_name, in_flight
from otel_lifecycle._analysis.facts import UNTOLD
from otel_lifecycle._analysis.figures import NONE, Figures, distributions
from otel_lifecycle._analysis.interference import interference
from otel_lifecycle._analysis.parts import parts
from otel_lifecycle._analysis.settings import OPEN
from otel_lifecycle._analysis.workload import Workload
from otel_lifecycle._table.requests.model import STAGES
from otel_lifecycle._table.schema import SHORT
from otel_lifecycle._table.sources.tally import TROUBLE
from otel_lifecycle._table.text import instant
from otel_lifecycle.semconv import OUTCOMES

Document = dict[str, Any]

SCHEMA_VERSION: Final = 1
"""Version of the report's JSON; it grows when a key is removed or changes its meaning, not when one is added."""

LATENCIES: Final = ("ttft", "tpot", "e2e", "e2e_completed")
"""Each over all requests that have it; the last one over the completed ones alone."""
SAMPLED: Final = (
    "a Jaeger holds the traces that were sampled: with head or tail sampling before it, rates, throughput and the mix"
    " of outcomes are those of the sample and not of the service; the service's own are in its metrics"
)
WITHIN: Final = ("itl_p50", "itl_p95", "itl_p99", "itl_max")
LENGTHS: Final = ("input_tokens", "output_tokens", "cached_tokens", "batch_size", "concurrency")


_COLUMNS: Final = (*LATENCIES, *WITHIN, *LENGTHS, "preempted", *(f"stage_{stage}" for stage in STAGES))


def report_of(workload: Workload, sources: Iterable[str]) -> Document:
    """Return the report.  Times in seconds, rates between 0 and 1, throughput per second; None is unknown."""
    sources, lines = list(sources), workload.tally.plain()
    found = distributions(workload.table, _COLUMNS).get("", {})
    figures = {name: found.get(name, dict(NONE)) for name in _COLUMNS}
    return {
        "schema_version": SCHEMA_VERSION,
        "sources": sources,
        "warnings": _warnings(workload, sources),
        "read": dict(workload.tally.read),
        "trouble": [line for line in lines if line["kind"] in TROUBLE],
        "beside": [line for line in lines if line["kind"] not in TROUBLE],
        # Every figure is of all requests, however many there are.
        "exact": True,
        "relative_error": 0.0,
        "window": _window(workload),
        "requests": _requests(workload),
        "abnormal": _abnormal(workload),
        "stages": _stages(workload, figures),
        "latency": _latency(workload, figures),
        "interference": interference(workload.table),
        "output": _output(workload),
        "conditions": _conditions(workload, figures),
        "classes": _classes(workload),
        "groups": parts(workload.table, "live", "grp") if workload.settings.group_by is not None else [],
        "group_by": workload.settings.group_by,
        "apart": _apart(workload),
        "roles": _roles(workload),
        "startup": {"phases": workload.resources.phases(), "launch": _plain(workload.resources.launch)},
        "resources": workload.resources.gauges(),
        "slowest": [request_row(request) for request in workload.slowest()],
    }


def _plain(attributes: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in attributes.items()}


def _warnings(workload: Workload, sources: Iterable[str]) -> list[str]:
    """Return what a reader must know before using any figure."""
    told = []
    if any(source.startswith(("http://", "https://")) for source in sources):
        told.append(SAMPLED)
    key = workload.settings.group_by
    if key is not None:
        (known,) = workload.table.one("SELECT count(*) FILTER (grp <> ?) FROM live", [UNTOLD])
        if not known and workload.total:
            names = "" if key in SHORT else f"; it is an attribute's name or one of {', '.join(SHORT)}"
            told.append(f"no request has {SHORT.get(key, key)!r}, so there is nothing to group by{names}")
    return told


def window_ns(workload: Workload) -> tuple[int, int] | None:
    """Return the window in epoch nanoseconds; an open end is the first arrival or the last end of the requests kept."""
    start, end = workload.settings.window or OPEN
    first = workload.first_ns if start == OPEN[0] else start
    last = workload.last_ns if end == OPEN[1] else end
    return None if first is None or last is None else (first, last)


def _window(workload: Workload) -> Document:
    span = window_ns(workload)
    return {
        # A window without a request has no bounds rather than those of the epoch.
        "start": None if span is None else instant(span[0]),
        "end": None if span is None else instant(span[1]),
        "seconds": None if span is None else (span[1] - span[0]) * 1e-9,
        "chosen": workload.settings.window is not None,
        "requests_outside": workload.parts["outside"] + workload.parts["passing"],
    }


def _requests(workload: Workload) -> Document:
    counts: Document = {outcome: workload.outcomes[outcome] for outcome in OUTCOMES}
    return {"total": workload.total, "terminated": workload.terminated, **counts}


def request_row(request: Mapping[str, Any]) -> Document:
    """Return what a table says of a single request, from its row of facts."""
    return {
        "request": request["request_id"],
        "trace_id": request["trace_id"],
        "span_id": request["span_id"],
        "arrival": instant(request["arrival_ns"]),
        "outcome": request["outcome"],
        "stage": request["failure_stage"],
        **{key: request[key] for key in ("reason", "input_tokens", "output_tokens", "bottleneck", "ttft", "e2e")},
    }


def _abnormal(workload: Workload) -> Document:
    kinds = workload.table.rows(
        "SELECT outcome, coalesce(failure_stage, '-') AS stage, coalesce(nullif(reason, ''), '-') AS reason,"
        " count(*) AS count FROM live WHERE NOT completed GROUP BY ALL ORDER BY count DESC, min(id)"
    )
    return {
        "count": sum(kind["count"] for kind in kinds),
        "kinds": kinds,
        "requests": [request_row(request) for request in workload.abnormal()],
    }


def _stages(workload: Workload, figures: Mapping[str, Figures]) -> Document:
    # A mean of shares, not a share of sums: a long request must not speak for all.
    means = ", ".join(f"avg(coalesce(share_{stage}, 0)) FILTER (WHERE whole)" for stage in STAGES)
    shares = workload.table.one(f"SELECT {means} FROM live")
    bottlenecks = dict(
        workload.table.connection.execute(
            "SELECT bottleneck, count(*) AS n FROM live WHERE completed AND bottleneck IS NOT NULL"
            " GROUP BY bottleneck ORDER BY n DESC, min(id)"
        ).fetchall()
    )
    return {
        "completed": workload.outcomes["completed"],
        "count": workload.counts["whole"],
        "rows": [
            {"stage": stage, "mean_share": mean, **figures[f"stage_{stage}"]}
            for stage, mean in zip(STAGES, shares, strict=True)
        ],
        "bottlenecks": bottlenecks,
        "bottleneck_count": sum(bottlenecks.values()),
        "preemptions": workload.counts["preemptions"],
        "preempted_requests": workload.counts["preempted_requests"],
        "preempted": figures["preempted"],
    }


def _latency(workload: Workload, figures: Mapping[str, Figures]) -> Document:
    source = "(SELECT unnest(gaps) AS gap FROM live_rows WHERE gaps IS NOT NULL)"
    gaps = distributions(workload.table, ["gap"], source).get("", {}).get("gap", dict(NONE))
    how = "every gap of the requests whose token times tell their gaps"
    # Buckets differ in width, so the metric's quantiles have no single error.
    error = 0.0 if gaps["count"] else None
    # Spans first: their gaps are exact, those of the metric lie anywhere within a bucket.
    if not gaps["count"]:
        from_metric = workload.resources.inter_token_latency()
        gaps = from_metric or gaps
        how = "every gap, from the histogram metric; quantiles within a bucket" if from_metric else "no gaps recorded"
    return {
        **{name: figures[name] for name in LATENCIES},
        "itl": {**gaps, "of": how, "relative_error": error},
        "itl_within_requests": {name: figures[name] for name in WITHIN},
    }


def _output(workload: Workload) -> Document:
    span, outcomes, counts = window_ns(workload), workload.outcomes, workload.counts
    seconds = None if span is None else (span[1] - span[0]) * 1e-9
    tokens, tokens_count = workload.table.one("SELECT sum(output_tokens)::BIGINT, count(output_tokens) FROM live")
    wasted = workload.resources.wasted_tokens()
    mean_in_flight, peak_in_flight = (None, None) if span is None else in_flight(workload.table, *span)
    breaches = workload.table.connection.execute(
        "SELECT one.kind, count(*) AS n FROM (SELECT unnest(violations) AS one FROM live_rows"
        " WHERE violations IS NOT NULL) GROUP BY one.kind ORDER BY n DESC, one.kind"
    ).fetchall()
    return {
        "terminated": workload.terminated,
        "success_rate": _over(outcomes["completed"], workload.terminated),
        "rejected": counts["rejected"],
        "rejection_rate": _over(counts["rejected"], workload.terminated),
        "timed_out": outcomes["timed_out"],
        "timeout_rate": _over(outcomes["timed_out"], workload.terminated),
        "seconds": seconds,
        # None, not 0: a window of no length has no throughput.
        "request_throughput": _over(outcomes["completed"], seconds),
        "token_throughput": _over(tokens, seconds) if tokens_count else None,
        "output_tokens": tokens,
        "output_tokens_count": tokens_count,
        "slo_judged": counts["slo_judged"],
        "goodput": _over(counts["slo_met"], counts["slo_judged"]),
        "goodput_throughput": _over(counts["slo_met"], seconds) if counts["slo_judged"] else None,
        "in_flight_mean": mean_in_flight,
        "in_flight_peak": peak_in_flight,
        "illegal": counts["illegal"],
        "breaches": dict(breaches),
        # The metric first: our spans end before late tokens are known, only replayed ones show them.
        "wasted_tokens": counts["wasted_tokens"] if wasted is None else wasted,
        "cancel_lag": workload.resources.cancel_lag(),
        "completed_without_client": counts["completed_without_client"],
    }


def _over(number: float, whole: float | None) -> float | None:
    return number / whole if whole else None


def _conditions(workload: Workload, figures: Mapping[str, Figures]) -> Document:
    told = arrivals(workload.table)
    return {
        "stated": workload.stated,
        "measured": {name: figures[name] for name in LENGTHS if figures[name]["count"]},
        "arrivals": {"pattern": told.pattern, "count": workload.total, "dispersion": told.dispersion},
    }


def _classes(workload: Workload) -> list[Document]:
    labelled = workload.stated.get("workload", {})
    found = parts(workload.table, "live", "class")
    named = [{**one, "name": class_name(one["name"], one["arrivals"])} for one in found]
    return [{**one, "labelled": one["name"] in labelled} for one in named]


def _apart(workload: Workload) -> list[Document]:
    if not workload.parts["apart"]:
        return []
    return parts(workload.table, "(SELECT * FROM facts WHERE part = 'apart')", "label")


def _roles(workload: Workload) -> list[Document]:
    if not workload.parts["role"]:
        return []
    columns = ("queue_wait", "preprocessing", "prefill", "decode_time")
    source = "(SELECT * FROM facts WHERE part = 'role')"
    totals = workload.table.connection.execute(
        f"SELECT label, count(*) AS n FROM {source} GROUP BY label ORDER BY n DESC, label"
    ).fetchall()
    told = distributions(workload.table, columns, source, "label")
    return [{"name": name, "total": total, **told[name]} for name, total in totals]
