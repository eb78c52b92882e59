"""The parts of the metrics SDK that direct recording reaches into, and the proof that it may.

Everything here imports the SDK inside its functions: the package itself loads the API only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from opentelemetry.context import Context
from opentelemetry.metrics import Counter, Histogram, Meter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from otel_lifecycle._instruments._occasion import Labels, Occasion

_logger = logging.getLogger(__name__)


class Recorder(Protocol):
    """What the proof asks of a histogram."""

    def record(self, seconds: float, attributes: Labels, occasion: Occasion) -> None: ...

    def record_many(self, gaps: Sequence[int], attributes: Labels, occasion: Occasion) -> None: ...


class Adder(Protocol):
    """What the proof asks of a counter."""

    def add(self, amount: int, attributes: Labels, occasion: Occasion) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SdkMetrics:
    """The classes of the installed SDK, and how it files attributes."""

    counter: type[Any]
    histogram: type[Any]
    consumer: type[Any]
    storage: type[Any]
    match: type[Any]
    explicit: type[Any]
    exponential: type[Any]
    drop: type[Any]
    measurement: Callable[..., Any]
    filters_by_context: frozenset[type[Any]]
    key: Callable[[Labels], Hashable]


def installed_sdk() -> SdkMetrics | None:
    """Find the classes; None if the SDK is absent or has others."""
    try:
        from opentelemetry.sdk.metrics import (
            AlwaysOffExemplarFilter,
            AlwaysOnExemplarFilter,
            TraceBasedExemplarFilter,
        )
        from opentelemetry.sdk.metrics import Counter as SdkCounter
        from opentelemetry.sdk.metrics import Histogram as SdkHistogram
        from opentelemetry.sdk.metrics._internal import _view_instrument_match, aggregation
        from opentelemetry.sdk.metrics._internal.measurement import Measurement
        from opentelemetry.sdk.metrics._internal.measurement_consumer import SynchronousMeasurementConsumer
        from opentelemetry.sdk.metrics._internal.metric_reader_storage import MetricReaderStorage

        return SdkMetrics(
            counter=SdkCounter,
            histogram=SdkHistogram,
            consumer=SynchronousMeasurementConsumer,
            storage=MetricReaderStorage,
            match=_view_instrument_match._ViewInstrumentMatch,
            explicit=aggregation._ExplicitBucketHistogramAggregation,
            exponential=aggregation._ExponentialBucketHistogramAggregation,
            drop=aggregation._DropAggregation,
            measurement=Measurement,
            filters_by_context=frozenset({AlwaysOffExemplarFilter, AlwaysOnExemplarFilter, TraceBasedExemplarFilter}),
            # SDKs before 1.44 file attributes under a frozenset.
            key=getattr(_view_instrument_match, "_hash_attributes", _as_frozenset),
        )
    except (ImportError, AttributeError):
        return None


def _as_frozenset(attributes: Labels) -> Hashable:
    return frozenset(attributes.items())


# -------------------------------------------------------------------------------------------------------------- proof

_EDGES: Final = (0.0005, 0.005, 0.05, 0.5)
_CONTEXT: Final = set_span_in_context(
    NonRecordingSpan(SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))), Context()
)
_ROUNDS: Final = (
    (0, 1, 500_000, 500_001, 4_999_999, 5_000_000, 5_000_001, 9_000_000_000),
    (50_000_001, 123_456_789),
)
_LABELS: Final[tuple[Labels, ...]] = ({"kept": "a", "other": True}, {})
_METERS: Final = ("plain", "filtered", "exponential", "dropped")


def ways_agree(recorder: Callable[[Histogram], Recorder], adder: Callable[[Counter], Adder]) -> bool:
    """Record known samples both ways in a provider of its own and compare what two readers collect, each time.

    One reader is cumulative and one delta; there are streams without a view, with filtered attributes, exponential and
    dropped ones.  Anything unexpected, an exception too, is a no.
    """
    try:
        return _compare(recorder, adder)
    except Exception:  # whatever it is, this SDK is not one that is known
        _logger.debug("direct recording does not fit this SDK", exc_info=True)
        return False


def _compare(recorder: Callable[[Histogram], Recorder], adder: Callable[[Counter], Adder]) -> bool:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    readers = [InMemoryMetricReader(), InMemoryMetricReader(preferred_temporality=_delta())]
    provider = MeterProvider(readers, **_provider_arguments())
    try:
        for gaps in _ROUNDS:
            for meter in map(provider.get_meter, _METERS):
                _record_both(meter, recorder, gaps)
                _add_both(meter, adder, gaps)
            if not all(_same(_streams(reader.get_metrics_data())) for reader in readers):
                return False
        return True
    finally:
        provider.shutdown()


def _record_both(meter: Meter, recorder: Callable[[Histogram], Recorder], gaps: Sequence[int]) -> None:
    # Names differ between meters, or the SDK logs that their views conflict.
    ours, theirs = (
        meter.create_histogram(f"{way}.{meter.name}.gaps", "s", explicit_bucket_boundaries_advisory=_EDGES)
        for way in ("direct", "plain")
    )
    recording = recorder(ours)
    for labels in _LABELS:
        recording.record_many(gaps, labels, Occasion(_CONTEXT))
        recording.record(0.02, labels, Occasion(_CONTEXT))
        for value in (*(gap / 1e9 for gap in gaps), 0.02):
            theirs.record(value, labels, _CONTEXT)


def _add_both(meter: Meter, adder: Callable[[Counter], Adder], amounts: Sequence[int]) -> None:
    ours, theirs = (meter.create_counter(f"{way}.{meter.name}.amounts") for way in ("direct", "plain"))
    adding = adder(ours)
    for labels in _LABELS:
        for amount in amounts:
            adding.add(amount, labels, Occasion(_CONTEXT))
            theirs.add(amount, labels, _CONTEXT)


def _delta() -> dict[type, Any]:
    from opentelemetry.sdk.metrics import Counter as SdkCounter
    from opentelemetry.sdk.metrics import Histogram as SdkHistogram
    from opentelemetry.sdk.metrics.export import AggregationTemporality

    return dict.fromkeys((SdkCounter, SdkHistogram), AggregationTemporality.DELTA)


def _provider_arguments() -> dict[str, Any]:
    """Return arguments that leave the application's environment and exit handlers out of it."""
    from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter
    from opentelemetry.sdk.metrics.view import DropAggregation, ExponentialBucketHistogramAggregation, View
    from opentelemetry.sdk.resources import Resource

    return {
        "resource": Resource({}),
        "exemplar_filter": AlwaysOnExemplarFilter(),
        "shutdown_on_exit": False,
        "views": [
            View(meter_name="filtered", attribute_keys={"kept"}),
            View(
                meter_name="exponential",
                instrument_name="*.gaps",
                aggregation=ExponentialBucketHistogramAggregation(),
            ),
            View(meter_name="dropped", aggregation=DropAggregation()),
        ],
    }


