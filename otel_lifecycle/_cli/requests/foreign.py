"""A span of another library that carries lifecycle events: judged here, as the processor would have done live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from otel_lifecycle._cli.requests.model import Breach
from otel_lifecycle._cli.sources.spans import Span, SpanEvent
from otel_lifecycle._core.attributes import end_attributes
from otel_lifecycle._core.checker import Checker, Violation
from otel_lifecycle._core.lifecycle import EVENTS, TERMINAL_STATES, get_shape, transition_error
from otel_lifecycle._core.report import Report, build_report
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.verdict import Finished, assess
from otel_lifecycle.errors import MissingTerminal
from otel_lifecycle.semconv import GEN_AI_USAGE_OUTPUT_TOKENS, WIRE_STAGE

_NANO: Final = 1e-9
_TOKENS: Final = frozenset({"token", "first_token"})
_REASON: Final = ("reason", "inference.end.reason", "error.type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the events of a span amount to: the attributes that say so, and what no attribute says."""

    attributes: dict[str, Any]
    breaches: tuple[Breach, ...]
    gaps: tuple[float, ...]
    wasted: int
    report: Report


class Replay:
    """One request's events on their way through the checker; what is illegal becomes a breach, told once a kind."""

    def __init__(self, shape: str) -> None:
        self.timeline = Timeline(get_shape(shape))
        self.breaches: list[Breach] = []
        self.wasted = 0
        self._arrival: int | None = None
        self._now: Any = None
        self._checker = Checker(self.timeline, self._note)

    def apply(self, name: str, time: Any, count: Any = 1, choice: Any = 0) -> None:
        """Apply an event at a time in nanoseconds."""
        if self._arrival is None and isinstance(time, int):
            self._arrival = time
        self._now = time
        if self.timeline.ended and name in _TOKENS:
            self.wasted += count if isinstance(count, int) else 1
            if self.wasted > 1 and any(breach.kind == "event_after_terminal" for breach in self.breaches):
                return
        self._checker.apply(name, time, count, choice)

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
        """Say what would have been legal there."""
        state, event = violation.state, violation.event
        if state is None or event is None or state not in self.timeline.shape.table:
            return None
        if violation.kind in {"invalid_timestamp", "invalid_value"}:
            return "a time is None or a finite number, a count a whole number from 0"
        if violation.kind == "non_monotonic_time":
            return "time never goes back"
        return str(transition_error(self.timeline.shape, state, event))

    def close(self) -> str:
        """Return the status, after the trace has stopped."""
        if self.timeline.state in TERMINAL_STATES:
            return self.timeline.state
        allowed = tuple(self.timeline.shape.table[self.timeline.state])
        self._now = None
        self._checker.violate(
            MissingTerminal("the trace stops", state=self.timeline.state, event=None, allowed=allowed)
        )
        return "incomplete"

    @property
    def counts(self) -> dict[str, int]:
        """Violations by kind."""
        return {str(kind): number for kind, number in self._checker.counts.items()}


def judge(span: Span, shape: str, threshold: float) -> Judged:
    """Replay the lifecycle events of a span; events that limits dropped make it ``truncated``, never illegal."""
    replay = Replay(shape)
    for event in span.events:
        if event.name in EVENTS:
            default = None if event.name == "output" else 1
            replay.apply(
                event.name, event.time_ns, event.attributes.get("count", default), event.attributes.get("choice", 0)
            )
    truncated = span.dropped_events > 0
    usage = span.attributes.get(GEN_AI_USAGE_OUTPUT_TOKENS)
    return conclude(
        replay,
        threshold,
        truncated=truncated,
        dropped=span.dropped_events,
        reason=_reason(span),
        usage=usage if isinstance(usage, int) else None,
    )


def conclude(
    replay: Replay,
    threshold: float,
    *,
    truncated: bool = False,
    dropped: int = 0,
    reason: str | None = None,
    usage: int | None = None,
) -> Judged:
    """Judge what was replayed."""
    status = replay.close()
    report = build_report(replay.timeline, status, usage=usage)
    gaps = report["itl"]
    finished = Finished(
        report=report,
        reason=reason,
        usage={} if usage is None else {"output_tokens": usage},
        violations={"truncated": 1} if truncated else replay.counts,
        preemptions=dict(replay.timeline.preemptions),
        truncated=truncated,
        longest_gap=max(gaps, default=None),
        events_dropped=dropped,
    )
    return Judged(
        attributes=end_attributes(finished, assess(finished, threshold=threshold)),
        breaches=(Breach(kind="truncated"),) if truncated else tuple(replay.breaches),
        gaps=tuple(gap * _NANO for gap in gaps),
        wasted=replay.wasted,
        report=report,
    )


def _reason(span: Span) -> str | None:
    """Return what an abnormal end is said to come from, on the event or else on the span."""
    ends: list[SpanEvent] = [event for event in span.events if event.name in {"cancel", "timeout", "fail"}]
    for attributes in (*(event.attributes for event in ends[-1:]), span.attributes):
        for key in _REASON:
            if attributes.get(key) is not None:
                return str(attributes[key])
    return None


def wire_stage(state: str | None) -> str | None:
    """Return what a state is called on the wire; itself where it is no stage."""
    return None if state is None else WIRE_STAGE.get(state, state)
