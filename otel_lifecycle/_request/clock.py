"""The clock of one request: wall and monotonic time read together once, live marks as monotonic readings.

Inside a request every local time is a reading of the monotonic clock in nanoseconds; ``epoch = reading + offset``.  A
wall clock that is set during a request therefore moves nothing.  ``perf_counter_ns`` is that clock: on Linux and macOS
it is the one behind ``time.monotonic()``, and it is the finest there is on Windows.
"""

from __future__ import annotations

import math
import time
from enum import Enum
from time import perf_counter_ns, time_ns
from typing import Any, Final, NamedTuple, TypeAlias

from otel_lifecycle._core.lifecycle import NOT_ARRIVED
from otel_lifecycle._core.text import shown
from otel_lifecycle._core.values import check_timestamp
from otel_lifecycle._runtime import runtime
from otel_lifecycle.errors import ForeignClock, InvalidTimestamp, LifecycleError


class Now(Enum):
    """The default of every ``at_ns``: the moment of the call."""

    NOW = "now"


class MonotonicTime:
    """A reading of the process's monotonic clock, as an engine gives it; made by :func:`monotonic`."""

    __slots__ = ("_given", "_per_unit")

    def __init__(self, given: object, per_unit: int) -> None:
        self._given = given
        self._per_unit = per_unit

    @classmethod
    def now(cls) -> MonotonicTime:
        """Read the clock."""
        return cls(perf_counter_ns() - _BETWEEN_CLOCKS, 1)

    def reading(self, event: str, state: str) -> int:
        """Return it in nanoseconds of the request's clock; InvalidTimestamp for what is not a finite number."""
        given = check_timestamp(self._given, event, state)
        if given is None:
            raise InvalidTimestamp(f"{event!r} has no monotonic time", state=state, event=event)
        try:
            reading: int = round(given * self._per_unit)
            return reading + _BETWEEN_CLOCKS
        except Exception as error:  # a float near the largest one, or a number whose own methods raise
            raise InvalidTimestamp(f"the time of {event!r} is {self!r}", state=state, event=event) from error

    def plain_reading(self) -> int | None:
        """Return the same for a plain number; None for what :meth:`reading` has to look at."""
        given = self._given
        if type(given) is int or (type(given) is float and math.isfinite(given)):
            return round(given * self._per_unit) + _BETWEEN_CLOCKS
        return None

    def __repr__(self) -> str:
        return f"<MonotonicTime {shown(self._given)}>"


_new: Final = object.__new__

NOW: Final = Now.NOW
AtNs: TypeAlias = "int | Now | MonotonicTime | None"
"""When something happened: epoch nanoseconds, None for unknown, a monotonic reading, or the moment of the call."""

# Seconds, milliseconds and microseconds since 1970, and monotonic readings, all lie before 2000 when read as
# nanoseconds. No clock that is kept at all runs a day ahead.
YEAR_2000_NS: Final = 946_684_800 * 10**9
DAY_NS: Final = 86_400 * 10**9


def _between_clocks() -> int:
    """Return what turns a reading of time.monotonic() into one of perf_counter: 0 where both are one clock."""
    clocks = time.get_clock_info("monotonic"), time.get_clock_info("perf_counter")
    if clocks[0].implementation == clocks[1].implementation:
        return 0
    return perf_counter_ns() - time.monotonic_ns()


# Measured once, so that all readings of an engine are moved by the same amount and their differences stay exact.
_BETWEEN_CLOCKS: Final = _between_clocks()


def monotonic(seconds: float | None = None, *, ns: int | None = None) -> MonotonicTime:
    """Return a reading of ``time.monotonic()`` (or, ``ns``, of ``time.monotonic_ns()``) for any ``at_ns=``.

    Engines stamp with the monotonic clock.  The reading is placed on the anchor of the request it is given to, so a
    wall clock that is set meanwhile moves nothing.  A value that is not a finite number is an
    ``invalid_timestamp`` violation of that request.
    """
    # Not by its `__init__`, whose call is a third of what this costs.
    made = _new(MonotonicTime)
    if ns is None:
        made._given, made._per_unit = seconds, 10**9
    else:
        made._given, made._per_unit = ns, 1
    return made


class Anchor(NamedTuple):
    """One moment on both clocks, nanoseconds."""

    monotonic: int
    offset: int
    """What turns a monotonic reading into epoch nanoseconds."""

    @property
    def wall(self) -> int:
        """The moment in epoch nanoseconds."""
        return self.monotonic + self.offset


def anchor() -> Anchor:
    """Read both clocks."""
    return Anchor(*runtime().clock_offset.read())


def past_reading(at_ns: object, offset: int) -> int | None:
    """Return a plain time that is not in the future as a reading of the request's clock; None for any other.

    What it returns needs no further check against the clock: a live mark that follows has a later reading.
    """
    if type(at_ns) is int:
        reading = at_ns - offset
    elif type(at_ns) is MonotonicTime:
        given = at_ns._given
        # A whole number of nanoseconds, as engines give it, needs no call, and nothing of the arithmetic of large ones.
        if type(given) is int and at_ns._per_unit == 1:
            reading = given + _BETWEEN_CLOCKS if _BETWEEN_CLOCKS else given
        elif (known := at_ns.plain_reading()) is not None:
            reading = known
        else:
            return None
    else:
        return None
    return reading if reading <= perf_counter_ns() else None


def _whole(given: Any, event: str, state: str) -> int:
    try:
        return int(given)
    except Exception as error:
        what = f"the time of {event!r} is a {type(given).__name__} that is not an integer"
        raise InvalidTimestamp(what, state=state, event=event) from error


def on_axis(at_ns: object, offset: int, event: str, state: str) -> int | None:
    """Return a time as a reading of the request's clock; None stays None.

    Raises InvalidTimestamp for what is not a finite number, ForeignClock for a time before the year 2000 or more than a
    day ahead, which this machine's clock cannot have given.
    """
    if type(at_ns) is MonotonicTime:
        epoch = at_ns.reading(event, state) + offset
    else:
        given = check_timestamp(at_ns, event, state)
        if given is None:
            return None
        epoch = given if type(given) is int else _whole(given, event, state)
    if not YEAR_2000_NS <= epoch <= time_ns() + DAY_NS:
        raise ForeignClock(
            f"{event!r} at {shown(epoch)} ns is before the year 2000 or more than a day ahead; it is of another clock",
            state=state,
            event=event,
            timestamp=at_ns,
        )
    return epoch - offset


def arrival_of(at_ns: object, opened: int, offset: int) -> int:
    """Return an arrival as a reading of the request's clock; where it is unknown or impossible, when it was opened."""
    try:
        arrival = opened if at_ns is NOW else on_axis(at_ns, offset, "arrive", NOT_ARRIVED)
    except LifecycleError:
        return opened
    return opened if arrival is None else arrival


def moment(at_ns: AtNs, at_monotonic_ns: int | None) -> AtNs:
    """Return the one time of two that is given; ``at_monotonic_ns`` wins."""
    return at_ns if at_monotonic_ns is None else monotonic(ns=at_monotonic_ns)
