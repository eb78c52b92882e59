"""Interleaved measuring: contenders take turns, and a figure is the median of ratios of neighbours.

Time is the CPU time of the process, so what other processes do to the machine shows as noise only.  Rounds go on until
the interval around the median lies on one side of the limit; where it does not within the allowance, the bench says
that the machine is too noisy, and that the clock is too coarse where one sample has too few ticks.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import median
from time import monotonic, process_time_ns
from types import FunctionType
from typing import Any, Final

Trial = Callable[[], int]
"""Does its work once and returns the nanoseconds of the part that is measured."""

Samples = dict[str, list[int]]
Say = Callable[[str], None]

FEWEST_ROUNDS: Final = 24
TICKS: Final = 100
"""Steps of the clock, or readings of it if those take longer, that one sample must have."""
CLOSE: Final = 0.02
"""An interval narrower than this part of the figure is as good as its middle, even across the limit."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and the bounds it lies in with 95 % confidence."""

    figure: float
    low: float
    high: float

    def settled(self, limit: float) -> bool:
        """Whether it says on which side of the limit the figure is."""
        return not self.low <= limit <= self.high or self.high - self.low <= CLOSE * self.figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """One row of the budget, measured.

    ``doubt``: why its figure, if there is one, tells nothing.  ``costs``: CPU microseconds of each contender.
    """

    name: str
    limit: float
    interval: Interval | None = None
    doubt: str | None = None
    costs: Mapping[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Return ``met``, ``MISSED`` or ``untold``."""
        if self.interval is None or self.doubt is not None:
            return "untold"
        return "met" if self.interval.figure <= self.limit else "MISSED"

    def __str__(self) -> str:
        """Return the line that is printed at the end."""
        if self.interval is None or self.doubt is not None:
            return f"BUDGET {self.name} ({self.doubt}) {self.limit:g} untold"
        return f"BUDGET {self.name} {self.interval.figure:.3g} {self.limit:g} {self.verdict}"


def say_costs(say: Say, row: Budget) -> None:
    """Print what the contenders of a row cost."""
    say(f"  {row.name}, CPU µs a request, OTLP (Prometheus: text) included:")
    for who, cost in row.costs.items():
        say(f"    {who:28} {cost:10.1f}")


_end: list[float] = []


def allow(seconds: float) -> None:
    """Let all that is measured from now on take so many seconds together."""
    _end[:] = [monotonic() + seconds]


def until(allowance: float) -> float:
    """Return when a measurement of so many seconds ends: earlier where all of them together have no more left."""
    return min([monotonic() + allowance, *_end])


@contextmanager
def stopwatch(spent: list[int]) -> Iterator[None]:
    """Add the CPU nanoseconds of the block to ``spent``."""
    began = process_time_ns()
    yield
    spent.append(process_time_ns() - began)


def interleave(
    trials: Mapping[str, Trial], enough: Callable[[Samples], bool], allowance: float, slices: int = 1
) -> Samples:
    """Run the trials in turns, every other turn backwards, until ``enough`` or ``allowance`` seconds are over.

    A sample is what a trial takes in ``slices`` turns.  A long trial is cut into slices, so that what is compared is
    not a second apart: a shared machine is not the same machine for as long as that.
    """
    for trial in trials.values():
        trial()
    # What there is by now is looked at by no later collection: a full one takes as long as fifty requests, and hits
    # either contender by chance.
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    samples: Samples = {name: [] for name in trials}
    order, end = list(trials), until(allowance)
    # Once at least: a row that was measured at all has samples.
    while monotonic() < end or not samples[order[0]]:
        spent = dict.fromkeys(trials, 0)
        for _ in range(slices):
            for name in order:
                spent[name] += trials[name]()
            order.reverse()
        for name, time in spent.items():
            samples[name].append(time)
        if len(samples[order[0]]) >= FEWEST_ROUNDS and enough(samples):
            break
    return samples


def compare(samples: Samples, ours: str, theirs: str) -> Interval:
    """Return how many times ``theirs`` ``ours`` takes."""
    return middle([a / b for a, b in zip(samples[ours], samples[theirs], strict=True)])


def middle(values: Sequence[float]) -> Interval:
    """Return the median and its confidence interval, which supposes no shape of the noise."""
    ranked, size = sorted(values), len(values)
    reach = 0.98 * math.sqrt(size)
    low, high = math.floor(size / 2 - reach), math.ceil(size / 2 + reach) - 1
    return Interval(median(ranked), ranked[max(low, 0)], ranked[min(high, size - 1)])


def judge(name: str, limit: float, samples: Samples, ours: str, theirs: str) -> Budget:
    """Make a budget of two contenders' samples, or say why they tell nothing."""
    shortest = min(median(samples[ours]), median(samples[theirs]))
    if shortest < TICKS * tick():
        return Budget(name=name, limit=limit, doubt=f"the clock ticks every {tick()} ns, too coarse")
    return decide(name, limit, compare(samples, ours, theirs))


def decide(name: str, limit: float, interval: Interval) -> Budget:
    """Make a budget of an interval, or say that it is too wide."""
    doubt = None if interval.settled(limit) else f"between {interval.low:.3g} and {interval.high:.3g}, too noisy"
    return Budget(name=name, limit=limit, interval=interval, doubt=doubt)


def of_processes(runs: Sequence[Budget]) -> Budget:
    """Judge a row by its figures in several processes, which lie further apart than the rounds of one of them."""
    figures = [run.interval.figure for run in runs if run.interval is not None]
    if len(figures) < len(runs):
        return next(run for run in runs if run.interval is None)
    costs = {who: median(run.costs[who] for run in runs) for who in runs[0].costs}
    return replace(decide(runs[0].name, runs[0].limit, middle(figures)), costs=costs)


def versus(name: str, limit: float, ours: Trial, theirs: Trial, allowance: float = 30) -> tuple[Budget, Samples]:
    """Measure two contenders against a limit of their ratio."""
    samples = interleave(
        {"ours": ours, "theirs": theirs},
        lambda so_far: compare(so_far, "ours", "theirs").settled(limit),
        allowance,
    )
    return judge(name, limit, samples, "ours", "theirs"), samples


@cache
def tick() -> int:
    """Return the smallest step the CPU clock is seen to make, reading included, nanoseconds."""
    steps: list[int] = []
    last = process_time_ns()
    while len(steps) < 50:
        now = process_time_ns()
        if now != last:
            steps.append(now - last)
            last = now
    return min(steps)


def fresh(function: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return the function with a code object of its own.

    The interpreter specialises code for the types it sees; contenders must not spoil that for each other.
    """
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
