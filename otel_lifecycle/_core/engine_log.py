"""The interval log of one engine: which requests were in which state, and when.

How it works.  Each request has an :class:`~otel_lifecycle._core.engine_slot.EngineSlot`.  A transition is two list
operations there, and nothing is computed.  When a request ends, :meth:`EngineLog.interference` compares it with every
slot that overlaps it.  Slots may be fed in any order and at any times: a request that another process reports a minute
later has the same stays as one that was marked live.

Threads.  Requests of many threads share a log.  Its lists are changed under an RLock, for a few operations each.  A
signal handler may end a request inside such a change: its slot is then left to the call it interrupted.

Bounds.  A request that has ended is kept while the stays of all of them are below a maximum.  What is dropped may be
missed by a request that arrived before it ended; such a request gets no split.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from operator import attrgetter
from threading import RLock
from typing import Final

from otel_lifecycle._core.engine_slot import EngineSlot
from otel_lifecycle._core.interference import Interference
from otel_lifecycle._core.report import Report
from otel_lifecycle._core.stalls import Stalls
from otel_lifecycle._core.who_held import who_held, windows_of

MAX_PIECES: Final = 4096
"""Stays of ended requests that a log keeps, about half a megabyte."""

_stopped = attrgetter("stopped")


class EngineLog:
    """The slots of one engine, open and ended.

    ``shared``: other processes feed the same engine, so what this one sees of it is a part.  ``dropped``: stays of
    ended requests that are no longer kept.
    """

    __slots__ = ("_ended", "_inserting", "_kept", "_lock", "_open", "_waiting", "dropped", "dropped_to", "shared")

    def __init__(self, *, shared: bool = False) -> None:
        self.shared = shared
        self.dropped = 0
        self.dropped_to = -1
        self._open: dict[EngineSlot, None] = {}
        # In the order of their ends, so that one bisection finds all that overlap a request.
        self._ended: list[EngineSlot] = []
        self._kept = 0
        self._lock = RLock()
        self._waiting: deque[EngineSlot] = deque()
        self._inserting = False

    @property
    def idle(self) -> bool:
        """Whether no request is open in it."""
        return not self._open

    def open(self, who: object, shape: str, at: int | None) -> EngineSlot:
        """Add a request that arrived at a time, None for unknown; ``who`` names it where it turns out a culprit."""
        slot = EngineSlot(who, shape, at)
        self._open[slot] = None
        return slot

    def move(self, slot: EngineSlot, state: str, at: int | None) -> None:
        """Note that a request entered a state; at None it did so at an unknown time."""
        slot.move(state, at)

    def end(self, slot: EngineSlot, at: int | None, *, by: int, apart: bool = False) -> None:
        """Note the end of a request; ``by``: when it was known to have ended.

        ``apart``: its times are in part another clock's, proven to disagree with ours; none of them can be compared.
        """
        slot.end(at, by)
        if apart:
            slot.doubt(by if slot.arrived is None else slot.arrived, by)
        with self._lock:
            self._waiting.append(slot)
            self._open.pop(slot, None)
            if self._inserting:
                return
            self._inserting = True
            try:
                while self._waiting:
                    self._insert(self._waiting[0])
                    self._waiting.popleft()
            finally:
                self._inserting = False

    def forget(self, slot: EngineSlot) -> None:
        """Drop an open request that nobody ends: a forked child inherits requests of its parent."""
        self._open.pop(slot, None)

    def _insert(self, slot: EngineSlot) -> None:
        ended = self._ended
        if ended and ended[-1].stopped > slot.stopped:
            insort(ended, slot, key=_stopped)
        else:
            ended.append(slot)
        # One more each, or requests without a stay would be kept without end.
        self._kept += 1 + len(slot.pieces)
        while self._kept > MAX_PIECES and len(ended) > 1:
            gone = ended.pop(0)
            self._kept -= 1 + len(gone.pieces)
            self.dropped += len(gone.pieces)
            self.dropped_to = max(self.dropped_to, gone.stopped)

    def _others(self, own: EngineSlot, since: int) -> list[EngineSlot]:
        """Return every other slot that may overlap what happened after ``since``."""
        with self._lock:
            ended = self._ended
            found = [*self._open, *ended[bisect_right(ended, since, key=_stopped) :]]
            if self._waiting:
                # Inside an insertion that a signal handler interrupted: the slot may be in two places.
                found = list(dict.fromkeys([*found, *self._waiting]))
        if found and found[-1] is own:
            # It ended just now, as the last one: nearly always.
            found.pop()
        elif own in found:
            found.remove(own)
        return found

    def interference(self, slot: EngineSlot, report: Report, stalls: Stalls | None) -> Interference:
        """Return what the other requests did to one that has ended.

        ``report`` has its times on the log's axis, ``stalls`` what it claims of itself (None: too few gaps).
        """
        windows = windows_of(report)
        if windows is None or windows.first < self.dropped_to:
            # Nothing to compare, or what it would be compared with is gone.
            return Interference(stalls=stalls)
        return who_held(slot, self._others(slot, windows.first), windows, stalls, shared=self.shared)
