"""The offset between the two clocks of the process, the same for all requests."""

from __future__ import annotations

from time import perf_counter_ns, time_ns
from typing import Final

OFFSET_TOLERANCE_NS: Final = 100_000
"""How far the wall clock may drift from the monotonic one before a new offset is used; spans are off by no more."""

READS: Final = 3
READ_NS: Final = 50_000
"""Two readings further apart than this had a thread switch between them; they are read again, a few times."""

SURE_NS: Final = 10_000_000
"""How long an offset is used without another look at the wall clock, which takes 0.3 µs.  A request that opens within
this time of a change of that clock has the times of one that opened before the change."""

_LONG_AGO: Final = -(2**63)


def _read_again() -> tuple[int, int, int]:
    for _ in range(READS - 1):
        before, wall, after = perf_counter_ns(), time_ns(), perf_counter_ns()
        if after - before < READ_NS:
            break
    return before, wall, after


class ClockOffset:
    """What turns a reading of the monotonic clock into epoch nanoseconds."""

    __slots__ = ("_known", "_sure_until")

    def __init__(self) -> None:
        self._known: int | None = None
        self._sure_until = _LONG_AGO

    def read(self) -> tuple[int, int]:
        """Read the monotonic clock; return the reading and the offset.

        Two measurements of the offset differ by the time between two reads of a clock.  Were each request to use its
        own, times that are given to two of them in epoch nanoseconds could not be compared to the nanosecond.  A wall
        clock that was set, or has drifted further, replaces it; requests that are open keep theirs.
        """
        reading, known = perf_counter_ns(), self._known
        if reading < self._sure_until and known is not None:
            return reading, known
        return self._measure(reading)

    def _measure(self, before: int) -> tuple[int, int]:
        wall, after = time_ns(), perf_counter_ns()
        known = self._known
        # The usual case: what is known places the reading of the wall clock between the two, give or take.
        if known is not None and before - OFFSET_TOLERANCE_NS <= wall - known <= after + OFFSET_TOLERANCE_NS:
            self._sure_until = after + SURE_NS
            return after, known
        if after - before >= READ_NS:
            before, wall, after = _read_again()
        # The wall clock was read between the two, so their middle is its best partner.
        # On a busy machine none of the reads may be a quick one: what it measures is unsure by half its length, which
        # is not a drift of the clock.
        unsure = (after - before) // 2
        measured = wall - before - unsure
        if known is None or abs(measured - known) > OFFSET_TOLERANCE_NS + unsure:
            self._known = known = measured
        self._sure_until = after + SURE_NS
        return after, known

    def forget(self) -> None:
        """Measure anew at the next reading."""
        self._known, self._sure_until = None, _LONG_AGO
