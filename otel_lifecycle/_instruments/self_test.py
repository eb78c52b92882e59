"""Whether the installed SDK keeps samples the way ``_sdk_metrics`` adds them.

Known samples are recorded both ways in a provider of its own, and two readers, one cumulative and one delta, must
collect the same after each round.  There are streams without a view, with filtered attributes, exponential and dropped
ones.  It takes some 20 ms, once a process, when the first instruments are made.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from opentelemetry.metrics import Counter, Histogram, Meter
from opentelemetry.trace import SpanContext, TraceFlags

from otel_lifecycle._instruments.moment import Labels, Moment

_logger = logging.getLogger(__name__)


class Recorder(Protocol):
    """What the test asks of a histogram."""

    def take(self, attributes: Labels, samples: Sequence[tuple[float, Moment]]) -> None: ...

    def take_gaps(self, attributes: Labels, runs: Sequence[tuple[Sequence[int], Moment]]) -> None: ...

    def finds(self, attributes: Labels) -> bool: ...


class Adder(Protocol):
    """What the test asks of a counter."""

    def take(self, attributes: Labels, amounts: Sequence[tuple[int, Moment]]) -> None: ...

    def finds(self, attributes: Labels) -> bool: ...


# The gaps below lie on, just below and just above these edges, where integers and floats could part.
_EDGES: Final = (0.0005, 0.005, 0.05, 0.5)
_ONE, _OTHER = (
    Moment(SpanContext(trace, 2, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)), 1) for trace in (1, 3)
)
# Two rounds, because a delta collection throws the aggregations away and a cumulative one keeps them.
_ROUNDS: Final = (
    (0, 1, 500_000, 500_001, 4_999_999, 5_000_000, 5_000_001, 9_000_000_000),
    (50_000_001, 123_456_789),
)
_DURATIONS: Final = (0.02, 0.0005, 7.5)
_LABELS: Final[tuple[Labels, ...]] = ({"kept": "a", "other": True}, {})
_METERS: Final = ("plain", "filtered", "exponential", "dropped")


def ways_agree(recorder: Callable[[Histogram], Recorder], adder: Callable[[Counter], Adder]) -> bool:
    """Return whether both ways leave the same.  Anything unexpected, an exception too, is a no."""
    try:
        return _compare(recorder, adder)
    except Exception:  # whatever it is, this SDK is not one that is known
        _logger.debug("bulk recording does not fit this SDK", exc_info=True)
        return False


def _compare(recorder: Callable[[Histogram], Recorder], adder: Callable[[Counter], Adder]) -> bool:
    # Imported here, because the package itself loads the API only.
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    readers = [InMemoryMetricReader(), InMemoryMetricReader(preferred_temporality=_delta())]
    provider = MeterProvider(readers, **_provider_arguments())
    try:
        for gaps in _ROUNDS:
            for meter in map(provider.get_meter, _METERS):
                if not (_record_both(meter, recorder, gaps) and _add_both(meter, adder, gaps)):
                    return False
            if not all(_same(_streams(reader.get_metrics_data())) for reader in readers):
                return False
        return True
    finally:
        provider.shutdown()


def _record_both(meter: Meter, recorder: Callable[[Histogram], Recorder], gaps: Sequence[int]) -> bool:
    # Names differ between meters, or the SDK logs that their views conflict.
    ours, theirs = (
        meter.create_histogram(f"{way}.{meter.name}.gaps", "s", explicit_bucket_boundaries_advisory=_EDGES)
        for way in ("direct", "plain")
    )
    recording = recorder(ours)
    for labels in _LABELS:
        recording.take_gaps(labels, [(gaps, _ONE), (gaps[:1], _OTHER)])
        recording.take(labels, [(seconds, _ONE) for seconds in _DURATIONS])
        for gap, moment in [*((gap, _ONE) for gap in gaps), (gaps[0], _OTHER)]:
            theirs.record(gap / 1e9, labels, moment.context)
        for seconds in _DURATIONS:
            theirs.record(seconds, labels, _ONE.context)
    # What is filed under another key than ours is measured plainly: right, but not in bulk.
    return all(map(recording.finds, _LABELS))


def _add_both(meter: Meter, adder: Callable[[Counter], Adder], amounts: Sequence[int]) -> bool:
    ours, theirs = (meter.create_counter(f"{way}.{meter.name}.amounts") for way in ("direct", "plain"))
    adding = adder(ours)
    for labels in _LABELS:
        adding.take(labels, [(amount, _ONE) for amount in amounts])
        for amount in amounts:
            theirs.add(amount, labels, _ONE.context)
    return all(map(adding.finds, _LABELS))


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
        # With this filter every sample is offered, so the choice among them is compared as well.
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
