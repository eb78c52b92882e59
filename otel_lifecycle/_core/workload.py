"""From many requests to one workload: rates over their denominators, means and quantiles with their sample counts.

How it works.  A request counts in each figure for which it has the evidence, and in no other.  Every mean stands beside
its sample count, so that a reader sees how many requests it speaks for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from otel_lifecycle._core.lifecycle import TERMINAL_STATES
from otel_lifecycle._core.outcome import DOMINANCE_THRESHOLD, classify_request_outcome
from otel_lifecycle.errors import ConfigurationError, InvalidValue

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def quantile(ordered: Sequence[Any], q: float) -> float | None:
    """Return the q-quantile of sorted samples by linear interpolation; None of none."""
    if not ordered:
        return None
    position = (len(ordered) - 1) * q
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    # In this form two equal neighbours give exactly their value.
    return float(ordered[below] + (ordered[above] - ordered[below]) * (position - below))


def summarize_workload(
    request_results: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]],
    window: tuple[Any, Any] | None = None,
    dominance_threshold: float = DOMINANCE_THRESHOLD,
) -> dict[str, Any]:
    """Summarise ``[(report, metrics), ...]``.

    Returns ``total_requests`` (all given), ``completed_requests``, ``success_rate`` (completed over terminated; None of
    none), ``output_tokens`` (of the ``output_tokens_sample_count`` requests that know theirs), ``status_counts``,
    ``failures_by_stage`` (abnormal ends), ``bottleneck_counts``; and for ttft, tpot, e2e (every request that has it)
    and completed_e2e ``<name>_sample_count`` and ``mean_<name>``, with ``p50_``, ``p95_`` and ``p99_`` of the first
    three by linear interpolation.  A mean or quantile of nothing is None.  Times are in the unit of the input.

    With ``window=(start, end)``, of the requests whose end lies in it (after start, up to and with end):
    ``request_throughput`` (completed) and ``token_throughput`` (all tokens) per unit of time; refused if it is empty.
    """
    results = list(request_results)
    reports = [report for report, _ in results]
    statuses = Counter(report["status"] for report in reports)
    # How an incomplete request ended is not known, so it is in no denominator.
    terminated = sum(statuses[status] for status in TERMINAL_STATES)
    known, tokens = _tokens(results)
    summary: dict[str, Any] = {
        "total_requests": len(results),
        "completed_requests": statuses["completed"],
        "success_rate": statuses["completed"] / terminated if terminated else None,
        "status_counts": statuses,
        "failures_by_stage": Counter(r["failure_stage"] for r in reports if r["failure_stage"] is not None),
        "bottleneck_counts": _bottlenecks(results, dominance_threshold),
        "output_tokens_sample_count": known,
        "output_tokens": tokens,
    }
    summary.update(_durations(results))
    if window is not None:
        summary.update(_throughput(results, window))
    return summary


def _durations(results: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("ttft", "tpot", "e2e"):
        samples = sorted(metrics[name] for _, metrics in results if metrics[name] is not None)
        found.update(_mean(name, samples))
        found.update({f"{label}_{name}": quantile(samples, q) for label, q in QUANTILES.items()})
    # Apart from the e2e of all requests, which fast failures make look better.
    completed = [m["e2e"] for r, m in results if r["status"] == "completed" and m["e2e"] is not None]
    return {**found, **_mean("completed_e2e", completed)}


def _mean(name: str, samples: Sequence[Any]) -> dict[str, Any]:
    mean = sum(samples) / len(samples) if samples else None
    return {f"{name}_sample_count": len(samples), f"mean_{name}": mean}


def _tokens(results: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> tuple[int, int | None]:
    counts = [m["streamed_tokens"] for _, m in results if m["streamed_tokens"] is not None]
    # None where no request knows its count; 0 only where there are no requests.
    return len(counts), sum(counts) if counts or not results else None


def _bottlenecks(results: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], threshold: float) -> Counter[str]:
    counts: Counter[str] = Counter()
    for report, metrics in results:
        try:
            verdict = classify_request_outcome(report, metrics, threshold)
        except InvalidValue:  # Stages that last nothing together: no bottleneck to count.
            continue
        if report["status"] == "completed" and verdict["stage"] is not None:
            counts[verdict["stage"]] += 1
    return counts


def _throughput(
    results: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], window: tuple[Any, Any]
) -> dict[str, Any]:
    start, end = window
    if not (math.isfinite(start) and math.isfinite(end) and end > start):
        raise ConfigurationError(f"the window is {window!r}; it needs a finite start and a finite, later end")
    inside = [
        (report, metrics)
        for report, metrics in results
        # Half open, so that adjoining windows count each request once.
        if report["timestamps"].get("terminal") is not None and start < report["timestamps"]["terminal"] <= end
    ]
    completed = sum(report["status"] == "completed" for report, _ in inside)
    _, tokens = _tokens(inside)
    return {
        "request_throughput": completed / (end - start),
        "token_throughput": None if tokens is None else tokens / (end - start),
    }
