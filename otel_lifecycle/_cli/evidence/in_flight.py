"""How many requests were in flight at a time: exact, from the arrival and the end of each."""

from __future__ import annotations

from array import array

import numpy as np

from otel_lifecycle._cli.evidence.sketch import Floats


class InFlight:
    """The arrivals and ends of all requests, in epoch seconds: 16 bytes a request.

    A mean per interval of time, however short, hides the peak of requests that are shorter than it.
    """

    def __init__(self) -> None:
        # Not a list: a float object takes 24 bytes and its reference eight more.
        self._starts = array("d")
        self._ends = array("d")

    def add(self, starts: Floats, ends: Floats) -> None:
        """Add requests that were in flight from one time to another."""
        self._starts.frombytes(np.ascontiguousarray(starts).tobytes())
        self._ends.frombytes(np.ascontiguousarray(ends).tobytes())

    def _sorted(self) -> tuple[Floats, Floats]:
        starts, ends = (np.frombuffer(times, dtype=np.float64) for times in (self._starts, self._ends))
        # A request that ended as it arrived was in flight at that instant.
        return np.sort(starts), np.sort(np.maximum(ends, np.nextafter(starts, np.inf)))

    def within(self, start: float, end: float) -> tuple[float | None, int | None]:
        """Return the mean and the peak number between two times; None without requests, and for a window of no length.

        The peak counts what was in flight at ``start`` and whatever arrived from then on, up to ``end``.
        """
        if not self._starts:
            return None, None
        starts, ends = self._sorted()
        # The area under the level is the sum of all stays, so no grid is needed for the mean.
        spent = float(np.clip(ends, start, end).sum() - np.clip(starts, start, end).sum())
        arrived = np.arange(1, len(starts) + 1)
        # The level only rises at arrivals, so its peak lies at one of them, or at the window's start.
        level = arrived - np.searchsorted(ends, starts, side="right")
        inside = (starts >= start) & (starts <= end)
        at_start = int(np.searchsorted(starts, start, side="right") - np.searchsorted(ends, start, side="right"))
        peak = max(at_start, int(level[inside].max()) if inside.any() else 0)
        return (spent / (end - start) if end > start else None), peak
