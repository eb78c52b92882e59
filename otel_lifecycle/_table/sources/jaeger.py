"""The JSON of Jaeger's query API and web page.

Jaeger's OTLP form (``/api/v3``) is read by ``otlp_json``.  The older form (``/api/traces``), which every version has,
is read here.  Its times are whole microseconds.  :mod:`jaeger_api` asks a server for either.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from otel_lifecycle._table.sources.intake import Intake
from otel_lifecycle._table.sources.otlp_json import MALFORMED, Lost, identifier, instant, int64, parent
from otel_lifecycle._table.sources.spans import ReadEvent, Span, SpanLink
from otel_lifecycle._table.sources.wanted import ARRIVE, MARKS
from otel_lifecycle.semconv import STAGE

Raw = Mapping[str, Any]

_CONVERT: Final[Mapping[str, Callable[[Any], Any]]] = {
    "int64": int64,
    "float64": float,
    # A JSON boolean, or its text: ``str`` gives one form of both.
    "bool": lambda raw: str(raw).lower() == "true",
    "binary": lambda raw: base64.b64decode(str(raw)),
}


def is_jaeger(document: object) -> bool:
    """Return whether a decoded JSON document is Jaeger's list of traces, or one bare trace."""
    traces = _traces(document)
    return traces is not None and all(isinstance(trace, dict) and "spans" in trace for trace in traces)


def _traces(document: object) -> list[Any] | None:
    if not isinstance(document, dict):
        return None
    if "traceID" in document and isinstance(document.get("spans"), list):
        return [document]
    return document["data"] if isinstance(document.get("data"), list) else None


def decode(document: object, intake: Intake) -> None:
    """Put every wanted span of Jaeger's traces into the intake, and count the rest."""
    for trace in _traces(document) or ():
        processes = trace.get("processes")
        for raw in trace["spans"] if isinstance(trace["spans"], list) else ():
            _take(raw, processes if isinstance(processes, dict) else {}, intake)


def _take(raw: Raw, processes: Raw, intake: Intake) -> None:
    intake.tally.read["spans"] += 1
    try:
        span = _span(raw, processes, intake)
    except MALFORMED:
        intake.trouble("broken_span")
        return
    marked = MARKS & span.attributes.keys() or any(event.name == ARRIVE or span.dropped_events for event in span.events)
    if intake.everything or marked:
        intake.take(span)
    elif STAGE not in span.attributes:
        intake.tally.add("other_spans")


def _span(raw: Raw, processes: Raw, intake: Intake) -> Span:
    lost = intake.lost_attribute
    # The API lists the processes of a trace once; Jaeger's storage form has the process in each span.
    process = processes.get(str(raw.get("processID"))) or raw.get("process") or {}
    start = instant(int(raw["startTime"]) * 1000)
    parents, links = _references(raw)
    tags = _tags(raw.get("tags") or (), lost)
    return Span(
        # Old clients have 64-bit trace ids, and Jaeger drops leading zeros.
        trace_id=identifier(str(raw["traceID"]).zfill(32), 16),
        span_id=identifier(str(raw["spanID"]).zfill(16), 8),
        parent_id=parents[0] if parents else "",
        name=str(raw.get("operationName") or ""),
        start_ns=start,
        end_ns=instant(start + int(raw["duration"]) * 1000),
        attributes=tags,
        resource={"service.name": process.get("serviceName"), **_tags(process.get("tags") or (), lost)},
        events=tuple([_log(log, lost) for log in raw.get("logs") or ()]),
        links=tuple(links),
        # Jaeger has no field for these; the OpenTelemetry exporters and the Collector write them as tags.
        dropped_events=int(tags.get("otel.dropped_events_count") or 0),
        dropped_attributes=int(tags.get("otel.dropped_attributes_count") or 0),
        scope=str(tags.get("otel.scope.name") or ""),
    )


def _references(raw: Raw) -> tuple[list[str], list[SpanLink]]:
    """Return the parents and the links of a span; Jaeger keeps no attributes of a link."""
    parents, links = [], []
    for item in raw.get("references") or ():
        span_id = parent(str(item.get("spanID") or "").zfill(16))
        if item.get("refType") == "CHILD_OF":
            parents += [span_id] if span_id else []
        elif span_id:
            links.append(SpanLink(identifier(str(item["traceID"]).zfill(32), 16), span_id, {}))
    # A deprecated field of Jaeger's JSON model; spans that have it have no reference to their parent.
    if not parents and raw.get("parentSpanID"):
        parents.append(parent(str(raw["parentSpanID"]).zfill(16)))
    return parents, links


def _log(raw: Raw, lost: Lost) -> ReadEvent:
    fields = _tags(raw.get("fields") or (), lost)
    # Jaeger has no event names: OpenTelemetry's translation puts the name into a field.
    name = fields.pop("event", "")
    return ReadEvent(str(name), instant(int(raw["timestamp"]) * 1000), fields)


def _tags(items: Iterable[Raw], lost: Lost) -> dict[str, Any]:
    """Return tags as a dict; one whose value cannot be read is left out."""
    found = {}
    for item in items:
        key = str(item["key"])
        try:
            found[key] = _CONVERT.get(str(item.get("type")), _same)(item.get("value"))
        except MALFORMED:
            lost(key)
    return found


def _same(found: Any) -> Any:
    return found
