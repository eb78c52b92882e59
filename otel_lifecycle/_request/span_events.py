"""The events of a request's span, kept until the span is written: bounded, except for boundaries.

How it works.  Events wait here and go onto the span together at its end.  Added at once, they would be the oldest of a
span that keeps 128 events and drops the oldest first, so a talkative server would push the boundaries out.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from otel_lifecycle import semconv
from otel_lifecycle._core.checker import Violation
from otel_lifecycle._core.lifecycle import TERMINAL_EVENTS
from otel_lifecycle._core.text import clean

MAX_OTHER_EVENTS: Final = 64
"""Events kept, not counting boundaries: the SDK keeps 128 a span, and the server may add its own."""

BOUNDARY_EVENTS: Final = frozenset({"arrive", "admit", "input_ready", "first_token", "output", *TERMINAL_EVENTS})


class SpanEvent(NamedTuple):
    """One event: its time is a reading of the request's clock.  ``exact``: it happened then; else it was noted then."""

    name: str
    time: int
    attributes: dict[str, Any] | None
    exact: bool


class SpanEvents:
    """The events of one request.

    Every boundary is kept; of the other events a bounded number, and the rest are counted in ``dropped``.
    ``unseen``: the span is not recorded, so no event is kept.
    """

    __slots__ = ("dropped", "items", "others", "unseen")

    def __init__(self, *, unseen: bool = False) -> None:
        self.unseen = unseen
        self.items: list[SpanEvent] = []
        self.others = 0
        self.dropped = 0

    def show(self, name: str, time: int, attributes: dict[str, Any] | None = None, *, exact: bool = True) -> None:
        """Keep an event: every boundary, and a bounded number of all others; the rest is counted."""
        if self.unseen:
            return
        # Boundaries are few, at most one of each, and the breakdown by stage needs every one.
        if name not in BOUNDARY_EVENTS:
            if self.others >= MAX_OTHER_EVENTS:
                self.dropped += 1
                return
            self.others += 1
        self.items.append(SpanEvent(name, time, attributes, exact))

    def show_transition(self, name: str, time: int | None) -> None:
        """Keep a transition; one at an unknown time stands where it was noted, and says so."""
        if self.unseen:
            return
        if time is None:
            self.show(name, perf_counter_ns(), {semconv.TIME_KNOWN: False}, exact=False)
        elif name in BOUNDARY_EVENTS:
            self.items.append(SpanEvent(name, time, None, True))
        else:
            # An engine may interrupt and resume a request without end.
            self.show(name, time)

    def show_violation(self, violation: Violation) -> None:
        """Keep what was wrong, at the time of the call."""
        if self.unseen:
            return
        attributes: dict[str, Any] = {semconv.VIOLATION_KIND: violation.kind}
        if violation.state is not None:
            attributes[semconv.VIOLATION_STATE] = violation.state
        if violation.event is not None:
            attributes[semconv.VIOLATION_EVENT] = clean(violation.event)
        self.show(semconv.VIOLATION_SPAN_EVENT, perf_counter_ns(), attributes, exact=False)


UNSEEN: Final = SpanEvents(unseen=True)
"""Those of every request whose span is not recorded: it keeps nothing, so one serves all of them."""
