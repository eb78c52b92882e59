"""Counts and sums over time, on a grid of fixed size whose bins widen as the covered time grows."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_lifecycle._cli.evidence.rows import INDEX
from otel_lifecycle._cli.evidence.sketch import Floats
from otel_lifecycle._cli.requests.model import STAGE_METRIC, STAGES

# 2048 columns are finer than any chart; the grid of 13 fields stays at about 200 KB, however long the run is.
BINS: Final = 2048
FINEST: Final = 1 / 64
"""Seconds of a bin before the first widening; every width is a power of two times it."""

FIELDS: Final = (
    "arrivals",
    "arrival_offset",
    "ends",
    "end_offset",
    "completed",
    "tokens",
    "broken_down",
    *STAGES,
    "ttft_count",
    "ttft",
)
"""Per bin: what arrived and ended in it; the stage times and TTFT are of the requests that arrived in it."""
_AT: Final = {name: number for number, name in enumerate(FIELDS)}
EARLIEST: Final = 946_684_800.0
"""The year 2000: an earlier time is a clock that was never set, and would stretch the grid over decades."""


class WorkloadTimeline:
    """Sums per bin; ``width`` seconds each, the first one beginning at ``start`` (epoch seconds)."""

    def __init__(self) -> None:
        self.width = FINEST
        self._first = 0
        self._grid: Floats = np.zeros((0, len(FIELDS)))

    @property
    def start(self) -> float:
        """Epoch seconds at which the first bin begins."""
        return self._first * self.width

    def field(self, name: str) -> Floats:
        """Return one of :data:`FIELDS`, bin by bin."""
        return self._grid[:, _AT[name]]

    def add(self, rows: Floats) -> None:
        """Add requests, in any order; those without a plausible time are left out."""
        rows = rows[rows[:, INDEX["start"]] > EARLIEST]
        if not len(rows):
            return
        starts, ends = rows[:, INDEX["start"]], rows[:, INDEX["end"]]
        self._cover(float(starts.min()), float(ends.max()))
        self._count(starts, ("arrivals", "arrival_offset"))
        self._count(ends, ("ends", "end_offset"))
        at_end = self._bins(ends)
        self._sum(at_end, "completed", rows[:, INDEX["completed"]])
        self._sum(at_end, "tokens", np.nan_to_num(rows[:, INDEX["output_tokens"]]))
        self._stages(rows, self._bins(starts))

    def add_passing(self, starts: Floats, ends: Floats) -> None:
        """Add what is in flight between these times, of requests that are counted in nothing else."""
        # As in ``add``: one clock that was never set would widen every bin.
        believed = starts > EARLIEST
        starts, ends = starts[believed], ends[believed]
        if len(starts):
            self._cover(float(starts.min()), float(ends.max()))
            self._count(starts, ("arrivals", "arrival_offset"))
            self._count(ends, ("ends", "end_offset"))

    def _stages(self, rows: Floats, bins: NDArray[np.int64]) -> None:
        whole = rows[:, INDEX["whole_breakdown"]]
        self._sum(bins, "broken_down", whole)
        for stage in STAGES:
            self._sum(bins, stage, np.nan_to_num(rows[:, INDEX[STAGE_METRIC[stage]]]) * whole)
        ttft = rows[:, INDEX["ttft"]]
        self._sum(bins, "ttft_count", (~np.isnan(ttft)).astype(float))
        self._sum(bins, "ttft", np.nan_to_num(ttft))

    def _bins(self, times: Floats) -> NDArray[np.int64]:
        return np.floor(times / self.width).astype(np.int64) - self._first

    def _count(self, times: Floats, fields: tuple[str, str]) -> None:
        bins = self._bins(times)
        self._sum(bins, fields[0], np.ones(len(times)))
        self._sum(bins, fields[1], times - (bins + self._first) * self.width)

    def _sum(self, bins: NDArray[np.int64], field: str, weights: Floats) -> None:
        self._grid[:, _AT[field]] += np.bincount(bins, weights, minlength=len(self._grid))

    def _cover(self, earliest: float, latest: float) -> None:
        """Make the grid reach from one time to the other, widening the bins until it fits."""
        if not len(self._grid):
            self._first = math.floor(earliest / self.width)
        while True:
            first = min(self._first, math.floor(earliest / self.width))
            last = max(self._first + len(self._grid) - 1, math.floor(latest / self.width))
            # Widths are powers of two, so the bins of two batches always line up after widening.
            if last - first < BINS:
                break
            self._widen()
        before, after = self._first - first, last - (self._first + len(self._grid) - 1)
        self._grid = np.pad(self._grid, ((before, after), (0, 0)))
        self._first = first

    def _widen(self) -> None:
        """Join the bins in pairs."""
        # Pairs begin at even bins, or a second widening would join other neighbours.
        grid = np.pad(self._grid, ((self._first % 2, 0), (0, 0)))
        grid = np.pad(grid, ((0, len(grid) % 2), (0, 0)))
        # Offsets of the right half now count from the start of the pair.
        for count, offset in (("arrivals", "arrival_offset"), ("ends", "end_offset")):
            grid[1::2, _AT[offset]] += grid[1::2, _AT[count]] * self.width
        self._grid = grid[0::2] + grid[1::2]
        self._first //= 2
        self.width *= 2

    def in_flight(self) -> Floats:
        """Return the mean number of requests in flight, bin by bin."""
        arrivals, ends = self.field("arrivals"), self.field("ends")
        # Offsets within the bin make the level exact on average: a request counts for the part of the bin it was there.
        before = np.concatenate([[0.0], np.cumsum(arrivals - ends)[:-1]])
        arrived = arrivals * self.width - self.field("arrival_offset")
        left = ends * self.width - self.field("end_offset")
        return np.maximum(before + (arrived - left) / self.width, 0.0)

    def in_flight_at(self, times: Floats) -> Floats:
        """Return the mean number in flight in the bins of some times; NaN outside the grid."""
        bins = self._bins(times)
        inside = (bins >= 0) & (bins < len(self._grid))
        level = self.in_flight()
        return (
            np.where(inside, level[np.clip(bins, 0, max(len(level) - 1, 0))], np.nan) if len(level) else times * np.nan
        )

    def dispersion(self, mean: float = 4.0) -> tuple[float, int] | None:
        """Return variance over mean of the arrivals per interval, and the number of intervals.

        1 is what independent arrivals give, 0 a metronome; intervals are as long as ``mean`` arrivals take.  None where
        there are fewer than ten intervals.
        """
        counts = self.field("arrivals")
        occupied = np.flatnonzero(counts)
        if not len(occupied):
            return None
        # From the first to the last arrival: empty bins beyond them are not pauses.
        counts = counts[occupied[0] : occupied[-1] + 1]
        stride = max(1, math.ceil(mean * len(counts) / counts.sum()))
        usable = len(counts) // stride * stride
        per = counts[:usable].reshape(-1, stride).sum(axis=1)
        return (float(per.var() / per.mean()), len(per)) if len(per) >= 10 and per.mean() else None