def _streams(data: Any) -> dict[str, list[Any]]:
    """Return the points by metric name, without those that an SDK can be told to give of itself."""
    return {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        if scope.scope.name in _METERS
        for metric in scope.metrics
    }


def _same(streams: Mapping[str, Sequence[Any]]) -> bool:
    """Whether every meter but the dropped one gave points, and the same ones both ways."""
    kept = [f"{meter}.{what}" for meter in _METERS if meter != "dropped" for what in ("gaps", "amounts")]
    if streams.keys() != {f"{way}.{name}" for way in ("direct", "plain") for name in kept}:
        return False
    return all(
        len(ours := streams[f"direct.{name}"]) == len(theirs := streams[f"plain.{name}"])
        and all(map(_same_point, ours, theirs))
        for name in kept
    )


def _same_point(ours: Any, theirs: Any) -> bool:
    """Compare two points; a sum may differ by rounding, times and the choice of some exemplars by nature."""
    left, right = (
        replace(
            point,
            exemplars=(),
            start_time_unix_nano=0,
            time_unix_nano=0,
            **({"sum": 0} if hasattr(point, "sum") else {}),
        )
        for point in (ours, theirs)
    )
    return (
        left == right
        and math.isclose(getattr(ours, "sum", 0), getattr(theirs, "sum", 0), rel_tol=1e-12)
        and bool(ours.exemplars) is bool(theirs.exemplars)
        and (not hasattr(ours, "bucket_counts") or _traces(ours.exemplars) == _traces(theirs.exemplars))
    )


def _traces(exemplars: Iterable[Any]) -> list[Any]:
    return [(e.value, e.trace_id, e.span_id, dict(e.filtered_attributes or {})) for e in exemplars]
