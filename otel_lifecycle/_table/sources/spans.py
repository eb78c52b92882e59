"""A span as it was on the wire, whatever encoding it came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from otel_lifecycle._table.sources.made_rows import MadeRows

Attributes: TypeAlias = Mapping[str, Any]


class ReadEvent(NamedTuple):
    """A named instant of a span, in epoch nanoseconds.  A tuple: a file of a million requests has eight million."""

    name: str
    time_ns: int
    attributes: Attributes


class SpanLink(NamedTuple):
    """A link from a span to another one, by hex ids."""

    trace_id: str
    span_id: str
    attributes: Attributes


@dataclass(slots=True, kw_only=True)
class Span:
    """A finished span: hex ids, epoch nanoseconds, and the attributes of it and of its resource.

    ``parent_id`` is empty for a root span.  ``source`` and ``line`` say where the span was read.  ``row``: of a span
    that was made from a row of the table, that row.  Not frozen: the setters of a frozen dataclass take as long as all
    the rest of reading a span.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    resource: Attributes
    events: tuple[ReadEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()
    dropped_events: int = 0
    dropped_attributes: int = 0
    scope: str = ""
    source: str = ""
    line: int = 0
    row: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPoint:
    """One point of a metric: a value, or a histogram's count and sum.

    ``series`` names the series that the point belongs to.  ``cumulative``: a later point replaces an earlier one.
    """

    name: str
    series: str
    attributes: Attributes
    time_ns: int
    value: float | None = None
    count: int | None = None
    total: float | None = None
    edges: tuple[float, ...] = ()
    buckets: tuple[int, ...] = ()
    cumulative: bool = False


Item: TypeAlias = Span | MetricPoint | MadeRows


def series(own: Attributes, resource: Attributes) -> str:
    """Return the key of the series of a metric point: its attributes, and the process that reported it."""
    # The two attributes that identify a process by the semantic conventions.
    process = [resource.get(key) for key in ("service.name", "service.instance.id")]
    return repr((sorted(own.items()), process))
