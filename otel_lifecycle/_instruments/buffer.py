"""What finished requests hand over, kept until metrics are collected.

At its end a request appends one immutable value to a deque; that is all the serving thread pays.  The values are folded
into the instruments together, when a reader collects or when the buffer is full.  Folding many at once is
cheaper than recording each sample, because attribute sets are looked up once and histograms are added to once.

Each value is taken off the deque once and under one lock, so it is counted once, and a collection that waits for the
lock sees everything that was handed over before it began.  A value is never dropped for lack of room:

* Where folding is cheap, the thread that fills the buffer folds it.
* Where it is not (the SDK's insides are unknown, or a view keeps samples in another way), the buffer is larger, and a
  helper thread that lives for the length of one fold empties it.  If that cannot keep up, each further request folds
  the oldest value itself, which bounds the memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import repeat, starmap
from typing import Any, Final, Generic, NamedTuple, TypeVar

_Value = TypeVar("_Value")

VALUES: Final = 128
"""Values that are folded on a serving thread at once.  Usual requests take 5 to 10 µs each on a busy machine, all
together 1 ms; what is paid once for all of them, some 300 µs, would be half of it for 32."""

GAPS: Final = 8192
"""Inter-token gaps held by these at most, some 40 bytes each.  One that is sorted already counts as a part of one."""

SORTED: Final = 16
"""Sorted gaps that count as one where folding is cheap: they are added by a few bisections.  So requests of 1000 tokens
are folded as many together as those of one token, 5 MB at most; a fold costs the same for 8 of them as for 128."""

AS_GAPS: Final = GAPS // 32
"""A request that is folded sample by sample takes as long as four usual ones, and counts as so many gaps."""

SLOW_FACTOR: Final = 16
"""How much more is kept where folding is slow.  A collection then records 131,072 gaps, in about a second; its default
timeout is ten."""

HARD_FACTOR: Final = 2
"""Beyond this many times the limit the helper thread is too slow, and the serving thread takes its share."""


class _Weighed(NamedTuple):
    """A value, and how many gaps it holds."""

    value: Any
    gaps: int


class FoldBuffer(Generic[_Value]):
    """Finished values on their way into the instruments.

    ``fold`` is given a list of values, and takes off it what it has begun; what an exception leaves there is folded the
    next time.  ``cheap`` tells whether a serving thread may do that.
    """

    __slots__ = ("_cheap", "_fold", "_gaps", "_helper", "_lock", "_values")

    def __init__(self, fold: Callable[[list[_Value]], None], cheap: Callable[[], bool]) -> None:
        self._fold = fold
        self._cheap = cheap
        # `append` and `popleft` are atomic, so that handing a value over takes no lock.
        self._values: deque[Any] = deque()
        # Threads that race can lose an addition.  The sum only decides when to fold, and an empty buffer puts it right.
        self._gaps = 0
        # Re-entrant, since a signal handler may collect while its thread folds.
        self._lock = threading.RLock()
        self._helper: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._values)

    def put(self, value: _Value, gaps: int = 0) -> None:
        """Keep a value that holds so many gaps; fold if that fills the buffer."""
        values = self._values
        if gaps:
            values.append(_Weighed(value, gaps))
            self._gaps += gaps
        else:
            values.append(value)
        if len(values) > VALUES or self._gaps > GAPS:
            self._make_room()

    def fold(self) -> None:
        """Fold everything that was handed over before this call, also what another thread is folding now."""
        with self._lock:
            # Only those that are there now: values that keep coming must not hold a collection for ever.
            self._take(len(self._values))

    def forget(self) -> None:
        """Drop what a forked child inherited, its parent's values and a lock that a thread there may hold."""
        self._lock = threading.RLock()
        # Another one: a fold that was forked in its middle puts back into the old one what it leaves.
        self._values = deque()
        self._gaps = 0
        self._helper = None

    def _take(self, most: int) -> None:
        values: deque[Any] = self._values
        taken: list[Any] = []
        try:
            # A signal handler that interrupted this thread may have taken some.
            with suppress(IndexError):
                # At C speed.  The list keeps what was taken before an exception.
                taken.extend(starmap(values.popleft, repeat((), most)))
            if _Weighed in map(type, taken):
                self._unweigh(taken)
            self._fold(taken)
        finally:
            # An exception out of a signal handler costs what it broke off, and none of those that come after it.
            values.extendleft(reversed(taken))
        if not values:
            self._gaps = 0

    def _unweigh(self, taken: list[Any]) -> None:
        for number, value in enumerate(taken):
            if type(value) is _Weighed:
                taken[number] = value.value
                self._gaps -= value.gaps

    def _make_room(self) -> None:
        if self._cheap():
            # A thread that folds already takes this value too, or leaves it to the next.
            if self._lock.acquire(blocking=False):
                try:
                    self.fold()
                finally:
                    self._lock.release()
        elif self._over(SLOW_FACTOR):
            self._call_helper()
            if self._over(SLOW_FACTOR * HARD_FACTOR):
                self._fold_some(1)

    def _over(self, factor: int) -> bool:
        return self._gaps > factor * GAPS or len(self._values) > factor * VALUES

    def _call_helper(self) -> None:
        if self._helper is not None and self._helper.is_alive():
            return
        # A daemon: the next collection folds whatever it leaves, so the process need not wait for it.
        self._helper = threading.Thread(target=self._fold_some, name="otel-lifecycle-fold", daemon=True)
        try:
            self._helper.start()
        except RuntimeError:  # The interpreter shuts down, or the system has no thread left.
            self._fold_some(1)

    def _fold_some(self, most: int | None = None) -> None:
        """Fold values one by one, so that a collection never waits for more than one of them."""
        folded = 0
        while self._values and folded != most:
            with self._lock:
                self._take(1)
            folded += 1
