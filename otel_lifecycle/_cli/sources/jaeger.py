"""Jaeger: its query API, and the JSON its API and web page give.

Both of its forms are read: the OTLP one (``/api/v3``, where the server has it) comes through ``otlp_json``; the older
one (``/api/traces``), which every version has, is taken apart here.  Times there are whole microseconds.
"""

from __future__ import annotations

import base64
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from otel_lifecycle._cli.problems import NoAnswer
from otel_lifecycle._cli.sources.intake import Intake
from otel_lifecycle._cli.sources.otlp_json import MALFORMED, identifier, instant
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
    "int64": int,
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
        for raw in trace.get("spans") or ():
            _take(raw, processes, intake)


def _take(raw: Raw, processes: Raw, intake: Intake) -> None:
    intake.tally.read["spans"] += 1
    try:
        span = _span(raw, processes)
    except MALFORMED:
        intake.trouble("broken_span")
        return
    marked = MARKS & span.attributes.keys() or any(event.name == ARRIVE or span.dropped_events for event in span.events)
    if intake.everything or marked:
        intake.items.append(span)
    elif STAGE not in span.attributes:
        intake.tally.add("other_spans")


def _span(raw: Raw, processes: Raw) -> Span:
    process = processes.get(str(raw.get("processID"))) or {}
    start = instant(int(raw["startTime"]) * 1000)
    parents = [item for item in raw.get("references") or () if item.get("refType") == "CHILD_OF"]
    tags = _tags(raw.get("tags") or ())
    return Span(
        trace_id=identifier(str(raw["traceID"]).zfill(32), 16),
        span_id=identifier(str(raw["spanID"]).zfill(16), 8),
        parent_id=identifier(str(parents[0]["spanID"]).zfill(16), 8) if parents else "",
        name=str(raw.get("operationName") or ""),
        start_ns=start,
        end_ns=instant(start + int(raw["duration"]) * 1000),
        attributes=tags,
        resource={"service.name": process.get("serviceName"), **_tags(process.get("tags") or ())},
        events=tuple(_log(log) for log in raw.get("logs") or ()),
        dropped_events=int(tags.get("otel.dropped_events_count") or 0),
        scope=tags.get("otel.scope.name") or "",
    )


def _log(raw: Raw) -> SpanEvent:
    fields = _tags(raw.get("fields") or ())
    name = fields.pop("event", "")
    return SpanEvent(name=str(name), time_ns=instant(int(raw["timestamp"]) * 1000), attributes=fields)


def _tags(items: Iterable[Raw]) -> dict[str, Any]:
    return {item["key"]: _CONVERT.get(str(item.get("type")), _same)(item.get("value")) for item in items}


def _same(found: Any) -> Any:
    return found


def is_url(source: str) -> bool:
    """Return whether a source names a Jaeger to ask instead of a file."""
    return source.startswith(("http://", "https://"))


def fetch(source: str, now_us: int, tally: Tally) -> Iterator[Raw]:
    """Yield the answers of a Jaeger's query API, window by window, so that one answer is held at a time.

    ``source`` is ``http://host:16686?service=NAME``; further parameters are Jaeger's own (``operation``, ``tags``,
    ``start`` and ``end`` in microseconds, ``lookback`` in seconds), and without a service every one that Jaeger knows
    is asked for.  A URL that ends in ``/api/traces/<id>`` gives that one trace.  Raises NoAnswer.
    """
    parts = urllib.parse.urlsplit(source)
    base = urllib.parse.urlunsplit((parts.scheme, parts.netloc, "", "", ""))
    path = parts.path.rstrip("/")
    if "/api/traces/" in path:
        yield _get(f"{base}{path}")
        return
    asked = dict(urllib.parse.parse_qsl(parts.query))
    end = int(asked.pop("end", now_us))
    start = int(asked.pop("start", end - int(float(asked.pop("lookback", DEFAULT_LOOKBACK_S)) * 1e6)))
    prefix = base + path.removesuffix("/api/traces").removesuffix("/search")
    services = [asked.pop("service")] if "service" in asked else _get(f"{prefix}/api/services").get("data") or []
    for service in services:
        yield from _windows(f"{prefix}/api/traces", {**asked, "service": service}, start, end, tally)


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
    except (OSError, ValueError) as error:
        raise NoAnswer(f"{url}: {error}") from error
    if not isinstance(document, dict) or "data" not in document:
        raise NoAnswer(f"{url}: the answer is not one of Jaeger's query API")
    if document.get("errors"):
        raise NoAnswer(f"{url}: {document['errors']}")
    return document
