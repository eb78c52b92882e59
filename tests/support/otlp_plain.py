"""OTLP messages, as decoded from the wire, into the dictionaries of :mod:`tests.support.plain`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tests.support.plain import (
    STATUSES,
    TEMPORALITIES,
    AttributeMap,
    Event,
    Exemplar,
    Link,
    Point,
    Scope,
    Span,
    in_order,
)

if TYPE_CHECKING:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue

KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")


def spans(request: ExportTraceServiceRequest) -> Iterator[Span]:
    """Every span of an export request, in the order sent."""
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield _span(span, _attributes(resource.resource.attributes), _scope(scope.scope, scope.schema_url))


def points(request: ExportMetricsServiceRequest) -> list[Point]:
    """Every data point of an export request, sorted by metric and attributes."""
    return in_order(
        _point(point, metric, _attributes(resource.resource.attributes), _scope(scope.scope, scope.schema_url))
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in getattr(metric, metric.WhichOneof("data") or "gauge").data_points
    )


def _span(span: Any, resource: AttributeMap, scope: Scope) -> Span:
    return Span(
        name=span.name,
        kind=KINDS[span.kind],
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex() or None,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        events=[
            Event(name=event.name, time_ns=event.time_unix_nano, attributes=_attributes(event.attributes))
            for event in span.events
        ],
        links=[
            Link(trace_id=link.trace_id.hex(), span_id=link.span_id.hex(), attributes=_attributes(link.attributes))
            for link in span.links
        ],
        status=STATUSES[span.status.code],
        status_description=span.status.message,
        dropped_attributes=span.dropped_attributes_count,
        dropped_events=span.dropped_events_count,
        dropped_links=span.dropped_links_count,
        resource=resource,
        scope=scope,
    )


def _point(point: Any, metric: Any, resource: AttributeMap, scope: Scope) -> Point:
    kind = metric.WhichOneof("data")
    data = getattr(metric, kind)
    histogram = kind == "histogram"
    return Point(
        metric=metric.name,
        unit=metric.unit,
        description=metric.description,
        type=kind,
        temporality=None if kind == "gauge" else TEMPORALITIES[data.aggregation_temporality],
        monotonic=data.is_monotonic if kind == "sum" else None,
        attributes=_attributes(point.attributes),
        value=None if histogram else _number(point),
        count=point.count if histogram else None,
        sum=point.sum if histogram else None,
        min=point.min if histogram else None,
        max=point.max if histogram else None,
        bounds=list(point.explicit_bounds) if histogram else None,
        buckets=list(point.bucket_counts) if histogram else None,
        exemplars=[_exemplar(exemplar) for exemplar in point.exemplars],
        start_ns=point.start_time_unix_nano,
        time_ns=point.time_unix_nano,
        resource=resource,
        scope=scope,
    )


def _number(message: Any) -> float:
    return float(message.as_double) if message.WhichOneof("value") == "as_double" else int(message.as_int)


def _exemplar(exemplar: Any) -> Exemplar:
    return Exemplar(
        value=_number(exemplar),
        time_ns=exemplar.time_unix_nano,
        trace_id=exemplar.trace_id.hex(),
        span_id=exemplar.span_id.hex(),
        attributes=_attributes(exemplar.filtered_attributes),
    )


def _scope(scope: InstrumentationScope, schema_url: str) -> Scope:
    return Scope(
        name=scope.name, version=scope.version, schema_url=schema_url, attributes=_attributes(scope.attributes)
    )


def _attributes(pairs: Iterable[KeyValue]) -> AttributeMap:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return _attributes(value.kvlist_value.values)
    return getattr(value, kind)
