"""Jaeger: its query API, and the JSON its API and web page give.

Both of its forms are read: the OTLP one (``/api/v3``, where the server has it) comes through ``otlp_json``; the older
one (``/api/traces``), which every version has, is taken apart here.  Times there are whole microseconds.
"""

from __future__ import annotations

import base64
import http.client
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from otel_lifecycle._cli.problems import NoAnswer, Unusable
from otel_lifecycle._cli.sources.intake import Intake
from otel_lifecycle._cli.sources.otlp_json import MALFORMED, Lost, identifier, instant, int64
from otel_lifecycle._cli.sources.spans import Span, SpanEvent
from otel_lifecycle._cli.sources.tally import Tally
from otel_lifecycle._cli.sources.wanted import ARRIVE, MARKS
from otel_lifecycle.semconv import STAGE

Raw = Mapping[str, Any]

PAGE: Final = 1000
"""Traces asked for at a time; a window that has as many is halved."""
SHORTEST_US: Final = 1000
"""A window is not halved below a millisecond; what a full one lacks is counted as cut short."""
TIMEOUT_S: Final = 60
DEFAULT_LOOKBACK_S: Final = 3600

_CONVERT: Final[Mapping[str, Callable[[Any], Any]]] = {
    "int64": int64,
    "float64": float,
    "bool": lambda raw: str(raw).lower() == "true",
    "binary": lambda raw: base64.b64decode(str(raw)),
}


def is_jaeger(document: object) -> bool:
    """Return whether a decoded JSON document is Jaeger's list of traces."""
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        return False
    return all(isinstance(trace, dict) and "spans" in trace for trace in document["data"])


def decode(document: Raw, intake: Intake) -> None:
    """Put every wanted span of Jaeger's traces into the intake, and count the rest."""
    for trace in document["data"]:
        processes = trace.get("processes") or {}
        for raw in trace["spans"] if isinstance(trace["spans"], list) else ():
            _take(raw, processes, intake)


def _take(raw: Raw, processes: Raw, intake: Intake) -> None:
    intake.tally.read["spans"] += 1
    try:
        span = _span(raw, processes, intake.lost_attribute)
    except MALFORMED:
        intake.trouble("broken_span")
        return
    marked = MARKS & span.attributes.keys() or any(event.name == ARRIVE or span.dropped_events for event in span.events)
    if intake.everything or marked:
        intake.take(span)
    elif STAGE not in span.attributes:
        intake.tally.add("other_spans")


def _span(raw: Raw, processes: Raw, lost: Lost) -> Span:
    process = processes.get(str(raw.get("processID"))) or {}
    start = instant(int(raw["startTime"]) * 1000)
    parents = [item for item in raw.get("references") or () if item.get("refType") == "CHILD_OF"]
    tags = _tags(raw.get("tags") or (), lost)
    return Span(
        trace_id=identifier(str(raw["traceID"]).zfill(32), 16),
        span_id=identifier(str(raw["spanID"]).zfill(16), 8),
        parent_id=identifier(str(parents[0]["spanID"]).zfill(16), 8) if parents else "",
        name=str(raw.get("operationName") or ""),
        start_ns=start,
        end_ns=instant(start + int(raw["duration"]) * 1000),
        attributes=tags,
        resource={"service.name": process.get("serviceName"), **_tags(process.get("tags") or (), lost)},
        events=tuple(_log(log, lost) for log in raw.get("logs") or ()),
        dropped_events=int(tags.get("otel.dropped_events_count") or 0),
        dropped_attributes=int(tags.get("otel.dropped_attributes_count") or 0),
        scope=str(tags.get("otel.scope.name") or ""),
    )


def _log(raw: Raw, lost: Lost) -> SpanEvent:
    fields = _tags(raw.get("fields") or (), lost)
    name = fields.pop("event", "")
    return SpanEvent(name=str(name), time_ns=instant(int(raw["timestamp"]) * 1000), attributes=fields)


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


def is_url(source: str) -> bool:
    """Return whether a source names a Jaeger to ask instead of a file."""
    return source.startswith(("http://", "https://"))


def fetch(source: str, now_us: int, tally: Tally) -> Iterator[Raw]:
    """Yield the answers of a Jaeger's query API, window by window, so that one answer is held at a time.

    ``source`` is ``http://host:16686?service=NAME``; further parameters are Jaeger's own (``operation``, ``tags``,
    ``start`` and ``end`` in microseconds, ``lookback`` in seconds), and without a service every one that Jaeger knows
    is asked for.  A URL that ends in ``/api/traces/<id>`` gives that one trace.  Raises NoAnswer, and Unusable for a
    URL that makes no sense.
    """
    try:
        parts = urllib.parse.urlsplit(source)
    except ValueError as error:
        raise Unusable(f"{source} is no address: {error}") from error
    base = urllib.parse.urlunsplit((parts.scheme, parts.netloc, "", "", ""))
    path = parts.path.rstrip("/")
    if "/api/traces/" in path:
        yield _get(f"{base}{path}")
        return
    asked = dict(urllib.parse.parse_qsl(parts.query))
    end = _number(source, asked, "end", now_us)
    back = _number(source, asked, "lookback", DEFAULT_LOOKBACK_S, 1e6)
    start = _number(source, asked, "start", end - back)
    prefix = base + path.removesuffix("/api/traces").removesuffix("/search")
    services = [asked.pop("service")] if "service" in asked else _get(f"{prefix}/api/services").get("data") or []
    for service in services:
        yield from _windows(f"{prefix}/api/traces", {**asked, "service": service}, start, end, tally)


def _number(source: str, asked: dict[str, str], name: str, default: int, scale: float = 1) -> int:
    """Take a number of microseconds out of the query; Jaeger's own page writes ``lookback=1h``, too."""
    raw = asked.pop(name, None)
    if raw is None:
        return int(default * scale)
    unit = _UNITS.get(raw[-1:], 1.0)
    try:
        return int(raw) if scale == 1 else int(float(raw.rstrip("smhd")) * unit * scale)
    except (ValueError, OverflowError) as error:
        form = "seconds" if name == "lookback" else "epoch microseconds"
        raise Unusable(f"{source}: {name}={raw} is no number of {form}") from error


_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _windows(url: str, asked: Mapping[str, str], start: int, end: int, tally: Tally) -> Iterator[Raw]:
    pending = [(start, end)]
    while pending:
        start, end = pending.pop()
        query = urllib.parse.urlencode({**asked, "start": start, "end": end, "limit": PAGE})
        answer = _get(f"{url}?{query}")
        full = len(answer.get("data") or ()) >= PAGE
        if full and end - start > SHORTEST_US:
            middle = (start + end) // 2
            pending += [(middle + 1, end), (start, middle)]
            continue
        if full:
            tally.add("truncated", f"{url}: more than {PAGE} traces within a millisecond")
        yield answer


def _get(url: str) -> Raw:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - is_url let http and https in only
            document = orjson.loads(answer.read())
    # A URL that http.client refuses is one of its own exceptions, and no ValueError.
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NoAnswer(f"{url}: {error}") from error
    if not isinstance(document, dict) or "data" not in document:
        raise NoAnswer(f"{url}: the answer is not one of Jaeger's query API")
    if document.get("errors"):
        raise NoAnswer(f"{url}: {document['errors']}")
    return document
