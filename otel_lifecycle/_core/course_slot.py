"""The slot of a request that goes its course: it is read from the times that the request keeps for itself.

How it works.  The request appends its times to a list, which the slot shares, and tells the slot nothing else.  The
log reads the list when another request looks; a slot that nobody looks at has no stays, and most of its fields are
never set.
"""

from __future__ import annotations

from typing import Any, Final, cast

from otel_lifecycle._core.engine_slot import NEVER, EngineSlot
from otel_lifecycle._core.lifecycle import Shape

_NO_MOVES: Final[list[Any]] = cast("list[Any]", ())
_NO_TIMES: Final[list[int]] = cast("list[int]", ())


class CourseSlot(EngineSlot):
    """The stays of one request.  ``times``: of the events of its shape's course, as far as it has come."""

    __slots__ = ("_passed", "_shape", "times")

    def __init__(self, who: object, shape: Shape, times: list[int]) -> None:
        # Not by `super().__init__()`: what is missing here is set at the first look.
        self.who = who
        self.arrived = times[0]
        self.stopped = NEVER
        self.seated = self.queued = False
        self.moves = _NO_MOVES
        # Until somebody looks.
        self.unread = times
        self._shape = shape
        self.times = times
        # How many of the times are read.
        self._passed = 0

    @property
    def queues_first(self) -> bool:
        """Whether it queues as soon as it arrives."""
        return self._shape.queues_first

    def leave_course(self) -> None:
        """Take moves from now on: its owner appends no more times."""
        if self.moves is _NO_MOVES:
            self.moves = []

    def told(self) -> int:
        """Return how many stays it has told of at most."""
        return super().told() if self._passed else len(self.times) - 1 + len(self.moves)

    def settle(self) -> None:
        """Read the times that were appended, then what the owner has told since it left its course."""
        if not self._passed:
            self.begin(self._shape.name, self.arrived)
            # Last: a signal handler that raises in between leaves all of it to the next look.
            self._passed = 1
        times, course = self.times, self._shape.course
        while self._passed < len(times):
            number = self._passed
            # First: if a signal handler raises in between, it must not be applied twice.
            self._passed = number + 1
            self.enter(course[number].state, times[number])
        super().settle()
        self.unread = self.moves
        if self.moves is not _NO_MOVES:
            # There are no more to come, and a log keeps many slots.
            self.times = _NO_TIMES
