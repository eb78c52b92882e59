"""Lifecycle spans that the request API did not make: read, judged, and rebuilt with their attribution.

How it works.  The events of an ended span are replayed through the same checker as live marks.  The SDK lets nobody
write to an ended span, so the attribution goes onto a new one that is otherwise equal, and the next processor gets it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from opentelemetry.sdk.trace import Event, ReadableSpan

from otel_lifecycle import semconv
from otel_lifecycle._core.attributes import end_attributes
from otel_lifecycle._core.checker import Violation
from otel_lifecycle._core.engine_slot import EngineSlot
from otel_lifecycle._core.interference_of_reports import slot_of, stalls_in
from otel_lifecycle._core.judge import judge_events, text_of
from otel_lifecycle._core.lifecycle import EVENTS
from otel_lifecycle._core.report import moved
from otel_lifecycle._core.verdict import Finished, Verdict
from otel_lifecycle._propagation import links_to_culprits
from otel_lifecycle._runtime import Neighbour, runtime
from otel_lifecycle._sdk_traces import rebuilt

# The counts are exact; the span shows the first ones, as many as a person would read.
MAX_SHOWN_VIOLATIONS: Final = 32


def is_ours(span: ReadableSpan) -> bool:
    """Return whether the request API made a span; such a one was judged by its handle."""
    return getattr(getattr(span, "instrumentation_scope", None), "name", None) == semconv.SCOPE


def is_lifecycle(span: ReadableSpan) -> bool:
    """Return whether a span that is not ours carries an ``arrive`` event.

    A span that lost its oldest events has lost its arrival first: with events dropped, one that has only
    events of the lifecycle counts too.
    """
    if is_ours(span):
        return False
    names = {event.name for event in span.events}
    return "arrive" in names or bool(span.dropped_events and names and names <= EVENTS)


def read_foreign(span: ReadableSpan) -> tuple[Finished, list[Violation]]:
    """Judge a foreign span by its events; return what it amounts to and what was wrong."""
    told = ((event.name, event.timestamp, event.attributes or {}) for event in span.events if event.name in EVENTS)
    judged = judge_events(told, span.attributes or {}, dropped=span.dropped_events)
    return judged.finished, [placed.violation for placed in judged.violations]


def with_interference(span: ReadableSpan, finished: Finished) -> Finished:
    """Enter a foreign request in the log of its engine, and add what the others did to it.

    Its times are epoch nanoseconds.  The log is kept in readings of the monotonic clock, as live requests give them.
    """
    attributes = span.attributes or {}
    engine = text_of(attributes, semconv.ENGINE) or finished.labels.model or ""
    log = runtime().engines.log(engine)
    if log is None or span.start_time is None or span.end_time is None:
        return finished
    # The offset that live requests share: with one of its own, its times and theirs could not be compared to the
    # nanosecond.
    offset = -runtime().clock_offset.read()[1]
    report = moved(finished.report, offset)
    neighbour: Neighbour = span.context, text_of(attributes, semconv.REQUEST_ID)
    if finished.truncated or not report["timestamps"]:
        # It was there; what it did is not known.
        slot = EngineSlot(neighbour, report["shape"], None)
        slot.end(span.end_time + offset, span.end_time + offset)
        slot.doubt(span.start_time + offset, span.end_time + offset)
        log.enter(slot)
        return finished
    slot = slot_of(report, neighbour)
    log.enter(slot)
    return replace(finished, interference=log.interference(slot, report, stalls_in(report)))


def rebuild(
    span: ReadableSpan,
    finished: Finished,
    verdict: Verdict,
    violations: list[Violation],
    *,
    compat: str | None = None,
    usage: bool = True,
) -> ReadableSpan:
    """Return the span with its attribution and its violations; what the SDK dropped of it stays counted."""
    shown = [
        Event(semconv.VIOLATION_SPAN_EVENT, _violation_attributes(violation), span.end_time)
        for violation in violations[:MAX_SHOWN_VIOLATIONS]
    ]
    return rebuilt(
        span,
        attributes={**(span.attributes or {}), **end_attributes(finished, verdict, compat=compat, usage=usage)},
        events=[*span.events, *shown],
        links=[*span.links, *links_to_culprits(finished.interference)],
    )


def _violation_attributes(violation: Violation) -> dict[str, Any]:
    attributes = {
        semconv.VIOLATION_KIND: violation.kind,
        semconv.VIOLATION_STATE: violation.state,
        semconv.VIOLATION_EVENT: violation.event,
    }
    return {name: value for name, value in attributes.items() if value is not None}
