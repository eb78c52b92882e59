"""OTLP in its JSON form: lower-camel keys, 64-bit numbers as strings, ids as hex.

Generic protobuf printers write ids as base64 instead; both are read.  Unknown fields are ignored, as the protocol asks.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from otel_lifecycle._cli.sources.intake import Intake
from otel_lifecycle._cli.sources.spans import Attributes, MetricPoint, Span, SpanEvent, series
from otel_lifecycle._cli.sources.wanted import ARRIVE, MARKS, METRICS
from otel_lifecycle.semconv import STAGE

Raw = Mapping[str, Any]
Lost = Callable[[str], None]

MALFORMED: Final = (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError)
"""What a span of the wrong make raises while it is taken apart."""

LATEST: Final = 2**63
"""Epoch nanoseconds that no signed 64-bit integer holds: the year 2262."""


def is_otlp(document: object) -> bool:
    """Return whether a decoded JSON document is a batch of any OTLP signal."""
    keys = ("resourceSpans", "resourceMetrics", "resourceLogs", "resourceProfiles")
    return isinstance(document, dict) and any(isinstance(document.get(key), list) for key in keys)


def decode(document: Raw, intake: Intake) -> None:
    """Put every wanted span and metric point of a batch into the intake, and count the rest."""
    for batch in _list(document, "resourceSpans"):
        resource = _resource(batch, intake)
        for scope in _list(batch, "scopeSpans"):
            name = _scope_name(scope)
            for raw in _list(scope, "spans"):
                _span(raw, resource, name, intake)
    for batch in _list(document, "resourceMetrics"):
        resource = _resource(batch, intake)
        for scope in _list(batch, "scopeMetrics"):
            for raw in _list(scope, "metrics"):
                _metric(raw, resource, intake)
    intake.tally.add("logs", number=len(_list(document, "resourceLogs")))


def _list(raw: object, key: str) -> list[Any]:
    found = raw.get(key) if isinstance(raw, dict) else None
    return found if isinstance(found, list) else []


def _scope_name(scope: Raw) -> str:
    try:
        return str(scope["scope"]["name"])
    except MALFORMED:
        return ""


def _resource(batch: Raw, intake: Intake) -> Attributes:
    try:
        return attributes((batch.get("resource") or {}).get("attributes") or (), intake.lost_attribute)
    except MALFORMED:
        return {}


def _span(raw: Raw, resource: Attributes, scope: str, intake: Intake) -> None:
    intake.tally.read["spans"] += 1
    try:
        if intake.everything or _wanted(raw):
            intake.take(span(raw, resource, scope, intake.lost_attribute))
        elif not any(item["key"] == STAGE for item in raw.get("attributes") or ()):
            intake.tally.add("other_spans")
    except MALFORMED:
        intake.trouble("broken_span")


def _wanted(raw: Raw) -> bool:
    for event in raw.get("events") or ():
        # A span that lost its oldest events has lost its arrival first.
        if event.get("name") == ARRIVE or raw.get("droppedEventsCount"):
            return True
    return any(item["key"] in MARKS for item in raw.get("attributes") or ())


def span(raw: Raw, resource: Attributes, scope: str = "", lost: Lost | None = None) -> Span:
    """Build a span; raises one of :data:`MALFORMED` where ids or times are unusable.

    ``lost`` is called with the name of every attribute that is; without it one of those is raised, too.
    """
    return Span(
        trace_id=identifier(raw["traceId"], 16),
        span_id=identifier(raw["spanId"], 8),
        parent_id=identifier(raw["parentSpanId"], 8) if raw.get("parentSpanId") else "",
        name=str(raw.get("name") or ""),
        start_ns=instant(raw["startTimeUnixNano"]),
        end_ns=instant(raw["endTimeUnixNano"]),
        attributes=attributes(raw.get("attributes") or (), lost),
        resource=resource,
        events=tuple(
            SpanEvent(
                name=str(event.get("name") or ""),
                time_ns=instant(event["timeUnixNano"]),
                attributes=attributes(event.get("attributes") or (), lost),
            )
            for event in raw.get("events") or ()
        ),
        dropped_events=int(raw.get("droppedEventsCount") or 0),
        dropped_attributes=int(raw.get("droppedAttributesCount") or 0),
        scope=scope,
    )


def instant(raw: Any) -> int:
    """Return epoch nanoseconds; ValueError for what no 64-bit clock gives."""
    found = int(raw)
    if not 0 <= found < LATEST:
        raise ValueError(f"{raw!r:.80} is no time")
    return found


def identifier(text: str, size: int) -> str:
    """Return an id of ``size`` bytes as lower-case hex; ValueError if it is none, or all zeros."""
    if len(text) == 2 * size:
        found = text.lower()
        int(found, 16)
    else:
        found = base64.b64decode(text, validate=True).hex()
    if len(found) != 2 * size or not found.strip("0"):
        raise ValueError(f"{text!r:.80} is no id of {size} bytes")
    return found


def attributes(items: Iterable[Raw], lost: Lost | None = None) -> dict[str, Any]:
    """Return key-value pairs as a dict; a value of an unknown kind is None, one that cannot be read is left out."""
    try:
        return {str(item["key"]): value(item.get("value")) for item in items}
    except MALFORMED:
        if lost is None:
            raise
    return dict(_sound(items, lost))


def _sound(items: Iterable[Raw], lost: Lost) -> Iterator[tuple[str, Any]]:
    """Yield the pairs that can be read, and tell which cannot."""
    for item in items:
        try:
            yield str(item["key"]), value(item.get("value"))
        except MALFORMED:
            lost(str(item["key"] if isinstance(item, dict) and "key" in item else item)[:60])


def value(raw: Any) -> Any:
    """Return a plain value of an AnyValue: str, bool, int, float, bytes, list or dict."""
    if not raw:
        return None
    # The two that nearly every attribute is, first: this runs thirty times a request.
    if "doubleValue" in raw:
        return float(raw["doubleValue"])
    if "stringValue" in raw:
        return str(raw["stringValue"])
    for kind, inner in raw.items():
        convert = _CONVERT.get(kind)
        if convert is not None:
            return convert(inner)
    return None


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


_CONVERT: Final[Mapping[str, Callable[[Any], Any]]] = {
    "boolValue": bool,
    "intValue": int64,
    "bytesValue": _bytes,
    "arrayValue": lambda inner: [value(item) for item in inner.get("values") or ()],
    "kvlistValue": lambda inner: attributes(inner.get("values") or ()),
}


def _metric(raw: Raw, resource: Attributes, intake: Intake) -> None:
    try:
        if raw.get("name") not in METRICS:
            intake.tally.add("other_metrics")
            return
        for kind in ("gauge", "sum", "histogram"):
            data = raw.get(kind)
            if data:
                cumulative = data.get("aggregationTemporality") in {2, "AGGREGATION_TEMPORALITY_CUMULATIVE"}
                points = data.get("dataPoints") or ()
                intake.take_points([_point(raw["name"], point, resource, cumulative) for point in points])
    except MALFORMED:
        intake.trouble("unreadable")


def _point(name: str, raw: Raw, resource: Attributes, cumulative: bool) -> MetricPoint:
    own = attributes(raw.get("attributes") or ())
    number = raw.get("asDouble", raw.get("asInt"))
    return MetricPoint(
        name=name,
        series=series(own, resource),
        attributes=own,
        time_ns=instant(raw.get("timeUnixNano") or 0),
        value=None if number is None else float(number),
        count=int(raw["count"]) if "count" in raw else None,
        total=float(raw["sum"]) if "sum" in raw else None,
        edges=tuple(float(edge) for edge in raw.get("explicitBounds") or ()),
        buckets=tuple(int(number) for number in raw.get("bucketCounts") or ()),
        cumulative=cumulative,
    )
