"""The requests an engine has open, under the engine's own keys.

Several requests of an engine can be one request of the client: the choices of n > 1, one that only fills a cache for
them, the prompts of one HTTP request.  They are members of a group with one driver; it ends with the last of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final

from opentelemetry.trace import TracerProvider

from otel_lifecycle import driver
from otel_lifecycle.semconv import CHOICE

_SEVERITY: Final = {"error": 2, "abort": 1}
"""What the end of one member means for the whole request: the worst one counts, any other is a normal end."""

CHOICE_PREEMPTED: Final = "choice_preempted"
"""Span event: one of several choices was evicted.  The request goes on, so it is not in the state preempted."""


class EngineGroup:
    """One request of the client.

    ``expected``: how many members it will have.  Members may be added one by one, and the first may end before the last
    is added.
    """

    __slots__ = ("driver", "error", "expected", "joined", "key", "open", "reasons")

    def __init__(self, drive: driver.Driver, expected: int = 1, key: Hashable = None) -> None:
        self.driver = drive
        self.expected = expected
        self.key = key
        self.joined = 0
        self.open = 0
        self.reasons: list[str] = []
        self.error: object = None

    def left(self, reason: str, error: object) -> bool:
        """One member has ended; return whether that ends the request.  After an abort no member is added any more."""
        self.open -= 1
        self.reasons.append(reason)
        self.error = self.error or error
        # A choice may end before the next one is added, so that "none is open" alone does not end the request.
        return self.open <= 0 and (self.joined >= self.expected or reason in _SEVERITY)

    def finish(self, at_monotonic_ns: int | None = None) -> None:
        """End the request by the worst word of its members, if nothing has ended it before."""
        if self.driver.ended:
            return
        # max() keeps the first of equals, so that the order of the choices decides between two normal ends.
        worst = max(self.reasons, key=lambda reason: _SEVERITY.get(reason, 0))
        self.driver.response(finish_reasons=self.reasons)
        self.driver.finish(worst, error=self.error, at_monotonic_ns=at_monotonic_ns)


class Member:
    """One request of the engine: a choice of its group.

    An eviction interrupts the request if it has no other choice.  Else the request goes on, and it is an event.

    ``counts``: False for one that only prepares the others; its end is not an end of the request.  ``started``: whether
    its first output was read.
    """

    __slots__ = ("admitted", "choice", "counts", "evicted", "evictions", "group", "started")

    def __init__(self, group: EngineGroup, choice: int, *, counts: bool = True) -> None:
        self.group = group
        self.choice = choice
        self.counts = counts
        self.admitted = False
        self.started = False
        self.evicted = False
        self.evictions = 0

    def scheduled(self, at_monotonic_ns: int) -> None:
        """The scheduler took it up: for the first time, or again after it was evicted."""
        drive = self.group.driver
        if not self.admitted:
            self.admitted = True
            drive.mark("admit", at_monotonic_ns=at_monotonic_ns)
            # Without effect where the input was ready before the queue; in the shapes that queue first it is ready now.
            drive.mark("input_ready", at_monotonic_ns=at_monotonic_ns)
        elif self.evicted and self.group.expected == 1:
            drive.mark("resume", at_monotonic_ns=at_monotonic_ns)
        self.evicted = False

    def preempted(self, at_monotonic_ns: int) -> None:
        """The scheduler evicted it."""
        self.evicted = True
        if self.group.expected == 1:
            self.group.driver.mark("preempt", at_monotonic_ns=at_monotonic_ns)
        else:
            self.group.driver.request.event(CHOICE_PREEMPTED, {CHOICE: self.choice})

    def preempted_so_often(self, evictions: int) -> None:
        """It was evicted so many times in all; the times are not known."""
        # The engine sends its total with every output; only what is new is marked.
        for _ in range(self.evictions, evictions):
            if self.group.expected == 1:
                self.group.driver.mark("preempt", at_ns=None)
                self.group.driver.mark("resume", at_ns=None)
            else:
                self.group.driver.request.event(CHOICE_PREEMPTED, {CHOICE: self.choice})
        self.evictions = max(evictions, self.evictions)


class EngineRequests:
    """All open requests of one engine object.  Its methods are called by one thread at a time, as the engine's are."""

    def __init__(self, tracer_provider: TracerProvider | None) -> None:
        self._tracer_provider = tracer_provider
        self._members: dict[Hashable, Member] = {}
        self._groups: dict[Hashable, EngineGroup] = {}

    def __len__(self) -> int:
        return len(self._members)

    def get(self, key: Hashable) -> Member | None:
        """Return the open request of that key."""
        return self._members.get(key)

    def begin(
        self,
        conditions: Mapping[str, object],
        *,
        shape: str = "default",
        arrived_at_ns: Any = None,
        expected: int = 1,
        key: Hashable = None,
    ) -> EngineGroup:
        """Open a request of a client, or join the one that is current.  ``arrived_at_ns``: None for now."""
        when = {} if arrived_at_ns is None else {"arrived_at_ns": arrived_at_ns}
        drive = driver.begin(conditions, shape=shape, tracer_provider=self._tracer_provider, marked=True, **when)
        if not drive.owned:
            drive.suggest(**conditions)
            drive.follow_shape(shape)
        return EngineGroup(drive, expected, key)

    def group(self, key: Hashable) -> EngineGroup | None:
        """Return the group that was kept under that key."""
        return self._groups.get(key)

    def keep(self, group: EngineGroup) -> None:
        """Keep a group under its key until it ends, for members that are added later."""
        self._groups[group.key] = group

    def join(self, key: Hashable, group: EngineGroup, choice: int = 0, *, counts: bool = True) -> Member:
        """Add a request of the engine to the group."""
        # A primer is not a choice: counted in, it would end the request before its first token.
        group.joined += counts
        group.open += counts
        member = self._members[key] = Member(group, choice, counts=counts)
        return member

    def move(self, old: Hashable, new: Hashable) -> None:
        """The engine goes on with a request under another key."""
        member = self._members.pop(old, None)
        if member is not None:
            self._members[new] = member

    def close(self, key: Hashable, reason: str, *, error: object = None, at_monotonic_ns: int | None = None) -> None:
        """End one request of the engine; the last one of a group ends the request of the client."""
        member = self._members.pop(key, None)
        if member is None or not member.counts:
            return
        group = member.group
        if group.left(reason, error):
            self._groups.pop(group.key, None)
            group.finish(at_monotonic_ns)
