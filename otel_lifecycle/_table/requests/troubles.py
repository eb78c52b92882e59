"""Defects of a request's span: what limits removed from it, and clocks that disagree."""

from __future__ import annotations

from typing import Final

from otel_lifecycle import semconv
from otel_lifecycle._table.sources.spans import Span
from otel_lifecycle._table.sources.tally import ReadingTally

ONE_PROCESS_SKEW_NS: Final = 1_000_000
"""An event may lie a millisecond outside its span: one process reads its clocks one after the other."""


def note_troubles(span: Span, tally: ReadingTally) -> None:
    """Count what limits removed from a span, and clocks in it that disagree."""
    tally.add("events_dropped", number=span.dropped_events)
    tally.add("attributes_dropped", number=span.dropped_attributes)
    latest = span.end_ns + ONE_PROCESS_SKEW_NS
    # A violation may well be recorded after the end: for example a token after completion.
    late = any(event.time_ns > latest and event.name != semconv.VIOLATION_SPAN_EVENT for event in span.events)
    if late or span.end_ns < span.start_ns:
        tally.add("clock_skew", f"span {span.span_id} of trace {span.trace_id}")
