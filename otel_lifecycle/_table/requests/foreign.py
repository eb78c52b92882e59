"""A span of another library that carries lifecycle events, or a logged request: judged as the processor does live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_lifecycle import semconv
from otel_lifecycle._core.lifecycle import EVENTS, SHAPES, transition_error
from otel_lifecycle._table.requests.model import Breach
from otel_lifecycle._table.sources.spans import Span

if TYPE_CHECKING:
    from otel_lifecycle._core.judge import JudgedEvents, PlacedViolation

_NANO: Final = 1e-9
_RULES: Final = {
    "invalid_timestamp": "a time is None or a finite number",
    "invalid_value": "a count is None or a whole number from 0, a choice a whole number from 0",
    "non_monotonic_time": "time never goes back",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdict on a span, its own or one made here: its attributes, and what no attribute holds."""

    attributes: Mapping[str, Any]
    breaches: tuple[Breach, ...] = ()
    gaps: tuple[float, ...] = ()
    wasted: int = 0


def is_foreign(span: Span) -> bool:
    """Return whether a span without a verdict is a lifecycle span, by the processor's own rule."""
    if span.scope == semconv.SCOPE:
        return False
    names = {event.name for event in span.events}
    return "arrive" in names or bool(span.dropped_events and names and names <= EVENTS)


def judge(span: Span, shape: str, threshold: float) -> Judged:
    """Judge the lifecycle events of a span; one that lost events is ``truncated``, never illegal.

    ``shape`` is for spans that do not say theirs.
    """
    # Here and below: spans of ours bring their verdict, and a report of them alone needs none of the judge.
    from otel_lifecycle._core.judge import judge_events

    attributes = {semconv.SHAPE: shape, **span.attributes}
    usual = _usual(span, attributes, threshold)
    if usual is not None:
        return usual
    told = [
        (event.name, None if event.attributes.get(semconv.TIME_KNOWN) is False else event.time_ns, event.attributes)
        for event in span.events
        if event.name in EVENTS
    ]
    return as_judged(judge_events(told, attributes, dropped=span.dropped_events), threshold)


def _usual(span: Span, attributes: Mapping[str, Any], threshold: float) -> Judged | None:
    """Return the verdict on a request with nothing unusual in its events; None for one that needs the judge."""
    # An attribute of an event is a count, a choice, an error or an unknown time: each needs the judge.
    if span.dropped_events or any(event.attributes for event in span.events):
        return None
    from otel_lifecycle._core.usual_spans import usual_attributes

    names, times = [event.name for event in span.events], [event.time_ns for event in span.events]
    found = usual_attributes(names, times, attributes, threshold)
    return None if found is None else Judged(attributes=found.attributes, gaps=tuple([g * _NANO for g in found.gaps]))


def as_judged(found: JudgedEvents, threshold: float = 0.45) -> Judged:
    """Return the verdict on some events, whose times are nanoseconds, in the form that a span has it."""
    from otel_lifecycle._core.attributes import end_attributes
    from otel_lifecycle._core.verdict import assess

    finished = found.finished
    attributes = end_attributes(finished, assess(finished, threshold=threshold))
    # Without the dropped events nothing is known of the order, so only the loss itself is reported.
    if finished.truncated:
        return Judged(attributes=attributes, breaches=(Breach(kind="truncated"),))
    return Judged(
        attributes=attributes,
        breaches=tuple([_breach(one, finished.report["shape"]) for one in found.violations]),
        gaps=tuple([gap * _NANO for gap in finished.report["itl"]]),
        wasted=found.wasted,
    )


def _breach(placed: PlacedViolation, shape: str) -> Breach:
    violation, time, first = placed
    known = isinstance(time, int) and first is not None
    return Breach(
        kind=violation.kind,
        state=violation.state,
        event=violation.event,
        offset=(time - first) * _NANO if known else None,
        rule=_rule(violation.state, violation.event, violation.kind, shape),
    )


def _rule(state: str | None, event: str | None, kind: str, shape: str) -> str | None:
    """Return what would have been legal there."""
    if state is None or event is None or state not in SHAPES[shape].table:
        return None
    known = _RULES.get(kind) if event in EVENTS else None
    return known or str(transition_error(SHAPES[shape], state, event))
