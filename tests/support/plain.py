"""Spans and metric points as plain dictionaries, the same whether they come from the SDK or over the wire.

So a test can compare whole values, and can hold what a receiver decoded against what the process had.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

AttributeMap = dict[str, Any]


class Scope(TypedDict):
    """The instrumentation scope; a schema_url that is not set is the empty string."""

    name: str
    version: str
    schema_url: str
    attributes: AttributeMap


class Event(TypedDict):
    """One span event; the time in epoch nanoseconds."""

    name: str
    time_ns: int
    attributes: AttributeMap


class Link(TypedDict):
    """One span link; ids in lower-case hex."""

    trace_id: str
    span_id: str
    attributes: AttributeMap


class Span(TypedDict):
    """One finished span; ids in lower-case hex, times in epoch nanoseconds, status UNSET, OK or ERROR."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str | None
    start_ns: int
    end_ns: int
    attributes: AttributeMap
    events: list[Event]
    links: list[Link]
    status: str
    status_description: str
    dropped_attributes: int
    dropped_events: int
    dropped_links: int
    resource: AttributeMap
    scope: Scope


class Exemplar(TypedDict):
    """One exemplar of a point."""

    value: float
    time_ns: int
    trace_id: str
    span_id: str
    attributes: AttributeMap


class Point(TypedDict):
    """One data point with the metric it belongs to.

    ``type`` is sum, gauge or histogram.  ``value`` is None for a histogram; ``count``, ``sum``, ``min``, ``max`` and
    the two lists are None for the others.
    """

    metric: str
    unit: str
    description: str
    type: str
    temporality: str | None
    monotonic: bool | None
    attributes: AttributeMap
    value: float | None
    count: int | None
    sum: float | None
    min: float | None
    max: float | None
    bounds: list[float] | None
    buckets: list[int] | None
    exemplars: list[Exemplar]
    start_ns: int
    time_ns: int
    resource: AttributeMap
    scope: Scope


TEMPORALITIES = ("unspecified", "delta", "cumulative")
STATUSES = ("UNSET", "OK", "ERROR")


def plain_attributes(attributes: Mapping[str, Any] | None) -> AttributeMap:
    """Copy attributes into a dict; sequences become lists, as they are after a journey over the wire."""
    return {
        key: list(value) if isinstance(value, (tuple, list)) else value for key, value in (attributes or {}).items()
    }


def in_order(points: Iterable[Point]) -> list[Point]:
    """Sort points by metric and attributes, so that whole lists of them compare."""
    return sorted(points, key=lambda point: (point["metric"], sorted(map(str, point["attributes"].items()))))


def plain_span(span: ReadableSpan) -> Span:
    """Flatten a finished span of the SDK."""
    context = span.get_span_context()
    assert context is not None
    return Span(
        name=span.name,
        kind=span.kind.name,
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_id=f"{span.parent.span_id:016x}" if span.parent else None,
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        attributes=plain_attributes(span.attributes),
        events=[
            Event(name=event.name, time_ns=event.timestamp, attributes=plain_attributes(event.attributes))
            for event in span.events
        ],
        links=[
            Link(
                trace_id=f"{link.context.trace_id:032x}",
                span_id=f"{link.context.span_id:016x}",
                attributes=plain_attributes(link.attributes),
            )
            for link in span.links
        ],
        status=span.status.status_code.name,
        status_description=span.status.description or "",
        dropped_attributes=span.dropped_attributes,
        dropped_events=span.dropped_events,
        dropped_links=span.dropped_links,
        resource=plain_attributes(span.resource.attributes),
        scope=_scope(span.instrumentation_scope),
    )


def plain_points(data: MetricsData | None) -> list[Point]:
    """Flatten what a metric reader of the SDK collected; None, nothing collected, is not a point."""
    return in_order(
        _sdk_point(point, metric, resource.resource, scope.scope)
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    )


def _sdk_point(point: Any, metric: Any, resource: Resource, scope: InstrumentationScope) -> Point:
    temporality = getattr(metric.data, "aggregation_temporality", None)
    histogram = hasattr(point, "bucket_counts")
    return Point(
        metric=metric.name,
        unit=metric.unit or "",
        description=metric.description or "",
        type=type(metric.data).__name__.lower(),
        temporality=None if temporality is None else TEMPORALITIES[temporality.value],
        monotonic=getattr(metric.data, "is_monotonic", None),
        attributes=plain_attributes(point.attributes),
        value=None if histogram else point.value,
        count=point.count if histogram else None,
        sum=point.sum if histogram else None,
        min=point.min if histogram else None,
        max=point.max if histogram else None,
        bounds=list(point.explicit_bounds) if histogram else None,
        buckets=list(point.bucket_counts) if histogram else None,
        exemplars=[_sdk_exemplar(exemplar) for exemplar in point.exemplars],
        start_ns=point.start_time_unix_nano or 0,
        time_ns=point.time_unix_nano,
        resource=plain_attributes(resource.attributes),
        scope=_scope(scope),
    )


def _sdk_exemplar(exemplar: Any) -> Exemplar:
    return Exemplar(
        value=exemplar.value,
        time_ns=exemplar.time_unix_nano,
        trace_id=f"{exemplar.trace_id or 0:032x}",
        span_id=f"{exemplar.span_id or 0:016x}",
        attributes=plain_attributes(exemplar.filtered_attributes),
    )


def _scope(scope: InstrumentationScope | None) -> Scope:
    if scope is None:
        return Scope(name="", version="", schema_url="", attributes={})
    return Scope(
        name=scope.name,
        version=scope.version or "",
        schema_url=scope.schema_url or "",
        attributes=plain_attributes(scope.attributes),
    )


def plain_id(value: object) -> str:
    """Return the name of a parameter without addresses: every process that collects a test names it alike."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
