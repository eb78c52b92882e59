"""The state of one request as it is now: what there is of it, and what can be read without a change.

:class:`~otel_lifecycle._request.state.RequestState` moves it.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any, Protocol

from otel_lifecycle import semconv
from otel_lifecycle._core.checker import Checker
from otel_lifecycle._core.endings import Terminal
from otel_lifecycle._core.lifecycle import PREEMPTED
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.tokens import Log
from otel_lifecycle._request.clock import NOW
from otel_lifecycle._request.event_kinds import EngineFeed
from otel_lifecycle._request.span_events import SpanEvents
from otel_lifecycle._request.token_path import PathReference


class OpenPart(Protocol):
    """A part of a request, as the request sees it."""

    def end(self, terminal: Terminal, at_ns: Any = NOW, *, remote: bool = False, if_open: bool = False) -> bool:
        """End it."""


class StateAsItIs:
    """One open request.  ``opened``: when, a reading of its clock; ``offset`` turns one into epoch nanoseconds.

    ``status`` is None until it has ended; from then on nothing here changes.

    ``unmarked``: nobody is known to mark its boundaries, so its stage is unknown.  ``exhausted``: a stream of it has
    run to its end.  ``passed``: how the first exception that came out of the engine would end it.  ``parts``: those
    that are open.
    """

    __slots__ = (
        "_explicit_latest",
        "_led_to",
        "_marks_boundaries",
        "arrived",
        "checker",
        "delivered",
        "disconnected",
        "events",
        "exhausted",
        "feed",
        "offset",
        "opened",
        "parts",
        "parts_opened",
        "passed",
        "path",
        "status",
        "timeline",
        "unmarked",
    )

    opened: int
    offset: int
    timeline: Timeline
    events: SpanEvents
    checker: Checker
    path: PathReference
    arrived: int | None
    feed: EngineFeed | None
    status: str | None
    unmarked: bool
    disconnected: bool
    delivered: int | None
    exhausted: bool
    passed: Terminal | None
    parts: list[OpenPart]
    parts_opened: int
    _led_to: Log | None
    _marks_boundaries: bool
    _explicit_latest: int | None

    @property
    def name(self) -> str:
        """The state of the table the request is in, or what it ended as."""
        return self.status or self.timeline.state

    @property
    def in_stage(self) -> str:
        """The state whose stage the request is in: while it is preempted, the one that was interrupted."""
        state = self.timeline.state
        return self.timeline.interrupted or state if state == PREEMPTED else state

    @property
    def awaits_output(self) -> bool:
        """Whether it is open and nothing has come out of it yet."""
        state = self.timeline.state
        return self.status is None and any(stage.state == state for stage in self.timeline.shape.stages[:3])

    def is_legal(self, event: str) -> bool:
        """Return whether the state allows the event."""
        return event in self.timeline.shape.table[self.timeline.state]

    def elapsed(self) -> int:
        """Return nanoseconds since arrival, or since the handle was made where arrival is unknown."""
        return perf_counter_ns() - (self.opened if self.arrived is None else self.arrived)

    def active_stage(self) -> tuple[str, int | None]:
        """Return the stage it is in, on the wire, and its age in nanoseconds; None where arrival is unknown."""
        known = semconv.WIRE_STAGE.get(self.timeline.state, semconv.UNKNOWN_STAGE)
        age = None if self.arrived is None else perf_counter_ns() - self.arrived
        return semconv.UNKNOWN_STAGE if self.unmarked else known, age
