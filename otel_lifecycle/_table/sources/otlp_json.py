"""OTLP in its JSON form: lower-camel keys, 64-bit numbers as strings, ids as hex.

Generic protobuf printers write ids as base64 instead; both are read.  Unknown fields are ignored, as the protocol asks.
Backends wrap the batches in names of their own, and old exporters call a scope an instrumentation library; these are
read, too:

| wrapper | who writes it |
|---|---|
| `{"resourceSpans": [...]}` | OTLP itself |
| `{"batches": [...]}` | Tempo, `/api/traces/<id>` |
| `{"trace": {...}}` | Tempo, `/api/v2/traces/<id>` |
| `{"result": {...}}` | Jaeger, `/api/v3` |
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from otel_lifecycle._table.sources.intake import Intake
from otel_lifecycle._table.sources.lenient import whole
from otel_lifecycle._table.sources.spans import Attributes, MetricPoint, ReadEvent, Span, SpanLink, series
from otel_lifecycle._table.sources.wanted import ARRIVE, MARKS, METRICS
from otel_lifecycle.semconv import STAGE

Raw = Mapping[str, Any]
Lost = Callable[[str], None]

MALFORMED: Final = (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError, RecursionError)
"""What a span of the wrong form raises while it is taken apart."""

LATEST: Final = 2**63
"""Epoch nanoseconds that no signed 64-bit integer holds: the year 2262."""


DEEPEST: Final = 32
"""Levels of arrays and maps in one attribute that are read; what is nested deeper is not a value of telemetry."""

_SIGNALS: Final = ("resourceSpans", "batches", "resourceMetrics", "resourceLogs", "resourceProfiles")
_WRAPPERS: Final = ("result", "trace")


def is_otlp(document: object) -> bool:
    """Return whether a decoded JSON document is a batch of any OTLP signal, in whatever wrapper."""
    return _unwrapped(document) is not None


def _unwrapped(document: object) -> Raw | None:
    """Return the batch within a document, which a wrapper or two may hold; None where there is none."""
    # Bounded, because a file may nest wrappers without end.
    for _ in range(len(_WRAPPERS) + 1):
        if not isinstance(document, dict):
            return None
        if any(isinstance(document.get(key), list) for key in _SIGNALS):
            return document
        document = next((document[key] for key in _WRAPPERS if key in document), None)
    return None


def decode(document: object, intake: Intake) -> None:
    """Put every wanted span and metric point of a batch into the intake, and count the rest."""
    found = _unwrapped(document)
    for batch in (*_list(found, "resourceSpans"), *_list(found, "batches")):
        resource = resource_of(batch, intake)
        for scope in (*_list(batch, "scopeSpans"), *_list(batch, "instrumentationLibrarySpans")):
            name = scope_name(scope)
            for raw in _list(scope, "spans"):
                take_span(raw, resource, name, intake)
    for batch in _list(found, "resourceMetrics"):
        resource = resource_of(batch, intake)
        for scope in (*_list(batch, "scopeMetrics"), *_list(batch, "instrumentationLibraryMetrics")):
            for raw in _list(scope, "metrics"):
                take_metric(raw, resource, intake)
    # Logs hold no lifecycle; they are counted, so that nobody wonders where a batch went.
    intake.tally.add("logs", number=len(_list(found, "resourceLogs")))


def _list(raw: object, key: str) -> list[Any]:
    found = raw.get(key) if isinstance(raw, dict) else None
    return found if isinstance(found, list) else []


def scope_name(scope: Raw) -> str:
    """Return the name of a scope, or an empty text."""
    try:
        # Before OTLP 0.15 a scope was an instrumentation library; some exporters still write that.
        return str((scope.get("scope") or scope["instrumentationLibrary"])["name"])
    except MALFORMED:
        return ""


def resource_of(batch: Raw, intake: Intake) -> Attributes:
    """Return the attributes of the resource of a batch."""
    try:
        return attributes((batch.get("resource") or {}).get("attributes") or (), intake.lost_attribute)
    except MALFORMED:
        return {}


def take_span(raw: Raw, resource: Attributes, scope: str, intake: Intake) -> None:
    """Put a span into the intake if it is wanted, and count it if not."""
    intake.tally.read["spans"] += 1
    try:
        # Most spans of a file are of other libraries: they are tested in raw form, and only wanted ones are decoded.
        if intake.everything or _wanted(raw):
            intake.take(span(raw, resource, scope, intake))
        elif not any(item["key"] == STAGE for item in raw.get("attributes") or ()):
            intake.tally.add("other_spans")
    except MALFORMED:
        intake.trouble("broken_span")


def _wanted(raw: Raw) -> bool:
    for event in raw.get("events") or ():
        # The SDK drops the oldest events, so a span with dropped events has lost its arrival.
        if event.get("name") == ARRIVE or raw.get("droppedEventsCount"):
            return True
    return any(item["key"] in MARKS for item in raw.get("attributes") or ())


def span(raw: Raw, resource: Attributes, scope: str = "", intake: Intake | None = None) -> Span:
    """Build a span; raises one of :data:`MALFORMED` where ids or times are unusable.

    ``intake`` is told of every attribute that cannot be read; without it such an attribute raises, too.
    """
    lost = None if intake is None else intake.lost_attribute
    return Span(
        trace_id=identifier(raw["traceId"], 16),
        span_id=identifier(raw["spanId"], 8),
        parent_id=parent(raw.get("parentSpanId")),
        name=str(raw.get("name") or ""),
        start_ns=instant(raw["startTimeUnixNano"]),
        end_ns=instant(raw["endTimeUnixNano"]),
        attributes=attributes(raw.get("attributes") or (), lost),
        resource=resource,
        events=tuple([_event(event, lost) for event in raw.get("events") or ()]),
        links=tuple(_links(raw.get("links") or (), lost)),
        dropped_events=int(raw.get("droppedEventsCount") or 0),
        dropped_attributes=int(raw.get("droppedAttributesCount") or 0),
        scope=scope,
    )


def _event(raw: Raw, lost: Lost | None) -> ReadEvent:
    told = raw.get("attributes")
    return ReadEvent(
        str(raw.get("name") or ""), instant(raw["timeUnixNano"]), attributes(told, lost) if told else _NONE
    )


# Shared: nearly every event has no attributes, and a file has millions of events.
_NONE: Final[Attributes] = {}


def _links(items: Iterable[Raw], lost: Lost | None) -> Iterator[SpanLink]:
    """Yield the links that lead somewhere; a broken one is not a reason to lose its span."""
    for raw in items:
        try:
            trace_id, span_id = identifier(raw["traceId"], 16), identifier(raw["spanId"], 8)
            yield SpanLink(trace_id, span_id, attributes(raw.get("attributes") or (), lost))
        except MALFORMED:
            if lost is not None:
                lost("a link")


def instant(raw: Any) -> int:
    """Return epoch nanoseconds; ValueError for what no 64-bit clock gives."""
    found = int(raw)
    if not 0 <= found < LATEST:
        raise ValueError(f"{raw!r:.80} is not a time")
    return found


def identifier(text: str, size: int) -> str:
    """Return an id of ``size`` bytes as lower-case hex; ValueError if it is none, or all zeros."""
    found = _hex(text, size)
    # The specification calls an all-zero id invalid.
    if not found.strip("0"):
        raise ValueError(f"{text!r:.80} is not an id of {size} bytes")
    return found


def parent(raw: Any) -> str:
    """Return the id of a parent span; an empty text for each of the ways to say that there is none.

    These are: absent, null, empty, all zeros as hex, and all zeros as base64.
    """
    if not raw:
        return ""
    found = _hex(str(raw), 8)
    return found if found.strip("0") else ""


def _hex(text: str, size: int) -> str:
    # Hex by its length: base64 of 16 or 8 bytes has 24 or 12 characters, so the two cannot be confused.
    if len(text) == 2 * size:
        found = text.lower()
        int(found, 16)
    else:
        found = base64.b64decode(text, validate=True).hex()
    if len(found) != 2 * size:
        raise ValueError(f"{text!r:.80} is not an id of {size} bytes")
    return found


def attributes(items: Iterable[Raw], lost: Lost | None = None) -> dict[str, Any]:
    """Return key-value pairs as a dict; a value of an unknown kind is None.

    A value that cannot be read is left out and its name given to ``lost``; without that one of :data:`MALFORMED` is
    raised.
    """
    try:
        # The usual case in one expression.  Only a batch with a broken value takes the slow path below.
        return {str(item["key"]): value(item.get("value")) for item in items}
    except MALFORMED:
        if lost is None:
            raise
    return dict(_sound(items, lost))


def _sound(items: Iterable[Raw], lost: Lost) -> Iterator[tuple[str, Any]]:
    """Yield the pairs that can be read, and report which cannot."""
    for item in items:
        try:
            yield str(item["key"]), value(item.get("value"))
        except MALFORMED:
            lost(whole(str(item["key"] if isinstance(item, dict) and "key" in item else item)[:60]))


def value(raw: Any, depth: int = 0) -> Any:
    """Return a plain value of an AnyValue: str, bool, int, float, bytes, list or dict.

    Raises one of :data:`MALFORMED` for what cannot be, and for what is nested deeper than :data:`DEEPEST`.
    """
    if not raw:
        return None
    # The two that nearly every attribute is, first: this runs thirty times a request.
    if "doubleValue" in raw:
        return float(raw["doubleValue"])
    if "stringValue" in raw:
        return str(raw["stringValue"])
    for kind, inner in raw.items():
        if kind in _SCALARS:
            return _SCALARS[kind](inner)
        if kind in {"arrayValue", "kvlistValue"}:
            return _nested(kind, inner, depth + 1)
    return None


def _nested(kind: str, inner: Raw, depth: int) -> Any:
    if depth > DEEPEST:
        raise ValueError(f"nested more than {DEEPEST} deep")
    if kind == "arrayValue":
        return [value(item, depth) for item in inner.get("values") or ()]
    return {str(item["key"]): value(item.get("value"), depth) for item in inner.get("values") or ()}


def int64(raw: Any) -> int:
    """Return an integer; ValueError for one that the protocol has no room for."""
    found = int(raw)
    if not -LATEST <= found < LATEST:
        raise ValueError(f"{raw!r:.80} has more than 64 bits")
    return found


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""


_SCALARS: Final[Mapping[str, Callable[[Any], Any]]] = {"boolValue": bool, "intValue": int64, "bytesValue": _bytes}


def take_metric(raw: Raw, resource: Attributes, intake: Intake) -> None:
    """Put the points of a metric into the intake if it is wanted, and count it if not."""
    try:
        if raw.get("name") not in METRICS:
            intake.tally.add("other_metrics")
            return
        # Exponential histograms are not read: their quantiles need a calculation of their own.
        for kind in ("gauge", "sum", "histogram"):
            data = raw.get(kind)
            if data:
                # Numbers as the specification asks, names as generic protobuf printers write them.
                cumulative = data.get("aggregationTemporality") in {2, "AGGREGATION_TEMPORALITY_CUMULATIVE"}
                points = data.get("dataPoints") or ()
                intake.take_points([_point(raw["name"], kind, point, resource, cumulative) for point in points])
    except MALFORMED:
        intake.trouble("unreadable")


def _point(name: str, kind: str, raw: Raw, resource: Attributes, cumulative: bool) -> MetricPoint:
    own = attributes(raw.get("attributes") or ())
    # None is not 0 here: a histogram has no value, and a gauge without one was not observed.
    number = raw.get("asDouble", raw.get("asInt"))
    return MetricPoint(
        name=name,
        series=series(own, resource),
        attributes=own,
        time_ns=instant(raw.get("timeUnixNano") or 0),
        value=None if number is None else float(number),
        # Generic protobuf printers leave a 0 out.
        count=int(raw.get("count") or 0) if kind == "histogram" else None,
        total=float(raw["sum"]) if "sum" in raw else None,
        edges=tuple(float(edge) for edge in raw.get("explicitBounds") or ()),
        buckets=tuple(int(number) for number in raw.get("bucketCounts") or ()),
        cumulative=cumulative,
    )
