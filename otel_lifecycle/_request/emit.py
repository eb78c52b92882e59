"""Writing a finished request onto its span: events, attributes, status and the spans of its stages.

All of it is written at the end and at once.  A span keeps 128 events and drops the oldest, so what a server adds to the
span itself must not push ours out; and a stage whose boundary is unknown gets no span, which nobody knows before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from opentelemetry.trace import Span, Status, StatusCode, set_span_in_context

from otel_lifecycle import semconv
from otel_lifecycle._core.attributes import end_attributes
from otel_lifecycle._core.lifecycle import PREEMPTED, Stage
from otel_lifecycle._core.token_offsets import token_offsets
from otel_lifecycle._core.verdict import Finished, Verdict
from otel_lifecycle._request.endings import settings
from otel_lifecycle._request.record import Record

STAMPED_AT_CALL: Final = {semconv.TIME_KNOWN, semconv.VIOLATION_KIND}


def write(
    record: Record, finished: Finished, verdict: Verdict, *, token_times: bool = False, compat: str | None = None
) -> None:
    """Write everything but the end of the request span; nothing of it for a span that is not recorded."""
    span = record.span
    if not span.is_recording():
        return
    end = span_end(record)
    for name, time, attributes in record.events:
        # An event whose time is unknown was stamped when it was marked, which may be long after times given for others.
        known = attributes is None or not attributes.keys() & STAMPED_AT_CALL
        epoch_ns = time + record.offset if known else min(time + record.offset, end)
        add_event(span, name, _event_attributes(name, attributes, finished), epoch_ns)
    span.set_attributes(end_attributes(finished, verdict, compat=compat))
    if token_times:
        _set_token_offsets(record)
    if verdict.outcome in ("failed", "timed_out"):
        span.set_status(Status(StatusCode.ERROR))
    exception = record.ending.exception
    if settings.record_exceptions and exception is not None:
        span.record_exception(exception, timestamp=record.ended_at + record.offset)
    _write_stages(record)


def add_event(span: Span, name: str, attributes: Mapping[str, Any] | None, epoch_ns: int) -> None:
    """Add one lifecycle event to a span; the one place that decides what carries events."""
    span.add_event(name, attributes, epoch_ns)


def _event_attributes(name: str, attributes: Mapping[str, Any] | None, finished: Finished) -> Mapping[str, Any] | None:
    if name == "fail" and finished.error_type is not None:
        return {**(attributes or {}), semconv.ERROR_TYPE: finished.error_type}
    if name in ("cancel", "timeout") and finished.reason is not None:
        return {**(attributes or {}), semconv.END_REASON: finished.reason}
    return attributes


def end_span(record: Record) -> None:
    """End the request span."""
    record.span.end(span_end(record))


def span_end(record: Record) -> int:
    """Return the request's terminal time, epoch nanoseconds; now where that is unknown, and never before it began."""
    timeline = record.timeline
    terminal = timeline.times.get("terminal")
    if terminal is None or ("terminal" in timeline.remote and timeline.clocks_apart()):
        terminal = record.ended_at
    began = record.anchor.monotonic if record.arrived is None else record.arrived
    return max(terminal, began) + record.offset


def _set_token_offsets(record: Record) -> None:
    """Set every token's offset from the first in one attribute, and how many have none there."""
    offsets = token_offsets(record.timeline)
    if offsets is not None:
        record.span.set_attribute(semconv.TOKEN_OFFSETS, offsets.packed)
        if offsets.dropped:
            record.span.set_attribute(semconv.TOKEN_OFFSETS_DROPPED, offsets.dropped)


def _write_stages(record: Record) -> None:
    """Write one gross span a stage, its interruptions as children; none where a boundary is unknown."""
    apart = record.timeline.clocks_apart()
    context = set_span_in_context(record.span, record.parent_context)
    tracer = record.source.tracer
    for stage, start, end in _stage_times(record, apart):
        attributes = {semconv.STAGE: stage.name}
        span = tracer.start_span(stage.name, context, attributes=attributes, start_time=start + record.offset)
        if span.is_recording() and record.timeline.interruptions:
            _write_interruptions(record, span, stage, apart)
        span.end(end + record.offset)


def _stage_times(record: Record, apart: bool) -> Iterator[tuple[Stage, int, int]]:
    timeline = record.timeline
    times, remote = timeline.times, timeline.remote
    cut_state = timeline.interrupted if timeline.ended_in == PREEMPTED else timeline.ended_in
    for stage in timeline.shape.stages:
        if record.unmarked:
            # Nobody marks stages there: which one it was in when it ended is not known.
            return
        left = "terminal" if stage.state == cut_state else stage.left
        if stage.entered not in times or left not in times or (left == "terminal" and stage.state != cut_state):
            continue
        if apart and (stage.entered in remote) != (left in remote):
            continue
        yield stage, times[stage.entered], times[left]


def _write_interruptions(record: Record, parent: Span, stage: Stage, apart: bool) -> None:
    context = set_span_in_context(parent, record.parent_context)
    for interruption in record.timeline.interruptions:
        start, end = interruption.start, interruption.end
        if interruption.state != stage.state or start is None or end is None or (apart and interruption.across):
            continue
        attributes = {semconv.STAGE: PREEMPTED}
        span = record.source.tracer.start_span(
            PREEMPTED, context, attributes=attributes, start_time=start + record.offset
        )
        span.end(end + record.offset)
