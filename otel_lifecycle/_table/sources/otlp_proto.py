"""OTLP in its protobuf form, decoded by ``opentelemetry-proto``.

A file does not say which signal a message is; the three kinds of batch have the same outer shape.  The decoded content
shows which one it is: a span has ids and times, a metric has a name and no ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from otel_lifecycle._table.sources.intake import Intake
from otel_lifecycle._table.sources.otlp_json import LATEST, take_metric
from otel_lifecycle._table.sources.repair import repaired
from otel_lifecycle._table.sources.spans import Attributes, ReadEvent, Span, SpanLink
from otel_lifecycle._table.sources.wanted import ARRIVE, MARKS, METRICS
from otel_lifecycle.semconv import STAGE

ID_BYTES: Final = (16, 8)


def decode(message: bytes, intake: Intake) -> bool:
    """Put every wanted span and metric point of a message into the intake; False if it is not an OTLP message."""
    shaped = False
    # As it stands first, and as either signal: the repair of one finds broken texts in the sound bytes of the other.
    for parse in (_parse, _parse_repaired):
        traces = parse(TracesData, message)
        if _has_spans(traces):
            _traces(traces, intake)
            return True
        metrics = parse(MetricsData, message)
        if _has_metrics(metrics):
            _metrics(metrics, intake)
            return True
        shaped |= bool(traces.resource_spans)
    # The outer shape fits and neither signal is in it: logs, profiles or an empty batch.
    if shaped:
        intake.tally.add("logs")
    return shaped


def _parse(kind: Any, message: bytes) -> Any:
    """Return the message as a kind of batch; an empty batch if the parser refuses it."""
    try:
        return kind.FromString(message)
    except DecodeError:
        return kind()


def _parse_repaired(kind: Any, message: bytes) -> Any:
    """Return the message with valid texts; one text that is not UTF-8 is enough for the parser to refuse it."""
    return _parse(kind, repaired(kind.DESCRIPTOR.full_name, message) or b"")


def _has_spans(traces: TracesData) -> bool:
    """Whether the first span looks like one: another signal's bytes decode too, but to nonsense."""
    for batch in traces.resource_spans:
        for scope in batch.scope_spans:
            for span in scope.spans:
                return len(span.trace_id) == ID_BYTES[0] and len(span.span_id) == ID_BYTES[1]
    return False


def _has_metrics(metrics: MetricsData) -> bool:
    """Whether a metric has a name: a log record decodes to one without."""
    found = (metric for batch in metrics.resource_metrics for scope in batch.scope_metrics for metric in scope.metrics)
    return any(metric.name for metric in found)


def _traces(traces: TracesData, intake: Intake) -> None:
    for batch in traces.resource_spans:
        resource = attributes(batch.resource.attributes)
        for scope in batch.scope_spans:
            for raw in scope.spans:
                intake.tally.read["spans"] += 1
                if intake.everything or _wanted(raw):
                    _take(raw, resource, scope.scope.name, intake)
                elif not any(item.key == STAGE for item in raw.attributes):
                    intake.tally.add("other_spans")


def _wanted(raw: ProtoSpan) -> bool:
    # The SDK drops the oldest events, so a span with dropped events has lost its arrival.
    lifecycle = any(event.name == ARRIVE or raw.dropped_events_count for event in raw.events)
    return lifecycle or any(item.key in MARKS for item in raw.attributes)


def _take(raw: ProtoSpan, resource: Attributes, scope: str, intake: Intake) -> None:
    span = span_of(raw, resource, scope)
    if span is None:
        intake.trouble("broken_span")
    else:
        intake.take(span)


def span_of(raw: ProtoSpan, resource: Attributes, scope: str) -> Span | None:
    """Return a span as the layers above see it; None where an id or a time is impossible."""
    times = (raw.start_time_unix_nano, raw.end_time_unix_nano, *(event.time_unix_nano for event in raw.events))
    ids = (len(raw.trace_id), len(raw.span_id)) == ID_BYTES and any(raw.trace_id) and any(raw.span_id)
    # Unlike JSON, protobuf's fixed64 admits times that no signed clock has.
    if not ids or max(times) >= LATEST:
        return None
    events = tuple([ReadEvent(event.name, event.time_unix_nano, attributes(event.attributes)) for event in raw.events])
    links = tuple(
        [SpanLink(link.trace_id.hex(), link.span_id.hex(), attributes(link.attributes)) for link in raw.links]
    )
    return Span(
        trace_id=raw.trace_id.hex(),
        span_id=raw.span_id.hex(),
        # Some programs write "no parent" as eight zero bytes.
        parent_id=raw.parent_span_id.hex() if any(raw.parent_span_id) else "",
        name=raw.name,
        start_ns=raw.start_time_unix_nano,
        end_ns=raw.end_time_unix_nano,
        attributes=attributes(raw.attributes),
        resource=resource,
        events=events,
        links=links,
        dropped_events=raw.dropped_events_count,
        dropped_attributes=raw.dropped_attributes_count,
        scope=scope,
    )


def attributes(items: Iterable[KeyValue]) -> dict[str, Any]:
    """Return key-value pairs as a dict."""
    return {item.key: _value(item.value) for item in items}


def _value(raw: AnyValue) -> Any:
    kind = raw.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(item) for item in raw.array_value.values]
    if kind == "kvlist_value":
        return attributes(raw.kvlist_value.values)
    # The scalar fields of the oneof are named after their kind.
    return getattr(raw, kind)


def _metrics(metrics: MetricsData, intake: Intake) -> None:
    for batch in metrics.resource_metrics:
        resource = attributes(batch.resource.attributes)
        for scope in batch.scope_metrics:
            for raw in scope.metrics:
                # The wanted ones are few, so their JSON form, which takes longer to make, saves a second decoder.
                take_metric(MessageToDict(raw) if raw.name in METRICS else {"name": raw.name}, resource, intake)
