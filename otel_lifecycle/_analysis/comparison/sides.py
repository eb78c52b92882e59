"""The two sides of a comparison: each one run or several of the same workload."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_lifecycle._analysis.arrivals import NO_ARRIVALS, Arrivals, arrivals
from otel_lifecycle._analysis.stated import Stated
from otel_lifecycle._analysis.workload import Workload

Floats = NDArray[np.float64]

# Permutations and resamples of all requests of long runs would take minutes.
SAMPLE: Final = 20_000
"""Requests of a run that are compared one by one: all, or a uniform sample."""

FLAGS: Final = ("completed", "terminated", "timed_out", "failed", "rejected", "slo_met")
COLUMNS: Final = (
    "ttft",
    "tpot",
    "e2e",
    "itl_p99",
    "itl_max",
    "queue_wait",
    "preprocessing",
    "prefill",
    "decode_time",
    "stall_share",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "start",
    "level",
    *FLAGS,
)
"""Seconds, tokens and numbers; NaN is unknown.  The flags are 1 or 0."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One run, in numbers: ``columns`` of the requests that are compared one by one, in the order they arrived.

    ``counts``: rate -> how many requests of how many it is of.  ``start`` and ``end``: epoch seconds, NaN if unknown.
    """

    columns: Mapping[str, Floats] = field(default_factory=lambda: {name: np.empty(0) for name in COLUMNS})
    total: int = 0
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    completed: int = 0
    output_tokens: int | None = None
    start: float = math.nan
    end: float = math.nan
    stated: Stated = field(default_factory=dict)
    classes: Counter[str] = field(default_factory=Counter)
    arrivals: Arrivals = NO_ARRIVALS
    seconds_of_arrivals: float = 0.0
    trouble: Mapping[str, int] = field(default_factory=dict)

    @property
    def length(self) -> float | None:
        """Seconds from the first arrival to the last end; None where that is not known, or nothing."""
        return self.end - self.start if self.end > self.start else None


def run_of(workload: Workload, sample: int = SAMPLE) -> Run:
    """Return the numbers of a workload; at most ``sample`` of its requests are compared one by one."""
    table, terminated, outcomes = workload.table, workload.terminated, workload.outcomes
    tokens, length = table.one("SELECT sum(output_tokens)::BIGINT, max(start) - min(start) FROM live")
    return Run(
        columns=_columns(workload, sample),
        total=workload.total,
        counts={
            "success_rate": (outcomes["completed"], terminated),
            "rejection_rate": (workload.counts["rejected"], terminated),
            "timeout_rate": (outcomes["timed_out"], terminated),
            "failure_rate": (outcomes["failed"], terminated),
            "goodput": (workload.counts["slo_met"], workload.counts["slo_judged"]),
        },
        completed=outcomes["completed"],
        output_tokens=tokens,
        start=math.nan if workload.first_ns is None else workload.first_ns * 1e-9,
        end=math.nan if workload.last_ns is None else workload.last_ns * 1e-9,
        stated=workload.stated,
        classes=Counter(dict(table.connection.execute("SELECT class, count(*) FROM live GROUP BY class").fetchall())),
        arrivals=arrivals(table),
        seconds_of_arrivals=length or 0.0,
        trouble=dict(workload.tally.counts),
    )


def _columns(workload: Workload, sample: int) -> dict[str, Floats]:
    told = {"timed_out": "outcome = 'timed_out'", "failed": "outcome = 'failed'"}
    chosen = ", ".join(f"({told.get(name, name)})::DOUBLE AS {name}" for name in COLUMNS)
    # By a hash, which is uniform and gives the same sample of the same file.
    some = f"SELECT * FROM live_crowd ORDER BY hash(trace_id, span_id), id LIMIT {sample}"
    found = workload.table.connection.execute(f"SELECT {chosen} FROM ({some}) ORDER BY start_ns, id").fetchnumpy()
    return {name: np.ma.filled(found[name].astype(np.float64), np.nan) for name in COLUMNS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A side, its runs, and what they were read from."""

    name: str
    sources: tuple[str, ...]
    runs: Sequence[Run]

    def column(self, name: str) -> Floats:
        """Return a column of the sampled requests of all runs."""
        return np.concatenate([run.columns[name] for run in self.runs])

    @property
    def total(self) -> int:
        """Requests of all runs."""
        return sum(run.total for run in self.runs)

    @property
    def complete(self) -> bool:
        """Whether every request is among those compared one by one."""
        return all(len(run.columns["start"]) == run.total for run in self.runs)


def in_turns(baseline: Side, candidate: Side) -> tuple[Side, Side] | None:
    """Return the sides with their runs in order of time, if they alternated: the k-th of each are neighbours.

    Neighbours ran under about the same other load of the machine.
    """
    spans = sorted(
        (run.start, run.end, owner, number)
        for owner, side in enumerate((baseline, candidate))
        for number, run in enumerate(side.runs)
    )
    # Runs that overlap disturbed each other.  A run without times (NaN) fails this comparison as well.
    if not all(earlier[1] <= later[0] for earlier, later in pairwise(spans)):
        return None
    sides = [owner for *_, owner, _ in spans]
    if any({*pair} != {0, 1} for pair in zip(sides[::2], sides[1::2], strict=False)) or len(sides) % 2:
        return None
    first, second = (
        replace(side, runs=[side.runs[number] for *_, owner, number in spans if owner == place])
        for place, side in enumerate((baseline, candidate))
    )
    return first, second
