"""A span of another library that carries lifecycle events: judged exactly as the processor does live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_lifecycle import semconv
from otel_lifecycle._cli.requests.model import Breach
from otel_lifecycle._cli.sources.spans import Span
from otel_lifecycle._core.attributes import end_attributes
from otel_lifecycle._core.checker import Checker, Violation
from otel_lifecycle._core.lifecycle import EVENTS, TERMINAL_STATES, get_shape, transition_error
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.verdict import assess
from otel_lifecycle._foreign import is_lifecycle, read_foreign
from otel_lifecycle._sdk_traces import Dropped, RebuiltSpan
from otel_lifecycle.errors import MissingTerminal

_NANO: Final = 1e-9
_TOKENS: Final = frozenset({"token", "first_token"})
_RULES: Final = {
    "invalid_timestamp": "a time is None or a finite number",
    "invalid_value": "a count is None or a whole number from 0, a choice a whole number from 0",
    "non_monotonic_time": "time never goes back",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The result of judging a span's events: its attributes, and what no attribute holds."""

    attributes: dict[str, Any]
    breaches: tuple[Breach, ...] = ()
    gaps: tuple[float, ...] = ()
    wasted: int = 0


class Replay:
    """The checker over one request's events; ``breaches`` says where each illegal one came.

    Times in nanoseconds.  ``wasted``: tokens that came after the end.
    """

    def __init__(self, shape: str) -> None:
        self.timeline = Timeline(get_shape(shape))
        self.breaches: list[Breach] = []
        self.wasted = 0
        self._arrival: int | None = None
        self._now: Any = None
        self._checker = Checker(self.timeline)

    def apply(self, name: str, time: Any, count: Any = 1, choice: Any = 0) -> None:
        """Apply an event; an illegal one becomes a breach."""
        # The first known time is the origin of every offset, also where the first event is not an arrival.
        if self._arrival is None and isinstance(time, int):
            self._arrival = time
        self._now = time
        if self.timeline.ended and name in _TOKENS:
            self.wasted += count if isinstance(count, int) else 1
        self._checker.apply(name, time, count, choice)
        self._take()

    def close(self) -> str:
        """Return the status, after the trace has stopped."""
        state = self.timeline.state
        if state in TERMINAL_STATES:
            return state
        # The trace stops at no known time, so the violation has no offset.
        self._now = None
        allowed = tuple(self.timeline.shape.table[state])
        self._checker.violate(MissingTerminal("the trace stops", state=state, allowed=allowed))
        self._take()
        return "incomplete"

    @property
    def counts(self) -> dict[str, int]:
        """Violations by kind."""
        return {str(kind): number for kind, number in self._checker.counts.items()}

    def _take(self) -> None:
        for violation in self._checker.take_violations():
            self._note(violation)

    def _note(self, violation: Violation) -> None:
        known = self._arrival is not None and isinstance(self._now, int)
        self.breaches.append(
            Breach(
                kind=violation.kind,
                state=violation.state,
                event=violation.event,
                offset=(self._now - self._arrival) * _NANO if known else None,
                rule=self._rule(violation),
            )
        )

    def _rule(self, violation: Violation) -> str | None:
        """Return what would have been legal there."""
        state, event = violation.state, violation.event
        if state is None or event is None or state not in self.timeline.shape.table:
            return None
        known = _RULES.get(violation.kind) if event in EVENTS else None
        return known or str(transition_error(self.timeline.shape, state, event))


def is_foreign(span: Span) -> bool:
    """Return whether a span without a verdict is a lifecycle span, by the processor's own rule."""
    return is_lifecycle(_readable(span))


def judge(span: Span, shape: str, threshold: float) -> Judged:
    """Replay the lifecycle events of a span; one that lost events is ``truncated``, never illegal.

    ``shape`` is for spans that do not say theirs.
    """
    finished, violations = read_foreign(_readable(span, shape))
    attributes = end_attributes(finished, assess(finished, threshold=threshold))
    gaps = tuple(gap * _NANO for gap in finished.report["itl"])
    # Without the dropped events nothing is known of the order, so only the loss itself is reported.
    if finished.truncated:
        return Judged(attributes=attributes, breaches=(Breach(kind="truncated"),))
    # The second replay only serves to locate violations, which few spans have.
    if not violations:
        return Judged(attributes=attributes, gaps=gaps)
    replay = _replayed(span, shape)
    return Judged(attributes=attributes, breaches=tuple(replay.breaches), gaps=gaps, wasted=replay.wasted)


def _replayed(span: Span, shape: str) -> Replay:
    replay = Replay(str(span.attributes.get(semconv.SHAPE, shape)))
    for event in span.events:
        if event.name in EVENTS:
            # A whole answer has an unknown number of tokens unless its event states it; a token event is one token.
            default = None if event.name == "output" else 1
            given = event.attributes
            replay.apply(event.name, event.time_ns, given.get("count", default), given.get("choice", 0))
    replay.close()
    return replay


def _readable(span: Span, shape: str | None = None) -> ReadableSpan:
    """Return the span as the SDK hands it to a processor."""
    told = [Event(event.name, dict(event.attributes), event.time_ns) for event in span.events]
    attributes = dict(span.attributes)
    if shape is not None:
        attributes.setdefault(semconv.SHAPE, shape)
    return RebuiltSpan(
        Dropped(events=span.dropped_events),
        name=span.name,
        resource=_NO_RESOURCE,
        attributes=attributes,
        events=told,
        instrumentation_scope=InstrumentationScope(span.scope),
        start_time=span.start_ns,
        end_time=span.end_ns,
    )


_NO_RESOURCE: Final = Resource({})
"""Made once: the constructor reads the environment, and nothing here reads the resource."""
