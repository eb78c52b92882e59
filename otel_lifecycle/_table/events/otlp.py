"""Requests as OTLP JSON, in the form the Collector's file exporter writes and its receivers read."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, Final

import orjson

from otel_lifecycle import semconv
from otel_lifecycle._core.attributes import DURATIONS
from otel_lifecycle._core.lifecycle import get_shape
from otel_lifecycle._table.events.replayed import Replayed
from otel_lifecycle._table.requests.from_span import arrival_of
from otel_lifecycle._table.sources.spans import Span
from otel_lifecycle._version import __version__

# One line a batch, as exporters send them; readers hold a whole line in memory.
BATCH: Final = 128
KEPT: Final = frozenset(
    {"arrive", "admit", "input_ready", "first_token", "output", "complete", "cancel", "timeout", "fail"}
)
"""Events that go out one by one; tokens go out summarised, as everywhere."""
# Enum numbers: OTLP JSON does not allow their names.
_SERVER, _INTERNAL, _ERROR = 2, 1, 2


def write_otlp(found: Iterable[Replayed], out: IO[bytes], service: str) -> Iterator[Replayed]:
    """Write the spans of each request, and hand it on."""
    spans: list[dict[str, Any]] = []
    for one in found:
        spans += spans_of(one)
        if len(spans) >= BATCH:
            out.write(batch(spans, service))
            spans = []
        yield one
    if spans:
        out.write(batch(spans, service))


def batch(spans: list[dict[str, Any]], service: str) -> bytes:
    """Return spans as one line."""
    resource = {"attributes": _attributes({"service.name": service})}
    scope = {"name": semconv.SCOPE, "version": __version__}
    message = {
        "resourceSpans": [
            {"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans, "schemaUrl": semconv.SCHEMA_URL}]}
        ]
    }
    return orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE)


def spans_of(one: Replayed) -> list[dict[str, Any]]:
    """Return the request span, with every attribute the processor would have given it, and its stage spans."""
    span, judged = one.span, one.judged
    own = {key: value for key, value in judged.attributes.items() if value is not None}
    failed = own[semconv.OUTCOME] in {"failed", "timed_out"}
    events = [
        {"timeUnixNano": str(event.time_ns), "name": event.name, "attributes": []}
        for event in span.events
        if event.name in KEPT
    ]
    events += [_violation(one, number) for number in range(len(judged.breaches))]
    whole = {
        **_span(span.trace_id, span.span_id, _name(own), span),
        "kind": _SERVER,
        "attributes": _attributes(own),
        "events": events,
        "status": {"code": _ERROR} if failed else {},
    }
    return [whole, *_stages(one)]


def _name(own: Mapping[str, Any]) -> str:
    operation, model = own.get(semconv.GEN_AI_OPERATION_NAME, "chat"), own.get(semconv.GEN_AI_REQUEST_MODEL)
    return str(operation) if model is None else f"{operation} {model}"


def _violation(one: Replayed, number: int) -> dict[str, Any]:
    breach, span = one.judged.breaches[number], one.span
    # A span event needs a time; TIME_KNOWN below marks it as a stand-in.
    at = span.end_ns if breach.offset is None else arrival_of(span) + round(breach.offset * 1e9)
    told = {
        semconv.VIOLATION_KIND: breach.kind,
        semconv.VIOLATION_STATE: breach.state,
        semconv.VIOLATION_EVENT: breach.event,
        semconv.TIME_KNOWN: False if breach.offset is None else None,
    }
    return {"timeUnixNano": str(at), "name": semconv.VIOLATION_SPAN_EVENT, "attributes": _attributes(told)}


def _span(trace_id: str, span_id: str, name: str, times: Span) -> dict[str, Any]:
    return {
        "traceId": trace_id,
        "spanId": span_id,
        "name": name,
        "startTimeUnixNano": str(times.start_ns),
        "endTimeUnixNano": str(times.end_ns),
    }


def _stages(one: Replayed) -> Iterator[dict[str, Any]]:
    """Yield a span for each stage whose two boundaries are known."""
    times = {
        key: next((event.time_ns for event in one.span.events if event.name in names), None)
        for key, names in _BOUNDARY.items()
        if key in one.report["timestamps"]
    }
    for number, stage in enumerate(get_shape(str(one.report["shape"])).stages, 1):
        start, end = times.get(stage.entered), times.get(stage.left)
        if start is None or end is None or DURATIONS[stage.metric] not in one.judged.attributes:
            continue
        yield {
            "traceId": one.span.trace_id,
            # Derived and not random, so that the same log gives the same spans.
            "spanId": f"{int(one.span.span_id, 16) ^ number:016x}",
            "parentSpanId": one.span.span_id,
            "name": stage.name,
            "kind": _INTERNAL,
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(end),
            "attributes": _attributes({semconv.STAGE: stage.name}),
            "status": {},
        }


_BOUNDARY: Final[Mapping[str, frozenset[str]]] = {
    "arrival": frozenset({"arrive"}),
    "admitted": frozenset({"admit"}),
    "input_ready": frozenset({"input_ready"}),
    "first_token": frozenset({"first_token"}),
    "terminal": frozenset({"complete", "cancel", "timeout", "fail"}),
}


def _attributes(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in found.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        # 64-bit integers are strings in OTLP JSON.
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, bytes):
        return {"bytesValue": base64.b64encode(value).decode()}
    if isinstance(value, (list, tuple)):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": str(value)}
