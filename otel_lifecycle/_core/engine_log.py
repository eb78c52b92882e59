"""The interval log of one engine: which requests were in which state, and when.

How it works.  Each request has an :class:`~otel_lifecycle._core.engine_slot.EngineSlot`.  A transition is appended
there, or to the times that a request shares with its slot, and nothing is computed.  When a request ends,
:meth:`EngineLog.interference` enters what the others have appended since, and compares it with every slot that overlaps
it.  Of a request that was alone nothing is ever entered.  Slots may be fed in any order and at any times: a request
that another process reports a minute later has the same stays as one that was marked live.

Threads.  Requests of many threads share a log.  Its lists are changed under an RLock, for a few operations each.  A
signal handler may change them inside such a change: it leaves its own to the call that it interrupted
(:meth:`EngineLog._change`), and a split that it asks for is absent.  Owners append to their slots without a lock, and
slots are read without one while another thread enters what was appended.

Bounds.  A request that has ended is kept while the stays of all of them are below a maximum.  A request that arrived
before a dropped one ended would miss it; such a request gets no split.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import compress
from operator import attrgetter
from threading import RLock
from typing import Any, Final, TypeVar

from otel_lifecycle._core.course_slot import CourseSlot
from otel_lifecycle._core.engine_slot import ENDED, MAX_SLOT_PIECES, NEVER, EngineSlot
from otel_lifecycle._core.interference import Interference
from otel_lifecycle._core.lifecycle import Shape
from otel_lifecycle._core.report import Report
from otel_lifecycle._core.stalls import Stalls
from otel_lifecycle._core.who_held import undisturbed, who_held, windows_of

Slot = TypeVar("Slot", bound=EngineSlot)

MAX_PIECES: Final = 4096
"""Stays of ended requests that a log keeps, about half a megabyte; and as many requests that never ran."""

MAX_OTHERS: Final = 1024
"""Requests that one is compared with at its end.  Where more of them ran beside it, the split is absent: it would cost
the serving thread a millisecond, and no cause would stand out."""

RAN_MOVES: Final = 4
"""A request with at least this many transitions, the end included, has run, whatever its shape."""

_unread = attrgetter("unread")
_stopped = attrgetter("stopped")
_queued_from = attrgetter("queued_from")


def _nothing(slot: EngineSlot) -> None:
    """Change nothing, but let the changes that wait be made."""


class EngineLog:
    """The slots of one engine, open and ended.

    ``shared``: other processes feed the same engine, so this one sees a part only.  ``dropped``: stays of
    ended requests that are no longer kept.  ``moved``: open slots that have appended something since the last look; an
    owner that appends to its slot by itself puts it there afterwards.
    """

    __slots__ = (
        "_ended",
        "_changes",
        "_changing",
        "_kept",
        "_latest",
        "_left",
        "_lock",
        "_open",
        "_queued",
        "_ran",
        "dropped",
        "dropped_to",
        "moved",
        "shared",
    )

    def __init__(self, *, shared: bool = False) -> None:
        self.shared = shared
        self.dropped = 0
        self.dropped_to = -NEVER
        self._open: dict[EngineSlot, None] = {}
        self.moved: dict[EngineSlot, None] = {}
        # Open slots that ran or may have run; and those that wait, by the time they joined the queue.  A jammed queue
        # holds thousands, and the end of one request must not look at each of them.
        self._ran: dict[EngineSlot, None] = {}
        self._queued: list[EngineSlot] = []
        # Sorted by end, so that one bisection finds all that overlap a request.
        self._ended: list[EngineSlot] = []
        self._kept = 0
        # When the last of those that have ended did.
        self._latest = -NEVER
        # Times at which requests that never ran joined and left the queue, each list sorted: enough to count them.
        self._left: tuple[list[int], list[int]] = ([], [])
        # Re-entrant, because a signal handler may end a request while its thread is in the log.
        self._lock = RLock()
        self._changes: deque[tuple[Callable[[Any], None], EngineSlot]] = deque()
        self._changing = False

    @property
    def idle(self) -> bool:
        """Whether no request is open in it."""
        return not self._open

    def open(self, who: object, shape: str, at: int | None) -> EngineSlot:
        """Add a request that arrived at a time, None for unknown; ``who`` names it if it delays another one."""
        slot = EngineSlot(who, shape, at)
        self._open[slot] = self.moved[slot] = None
        return slot

    def open_in_course(self, who: object, shape: Shape, times: list[int]) -> CourseSlot:
        """Add a request that has arrived and goes its course; it appends the times of that to ``times``.

        With each time it puts its slot into ``moved``.
        """
        slot = CourseSlot(who, shape, times)
        self._open[slot] = self.moved[slot] = None
        return slot

    def adopt(self, slot: EngineSlot) -> None:
        """Add an open request; one that turned out to compete for this engine may have run already."""
        self._open[slot] = self.moved[slot] = None

    def _change(self, change: Callable[[Slot], None], slot: Slot) -> None:
        """Change the lists; a call that interrupted another one on the same thread leaves its change to that one."""
        with self._lock:
            if self._changing:
                self._changes.append((change, slot))
                return
            try:
                self._changing = True
                change(slot)
                while self._changes:
                    waiting, its_slot = self._changes.popleft()
                    waiting(its_slot)
            finally:
                self._changing = False

    def move(self, slot: EngineSlot, state: str, at: int | None) -> None:
        """Note that a request entered a state; at None it did so at an unknown time."""
        moves = slot.moves
        moves.append((state, at))
        # In this order: a thread that removes the slot between these two lines has already seen the move.
        self.moved[slot] = None
        if len(moves) > MAX_SLOT_PIECES:
            self._change(self._settle, slot)

    def _settle(self, slot: EngineSlot) -> None:
        slot.settle()
        self._seat(slot)

    def _settle_open(self) -> None:
        while self.moved:
            try:
                slot, _ = self.moved.popitem()
            except KeyError:  # A signal handler was first.
                return
            self._change(self._settle, slot)

    def _seat(self, slot: EngineSlot) -> None:
        """Put an open request into the list in which ending requests look for it."""
        if slot not in self._open:
            return
        slot.seated = True
        if slot.began != NEVER or not slot.steady:
            self._leave_queue(slot)
            self._ran[slot] = None
        elif slot.queued_from != NEVER and not slot.queued:
            slot.queued = True
            insort(self._queued, slot, key=_queued_from)

    def _leave_queue(self, slot: EngineSlot) -> None:
        if slot.queued:
            slot.queued = False
            place = bisect_left(self._queued, slot.queued_from, key=_queued_from)
            while self._queued[place] is not slot:
                place += 1
            del self._queued[place]

    def end(self, slot: EngineSlot, at: int | None, *, by: int, apart: bool = False) -> None:
        """Note the end of a request; ``by``: when it was known to have ended.

        ``apart``: its times are in part another clock's, proven to disagree with ours; none of them can be compared.
        """
        if at is None or apart:
            # One change: a slot that was never read, ended by a signal handler inside another change, is read first.
            self._change(partial(self._end_in_doubt, at, by, apart), slot)
        else:
            # First, so that a thread that applies the move below sees the last stay closed.
            slot.stopped = at
            slot.moves.append((ENDED, at))
        self.enter(slot)

    def _end_in_doubt(self, at: int | None, by: int, apart: bool, slot: EngineSlot) -> None:
        self._settle(slot)
        if apart:
            # First, so that no other request uses an end that comes from another clock.
            slot.doubt(by if slot.arrived is None else slot.arrived, by)
        slot.end(at, by)

    def enter(self, slot: EngineSlot) -> None:
        """Add a request that has ended: one that was open here, or one that was read from its events."""
        self._change(self._insert, slot)

    def forget(self, slot: EngineSlot) -> None:
        """Drop an open request without an end: it competes for another engine."""
        self._change(self._unseat, slot)

    def _unseat(self, slot: EngineSlot) -> None:
        self._open.pop(slot, None)
        self.moved.pop(slot, None)
        self._ran.pop(slot, None)
        self._leave_queue(slot)

    def _insert(self, slot: EngineSlot) -> None:
        if slot.seated or len(slot.moves) < RAN_MOVES:
            self._settle(slot)
            self._unseat(slot)
            if slot.steady and slot.began == NEVER:
                self._count_waiter(slot)
                return
        else:
            # No request has looked at it yet, and perhaps none will.
            self._open.pop(slot, None)
            self.moved.pop(slot, None)
        # Each request counts for one more; otherwise requests without a stay would never be dropped.
        self._keep(slot, 1 + slot.told())

    def _keep(self, slot: EngineSlot, weight: int) -> None:
        # First, as in `leave`.
        slot.weight = weight
        stopped = slot.stopped
        # Nearly every new end is the latest; only a request that is reported late needs sorting in.
        if stopped >= self._latest:
            self._ended.append(slot)
            self._latest = stopped
        else:
            insort(self._ended, slot, key=_stopped)
        self._kept += weight
        if self._kept > MAX_PIECES:
            self._drop()

    def _drop(self) -> None:
        """Drop the oldest, some at a time."""
        ended, most = self._ended, MAX_PIECES - MAX_PIECES // 64
        while self._kept > most and len(ended) > 1:
            gone = ended.pop(0)
            self._kept -= gone.weight
            self.dropped += gone.weight - 1
            self.dropped_to = max(self.dropped_to, gone.stopped)

    def _count_waiter(self, slot: EngineSlot) -> None:
        if slot.queued_from >= slot.stopped:
            # It did not wait, so it was not ahead of any other request.
            return
        joined, left = self._left
        self._latest = max(self._latest, slot.stopped)
        insort(joined, slot.queued_from)
        insort(left, slot.stopped)
        if len(joined) > MAX_PIECES:
            # The two removed times may belong to different requests; they still cancel out after both.
            del joined[0]
            self.dropped += 1
            self.dropped_to = max(self.dropped_to, left.pop(0))

    def _others(self, own: EngineSlot, since: int) -> list[EngineSlot]:
        """Return every other slot that may have run after ``since``."""
        with self._lock:
            self._settle_open()
            ended = self._ended
            found = [*self._ran, *ended[bisect_right(ended, since, key=_stopped) :]]
            if found and found[-1] is own:
                # The usual case: it has just ended, so it is the last one.
                found.pop()
            elif own in found:
                found.remove(own)
            # In C, because nearly all of a busy engine's requests have entered everything before.
            for slot in list(compress(found, map(_unread, found))):
                self._change(self._settle, slot)
        return found

    def _still_ahead(self, arrival: int) -> int:
        """Return how many requests that have not run since waited when another one arrived."""
        with self._lock:
            joined, left = self._left
            waiting = bisect_left(self._queued, arrival, key=_queued_from)
            gave_up = bisect_left(joined, arrival) - bisect_right(left, arrival)
        return waiting + gave_up

    def interference(
        self, slot: EngineSlot, report: Report, stalls: Stalls | None, *, full: bool = True
    ) -> Interference:
        """Return what the other requests did to one that has ended.

        ``report`` has its times on the log's axis, ``stalls`` what it claims of itself (None: too few gaps).
        ``full``: culprits too, which only a recorded span shows.
        """
        windows = windows_of(report)
        if windows is None or windows.first < self.dropped_to:
            # There is nothing to compare with, or it has been dropped.
            return Interference(stalls=stalls)
        with self._lock:
            if self._changing:
                # A signal handler interrupted this thread in the middle of a change, so the lists are inconsistent.
                return Interference(stalls=stalls)
            if stalls is not None and stalls.intervals:
                self._change(self._settle, slot)
            elif self._alone(slot, windows.first):
                return undisturbed(windows, stalls)
            # Both under one lock: a request admitted in between would count as neither waiting nor running.
            others = self._others(slot, windows.first)
            waiting = 0 if windows.arrival is None else self._still_ahead(windows.arrival)
        if len(others) > MAX_OTHERS:
            return Interference(stalls=stalls)
        return who_held(slot, others, windows, stalls, waiting=waiting, shared=self.shared, full=full)

    def alone(self, slot: EngineSlot) -> bool:
        """Return whether a request that has ended was alone from its arrival on, as far as a short look can tell."""
        arrived = slot.arrived
        with self._lock:
            return arrived is not None and arrived >= self.dropped_to and self._alone(slot, arrived)

    def leave(self, slot: CourseSlot, at: int) -> bool:
        """End a request that has completed its course; return whether it was alone, as :meth:`alone` does."""
        slot.stopped = at
        with self._lock:
            if self._changing:
                self._change(self._insert, slot)
                return False
            try:
                # First: a signal handler leaves its changes to this call from here on.
                self._changing = True
                latest = self._latest
                if slot.seated or at < latest:
                    self._insert(slot)
                    alone = False
                else:
                    # As `_insert` does it, of a request that nobody has looked at, without the calls in between.
                    self._open.pop(slot, None)
                    self.moved.pop(slot, None)
                    # Before it is kept: what a signal handler breaks off here must not fail where it is dropped.
                    slot.weight = weight = len(slot.times)
                    self._ended.append(slot)
                    self._latest = at
                    self._kept += weight
                    if self._kept > MAX_PIECES:
                        self._drop()
                    # Nobody is open now, and all that have ended had by its arrival.  Before the changes that wait:
                    # a request whose end interrupted this one was open beside it.
                    alone = not self._open and latest <= slot.times[0] and not self.shared
            finally:
                self._changing = False
            if self._changes:
                self._change(_nothing, slot)
            return alone

    def _alone(self, slot: EngineSlot, since: int) -> bool:
        """Return whether no other request has been there since; False where that takes a longer look."""
        ended, (_, left) = self._ended, self._left
        return (
            not self._open
            and not self.shared
            and bool(ended)
            and ended[-1] is slot
            and (len(ended) == 1 or ended[-2].stopped <= since)
            and (not left or left[-1] <= since)
        )
