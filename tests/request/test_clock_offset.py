"""The offset between the wall clock and the monotonic one, as a busy machine measures it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat

import pytest

from otel_lifecycle import _clock_offset
from otel_lifecycle._clock_offset import ClockOffset

EPOCH = 1_700_000_000_000_000_000
MS = 1_000_000


class SlowClocks:
    """Two clocks; the pauses pass before each reading in turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self.set_by = 0
        self.pauses: Iterator[int] = repeat(0)
        monkeypatch.setattr(_clock_offset, "perf_counter_ns", self.monotonic)
        monkeypatch.setattr(_clock_offset, "time_ns", lambda: self.monotonic() + EPOCH + self.set_by)

    def monotonic(self) -> int:
        """Return the reading of the monotonic clock."""
        self.now += next(self.pauses)
        return self.now


def test_thread_switches_between_the_readings_move_no_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each measurement is interrupted before and after the wall clock is read: the offset known before stays."""
    clocks, offset = SlowClocks(monkeypatch), ClockOffset()
    assert offset.read() == (0, EPOCH)
    for pauses in ([0, 9 * MS, 0], [0, 0, 9 * MS]):
        clocks.now += _clock_offset.SURE_NS
        clocks.pauses = chain(pauses * _clock_offset.READS, repeat(0))
        assert offset.read()[1] == EPOCH


def test_wall_clock_that_was_set_gives_a_new_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drift of up to a tenth of a millisecond is none; more is measured anew, as it is after it was forgotten."""
    clocks, offset = SlowClocks(monkeypatch), ClockOffset()
    found = []
    for clocks.set_by in (0, 100_000, 100_001, 100_000):
        found.append(offset.read()[1] - EPOCH)
        clocks.now += _clock_offset.SURE_NS
    offset.forget()
    found.append(offset.read()[1] - EPOCH)
    assert found == [0, 0, 100_001, 100_001, 100_000]


def test_wall_clock_is_looked_at_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks the offset stays; the first request after the next one has the new offset."""
    clocks, offset = SlowClocks(monkeypatch), ClockOffset()
    assert offset.read() == (0, EPOCH)
    clocks.set_by, clocks.now = 5_000 * MS, _clock_offset.SURE_NS - 1
    assert offset.read() == (clocks.now, EPOCH)
    clocks.now += 1
    assert offset.read() == (clocks.now, EPOCH + clocks.set_by)
