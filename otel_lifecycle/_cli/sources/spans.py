"""A span as it was on the wire, whatever encoding it came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Attributes: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanEvent:
    """A named instant of a span, in epoch nanoseconds."""

    name: str
    time_ns: int
    attributes: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A finished span: hex ids, epoch nanoseconds, and the attributes of it and of its resource."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    resource: Attributes
    events: tuple[SpanEvent, ...] = ()
    dropped_events: int = 0
    dropped_attributes: int = 0
    scope: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPoint:
    """One point of a metric: a value, or a histogram's count and sum.

    ``series`` tells points of one series from those of another; ``cumulative`` that a later one replaces an earlier.
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


Item: TypeAlias = Span | MetricPoint


def series(own: Attributes, resource: Attributes) -> str:
    """Return the key of the series a metric point belongs to: its attributes, and the process that gave it."""
    process = [resource.get(key) for key in ("service.name", "service.instance.id")]
    return repr((sorted(own.items()), process))
