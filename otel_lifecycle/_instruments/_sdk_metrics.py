"""The parts of the metrics SDK that bulk recording reaches into, and the proof that it may.

Everything here imports the SDK inside its functions: the package itself loads the API only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from opentelemetry.context import Context
from opentelemetry.metrics import Histogram
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

_logger = logging.getLogger(__name__)

Labels = Mapping[str, "str | bool"]
"""Attributes of a metric: strings and booleans under non-empty names."""


class Bulk(Protocol):
    """What the proof asks of bulk recording."""

    def record_many(self, gaps: Sequence[int], attributes: Labels, context: Context | None = None) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SdkMetrics:
    """The classes of the installed SDK, and how it files attributes."""

    histogram: type[Any]
    consumer: type[Any]
    storage: type[Any]
    match: type[Any]
    explicit: type[Any]
    exponential: type[Any]
    drop: type[Any]
    measurement: Callable[..., Any]
    key: Callable[[Labels], Hashable]


def installed_sdk() -> SdkMetrics | None:
    """Find the classes; None if the SDK is absent or has others."""
    try:
        from opentelemetry.sdk.metrics import Histogram as SdkHistogram
        from opentelemetry.sdk.metrics._internal import _view_instrument_match, aggregation
        from opentelemetry.sdk.metrics._internal.measurement import Measurement
        from opentelemetry.sdk.metrics._internal.measurement_consumer import SynchronousMeasurementConsumer
        from opentelemetry.sdk.metrics._internal.metric_reader_storage import MetricReaderStorage

        return SdkMetrics(
            histogram=SdkHistogram,
            consumer=SynchronousMeasurementConsumer,
            storage=MetricReaderStorage,
            match=_view_instrument_match._ViewInstrumentMatch,
            explicit=aggregation._ExplicitBucketHistogramAggregation,
            exponential=aggregation._ExponentialBucketHistogramAggregation,
            drop=aggregation._DropAggregation,
            measurement=Measurement,
            # SDKs before 1.44 file attributes under a frozenset.
            key=getattr(_view_instrument_match, "_hash_attributes", _as_frozenset),
        )
    except (ImportError, AttributeError):
        return None


def _as_frozenset(attributes: Labels) -> Hashable:
    return frozenset(attributes.items())


# -------------------------------------------------------------------------------------------------------------- proof

_EDGES: Final = (0.0005, 0.005, 0.05, 0.5)
_SPAN: Final = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
_ROUNDS: Final = (
    (0, 1, 500_000, 500_001, 4_999_999, 5_000_000, 5_000_001, 9_000_000_000),
    (50_000_001, 123_456_789),
)
_LABELS: Final[tuple[Labels, ...]] = ({"kept": "a", "other": True}, {})
_METERS: Final = ("plain", "filtered", "exponential", "dropped")


def ways_agree(bulk: Callable[[Histogram], Bulk]) -> bool:
    """Record known samples both ways in a provider of its own and compare what two readers collect, each time.

    One reader is cumulative and one delta; there are streams without a view, with filtered attributes, exponential and
    dropped ones.  Anything unexpected, an exception too, is a no.
    """
    try:
        return _compare(bulk)
    except Exception:
        _logger.debug("bulk recording does not fit this SDK", exc_info=True)
        return False


def _compare(bulk: Callable[[Histogram], Bulk]) -> bool:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    readers = [InMemoryMetricReader(), InMemoryMetricReader(preferred_temporality=_delta())]
    provider = MeterProvider(readers, **_provider_arguments())
    context = set_span_in_context(NonRecordingSpan(_SPAN), Context())
    try:
        for gaps in _ROUNDS:
            for meter in map(provider.get_meter, _METERS):
                # Names differ between meters, or the SDK logs that their views conflict.
                bulked, single = (
                    meter.create_histogram(f"{way}.{meter.name}", "s", explicit_bucket_boundaries_advisory=_EDGES)
                    for way in ("bulk", "single")
                )
                for labels in _LABELS:
                    bulk(bulked).record_many(gaps, labels, context)
                    for gap in gaps:
                        single.record(gap / 1e9, labels, context)
            if not all(_same(_streams(reader.get_metrics_data())) for reader in readers):
                return False
        return True
    finally:
        provider.shutdown()


def _delta() -> dict[type, Any]:
    from opentelemetry.sdk.metrics import Histogram as SdkHistogram
    from opentelemetry.sdk.metrics.export import AggregationTemporality

    return {SdkHistogram: AggregationTemporality.DELTA}


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
            View(meter_name="exponential", aggregation=ExponentialBucketHistogramAggregation()),
            View(meter_name="dropped", aggregation=DropAggregation()),
        ],
    }


def _streams(data: Any) -> dict[str, list[Any]]:
    """Return the points by metric name."""
    return {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def _same(streams: Mapping[str, Sequence[Any]]) -> bool:
    """Whether every meter but the dropped one gave points, and the same ones both ways."""
    kept = [meter for meter in _METERS if meter != "dropped"]
    if streams.keys() != {f"{way}.{meter}" for way in ("bulk", "single") for meter in kept}:
        return False
    return all(
        len(ours := streams[f"bulk.{meter}"]) == len(theirs := streams[f"single.{meter}"])
        and all(map(_same_point, ours, theirs))
        for meter in kept
    )


def _same_point(ours: Any, theirs: Any) -> bool:
    """Compare two points; a sum may differ by rounding, times and the choice of an exponential exemplar by nature."""
    nothing: dict[str, Any] = {"sum": 0, "exemplars": (), "start_time_unix_nano": 0, "time_unix_nano": 0}
    return (
        replace(ours, **nothing) == replace(theirs, **nothing)
        and math.isclose(ours.sum, theirs.sum, rel_tol=1e-12)
        and bool(ours.exemplars) is bool(theirs.exemplars)
        and (not hasattr(ours, "bucket_counts") or _traces(ours.exemplars) == _traces(theirs.exemplars))
    )


def _traces(exemplars: Iterable[Any]) -> list[Any]:
    return [(e.value, e.trace_id, e.span_id, dict(e.filtered_attributes or {})) for e in exemplars]
