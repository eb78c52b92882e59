"""What only metrics contain: memory, cache and device use, wasted tokens, single gaps, cold start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import sub
from typing import Any, Final

from otel_lifecycle import semconv
from otel_lifecycle._table.sources.spans import MetricPoint, Span

# Reduced to peak and mean at once: points come every few seconds for hours.
GAUGES: Final = {
    semconv.CACHE_USAGE.name: "share of the key-value cache in use",
    semconv.MEMORY_USED.name: "memory in use, bytes",
    semconv.DEVICE_UTILIZATION.name: "share of time the device was busy",
}
MAX_SERIES: Final = 256
"""Series kept apart for each metric; one process gives a handful."""


class Resources:
    """Points of metrics, reduced as they come: the peak of a gauge, the last or the sum of a counter.

    ``window``: what lies in it alone, in epoch nanoseconds (after start, up to and with end).  Of a cumulative series
    that is its last point in the window less its last one before.
    """

    def __init__(self, window: tuple[int, int] | None = None) -> None:
        self._start, self._end = (-1, 2**63) if window is None else window
        self._before: dict[str, dict[str, MetricPoint]] = {}
        self._gauges: dict[tuple[str, str], dict[str, Any]] = {}
        self._series: dict[str, dict[str, MetricPoint]] = {}
        self._phases: dict[str, list[float]] = {}
        self.launch: dict[str, Any] = {}

    def add(self, point: MetricPoint) -> None:
        """Count a point; points of traffic that is not live are left out, as its spans are kept apart."""
        # Only traffic that is not live carries the attribute.
        if semconv.TRAFFIC in point.attributes or point.time_ns > self._end:
            return
        early = point.time_ns <= self._start
        if point.name not in GAUGES:
            _keep(self._before if early else self._series, point)
        elif point.value is not None and not early:
            self._gauge(point, point.value)

    def _points(self, name: str) -> list[MetricPoint]:
        """Return the total of each series of a metric."""
        before = self._before.get(name, {})
        return [_less(point, before.get(key)) for key, point in self._series.get(name, {}).items()]

    def _gauge(self, point: MetricPoint, value: float) -> None:
        labels = ", ".join(f"{key}={item}" for key, item in sorted(point.attributes.items()))
        key = (point.name, labels)
        # Known series go on; dropping points of them instead would bend their means.
        if key not in self._gauges and len(self._gauges) >= MAX_SERIES:
            return
        kept = self._gauges.setdefault(key, {"count": 0, "peak": value, "total": 0.0})
        kept["count"] += 1
        kept["total"] += value
        kept["peak"] = max(kept["peak"], value)

    def add_phase(self, span: Span) -> None:
        """Take a span of the cold start into account."""
        phase = str(span.attributes.get(semconv.STARTUP_PHASE))
        seconds = max(0, span.end_ns - span.start_ns) * 1e-9
        if phase in self._phases or len(self._phases) < MAX_SERIES:
            self._phases.setdefault(phase, []).append(seconds)
        if len(self.launch) < MAX_SERIES:
            told = {key: value for key, value in span.attributes.items() if key != semconv.STARTUP_PHASE}
            self.launch.update({key.removeprefix(semconv.STARTUP_PARAMETER_PREFIX): told[key] for key in told})

    def gauges(self) -> list[dict[str, Any]]:
        """Return name, labels, peak, mean and count of every gauge."""
        return [
            {"name": name, "labels": labels, "peak": kept["peak"], "mean": kept["total"] / kept["count"], **_n(kept)}
            for (name, labels), kept in sorted(self._gauges.items())
        ]

    def phases(self) -> list[dict[str, Any]]:
        """Return phase, count, mean and longest of the cold start, from spans or else from the metric."""
        # Spans have the single durations; the metric only their sum, and both would count each phase twice.
        if self._phases:
            return [_phase(phase, len(all_), sum(all_), max(all_)) for phase, all_ in sorted(self._phases.items())]
        points = self._points(semconv.STARTUP_DURATION.name)
        return [
            _phase(str(point.attributes.get(semconv.STARTUP_PHASE)), point.count, point.total or 0.0, None)
            for point in points
            if point.count
        ]

    def wasted_tokens(self) -> int | None:
        """Return the tokens produced after their request had ended; None if no metric counts them."""
        points = [
            point
            for point in self._points(semconv.TOKENS.name)
            if point.attributes.get(semconv.TOKEN_DIRECTION) == "wasted"
        ]
        return int(sum(point.value or 0 for point in points)) if points else None

    def cancel_lag(self) -> dict[str, Any] | None:
        """Return count and mean of the time a server went on after a request had ended."""
        points = [point for point in self._points(semconv.CANCEL_LAG.name) if point.count]
        return _moments(points) if points else None

    def inter_token_latency(self) -> dict[str, Any] | None:
        """Return count, mean and interpolated quantiles of every gap, from its histogram."""
        points = [point for point in self._points(semconv.INTER_TOKEN_LATENCY.name) if point.count]
        # Histograms with other bounds cannot be added.
        if not points or len({(point.edges, len(point.buckets)) for point in points}) != 1:
            return None
        buckets = [sum(column) for column in zip(*(point.buckets for point in points), strict=True)]
        edges = points[0].edges
        quantiles = {name: _bucket_quantile(edges, buckets, q) for name, q in _QUANTILES}
        # Buckets do not hold the largest value, and the last edge is not a maximum.
        return {**_moments(points), **quantiles, "max": None}


_QUANTILES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


def _n(kept: dict[str, Any]) -> dict[str, Any]:
    return {"count": kept["count"]}


def _phase(phase: str, count: int | None, total: float, longest: float | None) -> dict[str, Any]:
    return {"phase": phase, "count": count, "mean": total / count if count else None, "longest": longest}


def _moments(points: Iterable[MetricPoint]) -> dict[str, Any]:
    points = list(points)
    count = sum(point.count or 0 for point in points)
    return {"count": count, "mean": sum(point.total or 0.0 for point in points) / count}


def _keep(kept: dict[str, dict[str, MetricPoint]], point: MetricPoint) -> None:
    known = kept.setdefault(point.name, {})
    before = known.get(point.series)
    if before is not None:
        known[point.series] = _joined(before, point)
    elif len(known) < MAX_SERIES:
        known[point.series] = point


def _less(point: MetricPoint, before: MetricPoint | None) -> MetricPoint:
    """Return the increase of a cumulative series since a point; its whole value if it was reset in between."""
    # A counter that fell has been reset by a restart.
    if before is None or not point.cumulative or _size(before) > _size(point):
        return point
    return replace(
        point,
        value=None if point.value is None else point.value - (before.value or 0),
        count=None if point.count is None else point.count - (before.count or 0),
        total=None if point.total is None else point.total - (before.total or 0),
        buckets=tuple(map(sub, point.buckets, before.buckets)),
    )


def _size(point: MetricPoint) -> float:
    return (point.value if point.count is None else point.count) or 0


def _joined(before: MetricPoint, point: MetricPoint) -> MetricPoint:
    """A cumulative point replaces an earlier one; a delta adds to it."""
    if point.cumulative:
        return point if point.time_ns >= before.time_ns else before
    return MetricPoint(
        name=point.name,
        series=point.series,
        attributes=point.attributes,
        time_ns=max(before.time_ns, point.time_ns),
        value=_plus(before.value, point.value),
        count=None if point.count is None else (before.count or 0) + point.count,
        total=_plus(before.total, point.total),
        edges=point.edges,
        # Not strict: a point without buckets is legal, and a sum with one has none.
        buckets=tuple(map(sum, zip(before.buckets, point.buckets, strict=False))),
        cumulative=False,
    )


def _plus(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


def _bucket_quantile(edges: tuple[float, ...], buckets: list[int], q: float) -> float | None:
    """Interpolate within the bucket, as Prometheus does; the last edge for what lies beyond it."""
    rank, below = q * sum(buckets), 0
    for number, count in enumerate(buckets):
        if count and below + count >= rank:
            # The last bucket has no upper edge to interpolate to.
            if number == len(edges):
                return edges[-1] if edges else None
            lower = edges[number - 1] if number else 0.0
            return lower + (edges[number] - lower) * (rank - below) / count
        below += count
    return None
