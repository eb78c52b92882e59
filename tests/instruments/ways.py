"""The same samples recorded in bulk and one by one, side by side in one provider."""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import Counter, ExemplarFilter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.metrics.view import (
    Aggregation,
    DropAggregation,
    ExplicitBucketHistogramAggregation,
    ExponentialBucketHistogramAggregation,
    LastValueAggregation,
    SumAggregation,
    View,
)
from opentelemetry.trace import SpanContext, TraceFlags

from otel_lifecycle import semconv
from otel_lifecycle._instruments.delivery import HistogramOutlet
from otel_lifecycle._instruments.moment import Labels, Moment
from tests.support.patient_reader import PatientReader

EDGES = semconv.TOKEN_GAP_BUCKETS
CHAT: Labels = {semconv.GEN_AI_OPERATION_NAME: "chat", semconv.GEN_AI_REQUEST_MODEL: "m"}
SETS: tuple[Labels, ...] = (CHAT, {**CHAT, semconv.SLO_MET: True}, {**CHAT, semconv.GEN_AI_REQUEST_MODEL: "other"}, {})
SAMPLED, SAMPLED_TOO = (
    Moment(SpanContext(trace, 9, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)), 1) for trace in (7, 8)
)
UNSAMPLED = Moment(SpanContext(5, 9, is_remote=False, trace_flags=TraceFlags(TraceFlags.DEFAULT)), 1)
MOMENTS = (SAMPLED, SAMPLED_TOO, UNSAMPLED)

MS = 1_000_000


class OwnAggregation(Aggregation):
    """A view's aggregation that is not of the SDK's making: it keeps the last sample as its sum."""

    def _create_aggregation(self, instrument, attributes, reservoir_factory, start_time_unix_nano):  # type: ignore[no-untyped-def]  # private to the SDK
        return LastValueAggregation()._create_aggregation(
            instrument, attributes, reservoir_factory, start_time_unix_nano
        )


VIEWS: dict[str, Callable[[str], list[View]]] = {
    "no view": lambda name: [],
    "renamed": lambda name: [View(instrument_name=name, name=f"{name}.renamed", description="other")],
    "other buckets": lambda name: [
        View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation((0, 0.0123, 1, 60)))
    ],
    "one bucket": lambda name: [View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(()))],
    "buckets below zero": lambda name: [
        View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation((-1.0, 0.0, 1e12)))
    ],
    "no minimum and maximum": lambda name: [
        View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(EDGES, record_min_max=False))
    ],
    "fewer attributes": lambda name: [View(instrument_name=name, attribute_keys={semconv.GEN_AI_OPERATION_NAME})],
    "dropped": lambda name: [View(instrument_name=name, aggregation=DropAggregation())],
    "exponential": lambda name: [View(instrument_name=name, aggregation=ExponentialBucketHistogramAggregation())],
    "exponential, no attributes": lambda name: [
        View(instrument_name=name, aggregation=ExponentialBucketHistogramAggregation(max_size=20), attribute_keys=set())
    ],
    "sum": lambda name: [View(instrument_name=name, aggregation=SumAggregation())],
    "last value": lambda name: [View(instrument_name=name, aggregation=LastValueAggregation())],
    "somebody's own": lambda name: [View(instrument_name=name, aggregation=OwnAggregation())],
    "two streams": lambda name: [
        View(instrument_name=name, name=f"{name}.coarse", aggregation=ExplicitBucketHistogramAggregation((0.1,))),
        View(instrument_name=name, name=f"{name}.total", aggregation=SumAggregation(), attribute_keys=set()),
    ],
}


class TwoWays:
    """A provider with a cumulative and a delta reader, and one histogram for each way of recording."""

    def __init__(
        self, view: str = "no view", edges: Sequence[float] = EDGES, exemplar_filter: ExemplarFilter | None = None
    ) -> None:
        self.readers = [
            PatientReader(),
            PatientReader(preferred_temporality=dict.fromkeys((Counter, Histogram), AggregationTemporality.DELTA)),
        ]
        self.provider = MeterProvider(
            self.readers,
            shutdown_on_exit=False,
            views=[*VIEWS[view]("bulk"), *VIEWS[view]("single")],
            exemplar_filter=exemplar_filter,
        )
        meter = self.provider.get_meter("tests")
        self.single = meter.create_histogram("single", "s", explicit_bucket_boundaries_advisory=list(edges))
        self.instrument = meter.create_histogram("bulk", "s", explicit_bucket_boundaries_advisory=list(edges))
        self.bulk = HistogramOutlet(self.instrument)

    def record(self, gaps: Sequence[int], attributes: Labels, moment: Moment = SAMPLED) -> None:
        """Record the gaps of a request both ways: all at once, and one by one."""
        self.record_runs([(gaps, moment)], attributes)

    def record_runs(self, runs: Sequence[tuple[Sequence[int], Moment]], attributes: Labels) -> None:
        """Record the gaps of several requests both ways: all at once, and one by one."""
        self.bulk.take_gaps(attributes, runs)
        for gaps, moment in runs:
            for gap in gaps:
                self.single.record(gap / 1e9, attributes, moment.context)

    def record_durations(self, samples: Sequence[tuple[float, Moment]], attributes: Labels) -> None:
        """Record durations in seconds both ways."""
        self.bulk.take(attributes, samples)
        for seconds, moment in samples:
            self.single.record(seconds, attributes, moment.context)

    def check(self) -> None:
        """Compare what each reader collects of the two, after the times that must differ are taken out."""
        for reader in self.readers:
            streams = collect(reader)
            ours, theirs = (
                {name.removeprefix(way): points for name, points in streams.items() if name.startswith(way)}
                for way in ("bulk", "single")
            )
            assert [*map(comparable, everything(ours))] == [*map(comparable, everything(theirs))]
            assert ours.keys() == theirs.keys()


def collect(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    """Return the points of one collection by metric name."""
    data = reader.get_metrics_data()
    return {
        metric.name: list(metric.data.data_points)
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def everything(streams: dict[str, list[Any]]) -> Iterator[Any]:
    """Return the points in the order of their metrics' names."""
    for name in sorted(streams):
        yield from streams[name]


def comparable(point: Any) -> tuple[object, ...]:
    """Take out of a point what cannot be equal: times, rounding in a sum, the exemplars chosen by lot."""
    total = getattr(point, "sum", None)
    # Other reservoirs than that of buckets choose by lot: only whether there is one can be compared.
    exemplars: object = bool(point.exemplars)
    if hasattr(point, "bucket_counts"):
        exemplars = [(e.value, e.trace_id, e.span_id, dict(e.filtered_attributes or {})) for e in point.exemplars]
    emptied: dict[str, Any] = {"exemplars": (), "start_time_unix_nano": 0, "time_unix_nano": 0}
    return (
        replace(point, **emptied, **({} if total is None else {"sum": 0.0})),
        None if total is None else pytest.approx(total, rel=1e-12, abs=0),
        exemplars,
    )


def on_edges(edges: Sequence[float]) -> list[int]:
    """Return the nanoseconds on, next to and near every edge."""
    nearest = [round(edge * 1e9) for edge in edges]
    return sorted(gap + step for gap in nearest for step in (-1000, -1, 0, 1, 1000))


def count_calls(action: Callable[[], None]) -> collections.Counter[str]:
    """Count the Python functions that ``action`` enters, by name."""
    entered: collections.Counter[str] = collections.Counter()

    def profile(frame: Any, event: str, argument: object) -> None:
        if event == "call":
            entered[frame.f_code.co_name] += 1

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return entered
