"""Lifecycle spans that the request API did not make: read, judged, and rebuilt with their attribution.

How it works.  The events of an ended span are replayed through the same checker as live marks.  The SDK lets nobody
write to an ended span, so the attribution goes onto a new one that is otherwise equal, and the next processor gets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from opentelemetry.sdk.trace import Event, ReadableSpan

from otel_lifecycle import semconv
from otel_lifecycle._core.attributes import end_attributes
from otel_lifecycle._core.checker import Checker, Violation
from otel_lifecycle._core.engine_slot import EngineSlot
from otel_lifecycle._core.interference_of_reports import slot_of, stalls_in
from otel_lifecycle._core.labels import RequestLabels
from otel_lifecycle._core.lifecycle import EVENTS, SHAPES, TERMINAL_EVENTS, TERMINAL_STATES
from otel_lifecycle._core.outputs import as_outputs
from otel_lifecycle._core.report import build_report, moved
from otel_lifecycle._core.text import clean, is_identifier
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.verdict import Finished, Verdict
from otel_lifecycle._propagation import links_to_culprits
from otel_lifecycle._runtime import Neighbour, runtime
from otel_lifecycle._sdk_traces import rebuilt
from otel_lifecycle.errors import LifecycleError, MissingTerminal

# The counts are exact; the span shows the first ones, as many as a person would read.
MAX_SHOWN_VIOLATIONS: Final = 32


class Truncated(LifecycleError):
    """The SDK dropped events of a span: what is missing cannot be called illegal."""

    kind = "truncated"


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
    """Replay a foreign span's events through the checker; return what it amounts to and what was wrong."""
    attributes = {**_of_terminal(span), **(span.attributes or {})}
    shape = attributes.get(semconv.SHAPE)
    timeline = Timeline(SHAPES.get(shape if isinstance(shape, str) else "default", SHAPES["default"]))
    checker = Checker(timeline)
    if _text(attributes, semconv.OUTPUT_UNIT) is not None:
        checker.count_amounts()
    # The SDK drops the oldest events, so what is left begins in the middle. Replayed, it would look illegal.
    if span.dropped_events:
        checker.violate(Truncated("the SDK dropped events of this span"))
        status = _truncated_status(span)
    else:
        status = _replay(span, timeline, checker)
    finished = _finished(timeline, checker, status, attributes, truncated=bool(span.dropped_events))
    return finished, checker.take_violations()


def _of_terminal(span: ReadableSpan) -> Mapping[str, Any]:
    """What the terminal event says of the end, in the form that our own spans have; the span's attributes beat it."""
    ends = (event.attributes or {} for event in span.events if event.name in TERMINAL_EVENTS)
    told = next(ends, {})
    return {key: told[key] for key in (semconv.ERROR_TYPE, semconv.END_REASON) if key in told}


def _replay(span: ReadableSpan, timeline: Timeline, checker: Checker) -> str:
    for event in span.events:
        if event.name in EVENTS:
            given: Mapping[str, Any] = event.attributes or {}
            default = None if event.name == "output" else 1
            apply = checker.apply if checker.amounts is None else checker.apply_output
            apply(event.name, event.timestamp, given.get("count", default), given.get("choice", 0))
    if timeline.state not in TERMINAL_STATES:
        checker.violate(MissingTerminal("the span ended without a terminal event", state=timeline.state))
        return "incomplete"
    return timeline.state


def _truncated_status(span: ReadableSpan) -> str:
    """How a truncated span ended; that is all its events still prove."""
    ends = [TERMINAL_EVENTS[event.name] for event in span.events if event.name in TERMINAL_EVENTS]
    return ends[0] if ends else "incomplete"


def _finished(
    timeline: Timeline, checker: Checker, status: str, attributes: Mapping[str, Any], *, truncated: bool
) -> Finished:
    usage = {
        name: value
        for name, key in (
            ("input_tokens", semconv.GEN_AI_USAGE_INPUT_TOKENS),
            ("output_tokens", semconv.GEN_AI_USAGE_OUTPUT_TOKENS),
            ("cached_tokens", semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS),
        )
        if isinstance(value := attributes.get(key), int) and not isinstance(value, bool) and value >= 0
    }
    output = usage.get("output_tokens")
    # With every time: a span holds 128 events at most, and the log of its engine needs them.
    unit = _text(attributes, semconv.OUTPUT_UNIT)
    report = build_report(timeline, status, usage=output if unit is None else None, unmarked=truncated)
    if unit is not None and checker.amounts is not None:
        report = as_outputs(report, unit, checker.amounts)
    return Finished(
        report=report,
        reason=_reason(attributes),
        error_type=_error_type(status, attributes),
        usage=usage,
        violations={str(kind): count for kind, count in checker.counts.items()},
        preemptions=dict(timeline.preemptions),
        truncated=truncated,
        labels=RequestLabels(
            role=_text(attributes, semconv.ROLE) or "whole",
            traffic=_text(attributes, semconv.TRAFFIC) or "live",
            operation=_text(attributes, semconv.GEN_AI_OPERATION_NAME) or "chat",
            provider=_text(attributes, semconv.GEN_AI_PROVIDER_NAME),
            model=_text(attributes, semconv.GEN_AI_REQUEST_MODEL),
            tenant=_text(attributes, semconv.TENANT),
            unit=unit,
        ),
    )


def with_interference(span: ReadableSpan, finished: Finished) -> Finished:
    """Enter a foreign request in the log of its engine, and add what the others did to it.

    Its times are epoch nanoseconds.  The log is kept in readings of the monotonic clock, as live requests give them.
    """
    attributes = span.attributes or {}
    engine = _text(attributes, semconv.ENGINE) or finished.labels.model or ""
    log = runtime().engines.log(engine)
    if log is None or span.start_time is None or span.end_time is None:
        return finished
    # The offset that live requests share: with one of its own, its times and theirs could not be compared to the
    # nanosecond.
    offset = -runtime().clock_offset.read()[1]
    report = moved(finished.report, offset)
    neighbour = Neighbour(span.context, _text(attributes, semconv.REQUEST_ID))
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


def _text(attributes: Mapping[str, Any], key: str) -> str | None:
    value = attributes.get(key)
    return clean(value) or None if isinstance(value, str) else None


def _reason(attributes: Mapping[str, Any]) -> str | None:
    reason = _text(attributes, semconv.END_REASON)
    return None if reason is None else reason if reason in semconv.REASONS else semconv.OTHER


def _error_type(status: str, attributes: Mapping[str, Any]) -> str | None:
    if status == "timed_out":
        return "timeout"
    given = _text(attributes, semconv.ERROR_TYPE)
    if status != "failed":
        return None
    return given if given is not None and is_identifier(given) else semconv.OTHER


def rebuild(
    span: ReadableSpan,
    finished: Finished,
    verdict: Verdict,
    violations: list[Violation],
    *,
    compat: str | None = None,
) -> ReadableSpan:
    """Return the span with its attribution and its violations; what the SDK dropped of it stays counted."""
    shown = [
        Event(semconv.VIOLATION_SPAN_EVENT, _violation_attributes(violation), span.end_time)
        for violation in violations[:MAX_SHOWN_VIOLATIONS]
    ]
    return rebuilt(
        span,
        attributes={**(span.attributes or {}), **end_attributes(finished, verdict, compat=compat)},
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
