"""Many samples for one instrument and one attribute set: their values, and their moments if somebody asks for them.

How it works.  Only exemplars, and streams that take samples one by one, need to know when a sample was taken and in
which trace.  Where no trace is sampled there are no exemplars, so the moments of the requests are made on demand, once
for all samples of the same requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, count, repeat
from operator import attrgetter, truediv
from typing import Any, Final, TypeAlias

from otel_lifecycle._core.verdict import SECOND
from otel_lifecycle._instruments.moment import Moment

IS_SAMPLED: Final = attrgetter("sampled")

Sample: TypeAlias = tuple[float, Moment]
"""A value, in seconds where it is a duration, and when it was taken."""


class Moments:
    """The moments of samples; ``sampled``: whether any of them may lie in a sampled trace."""

    __slots__ = ("_made", "_make", "sampled")

    def __init__(self, make: Callable[[], list[Moment]], *, sampled: bool) -> None:
        self._make = make
        self._made: list[Moment] | None = None
        self.sampled = sampled

    def all(self) -> list[Moment]:
        """Return them all, in order."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def at(self, places: Iterable[int]) -> Moments:
        """Return those at these places, which are looked at when somebody asks for the moments."""

        def make() -> list[Moment]:
            return list(map(self.all().__getitem__, places))

        return Moments(make, sampled=self.sampled)


class Samples:
    """Values, oldest first, and the moment of each.  Nothing changes them: several instruments may share them."""

    __slots__ = ("_sorted", "_total", "moments", "values")

    def __init__(self, values: Sequence[Any], moments: Moments) -> None:
        self.values = values
        self.moments = moments
        self._sorted: list[Any] | None = None
        self._total: float | None = None

    def __iter__(self) -> Iterator[tuple[Any, Moment]]:
        return zip(self.each, self.moments.all(), strict=True)

    @property
    def each(self) -> Sequence[Any]:
        """The values as an instrument records them one by one."""
        return self.values

    @property
    def finite(self) -> bool:
        """Whether no value is infinite, or not a number."""
        # One sum finds them at C speed.
        return math.isfinite(sum(self.values))

    @property
    def sorted(self) -> list[Any]:
        """The values, ascending."""
        if self._sorted is None:
            self._sorted = sorted(self.values)
        return self._sorted

    @property
    def total(self) -> float:
        """The sum of the values, rounded once, however many there are."""
        if self._total is None:
            self._total = math.fsum(self.values)
        return self._total

    @property
    def sum(self) -> float:
        """The sum of the values, which is a whole number where they are."""
        total: float = sum(self.values)
        return total

    def where(self, those: Sequence[Any]) -> Samples:
        """Return the samples at whose places something is true."""
        return type(self)(list(compress(self.values, those)), self.moments.at(compress(count(), those)))

    def rest(self) -> Samples:
        """Return all but the first."""
        return type(self)(self.values[1:], self.moments.at(range(1, len(self.values))))


class Nanoseconds(Samples):
    """Durations in whole nanoseconds, which an instrument records in seconds."""

    __slots__ = ()

    @property
    def each(self) -> Sequence[float]:
        """The values in seconds."""
        return in_seconds(self.values)

    @property
    def finite(self) -> bool:
        """Integers are."""
        return True

    @property
    def total(self) -> float:
        """The sum in seconds; integers add up exactly."""
        return self.sum

    @property
    def sum(self) -> float:
        """The sum in seconds."""
        total: int = sum(self.values)
        return total / SECOND


def in_seconds(nanoseconds: Iterable[int]) -> list[float]:
    """Return durations in seconds."""
    return list(map(truediv, nanoseconds, repeat(SECOND)))


Parts: TypeAlias = "Sequence[tuple[Any, Moment]] | Sequence[tuple[Any, Moment] | Samples] | Samples"
"""Single samples, and samples of many requests; one of a run of gaps has the run as its value."""


def gathered(parts: Parts) -> Samples:
    """Return single samples, and samples of many requests, as one."""
    if isinstance(parts, Samples):
        return parts
    if len(parts) == 1 and isinstance(parts[0], Samples):
        return parts[0]
    values: list[Any] = []
    for part in parts:
        if isinstance(part, Samples):
            values.extend(part.each)
        else:
            values.append(part[0])

    def moments() -> list[Moment]:
        made: list[Moment] = []
        for part in parts:
            made.extend(part.moments.all() if isinstance(part, Samples) else (part[1],))
        return made

    sampled = any(part.moments.sampled if isinstance(part, Samples) else part[1].sampled for part in parts)
    return Samples(values, Moments(moments, sampled=sampled))
