"""The two sides of a comparison: each one run or several of the same workload."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from otel_lifecycle._cli.evidence.rows import INDEX
from otel_lifecycle._cli.evidence.sketch import Floats
from otel_lifecycle._cli.evidence.workload import Workload

# Permutations and resamples of all requests of long runs would take minutes.
SAMPLE: Final = 20_000
"""Requests of a run that are compared one by one: all, or a uniform sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A side, its runs, and what they were read from."""

    name: str
    sources: tuple[str, ...]
    runs: Sequence[Workload]

    def column(self, name: str) -> Floats:
        """Return a column of the sampled requests of all runs."""
        return np.concatenate([run.main.sample.column(name) for run in self.runs])

    @property
    def total(self) -> int:
        """Requests of all runs."""
        return sum(run.main.total for run in self.runs)

    @property
    def spans(self) -> list[tuple[float, float]]:
        """Return from when to when each run went on, epoch seconds; NaN where unknown."""
        bounds = ((run.main.first_arrival, run.main.last_end) for run in self.runs)
        return [(math.nan if start is None else start, math.nan if end is None else end) for start, end in bounds]

    @property
    def complete(self) -> bool:
        """Whether every request is among those compared one by one."""
        return all(run.main.exact for run in self.runs)

    def rows(self, run: int) -> Floats:
        """Return the sampled requests of a run in the order they arrived."""
        rows = self.runs[run].main.sample.rows()
        # A sample has no order; blocks of time need one.
        return rows[np.argsort(rows[:, INDEX["start"]], kind="stable")]


def in_turns(baseline: Side, candidate: Side) -> tuple[Side, Side] | None:
    """Return the sides with their runs in order of time, if they alternated: the k-th of each are neighbours.

    Neighbours ran under about the same other load of the machine.
    """
    spans = sorted(
        (*span, number, run) for number, one in enumerate((baseline, candidate)) for run, span in enumerate(one.spans)
    )
    # Runs that overlap disturbed each other.  A run without times (NaN) fails this comparison as well.
    if not all(earlier[1] <= later[0] for earlier, later in pairwise(spans)):
        return None
    sides = [number for *_, number, _ in spans]
    if any({*pair} != {0, 1} for pair in zip(sides[::2], sides[1::2], strict=False)) or len(sides) % 2:
        return None
    first, second = (
        replace(side, runs=[side.runs[run] for *_, owner, run in spans if owner == number])
        for number, side in enumerate((baseline, candidate))
    )
    return first, second
