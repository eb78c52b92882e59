"""The two sides of a comparison: each one run or several of the same workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from otel_lifecycle._cli.evidence.rows import INDEX
from otel_lifecycle._cli.evidence.sketch import Floats
from otel_lifecycle._cli.evidence.workload import Workload

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
    def complete(self) -> bool:
        """Whether every request is among those compared one by one."""
        return all(run.main.exact for run in self.runs)

    def rows(self, run: int) -> Floats:
        """Return the sampled requests of a run in the order they arrived."""
        rows = self.runs[run].main.sample.rows()
        return rows[np.argsort(rows[:, INDEX["start"]], kind="stable")]
