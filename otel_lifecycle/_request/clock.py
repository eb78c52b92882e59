"""The clock of one request: wall and monotonic time read together once, live marks as monotonic readings.

Inside a request every local time is a reading of the monotonic clock in nanoseconds; ``epoch = reading + offset``.  A
wall clock that is set during a request therefore moves nothing.
"""

from __future__ import annotations

from enum import Enum
from time import perf_counter_ns, time_ns
from typing import Final, NamedTuple, TypeAlias

from otel_lifecycle._core.values import check_timestamp
from otel_lifecycle.errors import ForeignClock


class Now(Enum):
    """The default of every ``at_ns``: the moment of the call."""

    NOW = "now"


NOW: Final = Now.NOW
AtNs: TypeAlias = "int | Now | None"
"""When something happened: epoch nanoseconds, None for unknown, or the moment of the call."""

YEAR_2000_NS: Final = 946_684_800 * 10**9
DAY_NS: Final = 86_400 * 10**9


class Anchor(NamedTuple):
    """One moment on both clocks, nanoseconds."""

    wall: int
    monotonic: int

    @property
    def offset(self) -> int:
        """What turns a monotonic reading into epoch nanoseconds."""
        return self.wall - self.monotonic


def anchor() -> Anchor:
    """Read both clocks."""
    return Anchor(time_ns(), perf_counter_ns())


def on_axis(at_ns: object, offset: int, event: str, state: str) -> int | None:
    """Return epoch nanoseconds as a reading of the request's clock; None stays None.

    Raises InvalidTimestamp for what is no finite number, ForeignClock for a time before the year 2000 or more than a
    day ahead, which this machine's clock cannot have given.
    """
    given = check_timestamp(at_ns, event, state)
    if given is None:
        return None
    epoch = int(given)
    if not YEAR_2000_NS <= epoch <= time_ns() + DAY_NS:
        raise ForeignClock(
            f"{event!r} at {epoch} ns is before the year 2000 or more than a day ahead; it is of another clock",
            state=state,
            event=event,
            timestamp=at_ns,
        )
    return epoch - offset
