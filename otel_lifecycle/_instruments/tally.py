"""What an explicit-bucket histogram keeps of many samples: counts, sum, minimum, maximum, exemplars.

The samples are sorted once; one binary search for each bucket boundary then finds how many lie between two boundaries.
For a thousand samples that is some twenty searches instead of a thousand.

Two kinds of batches share this: durations in float seconds, each with a moment of its own, and the inter-token gaps of
requests in integer nanoseconds, whose many samples share the moment of their request.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import Final, NamedTuple, Protocol, TypeAlias

from otel_lifecycle._core.usual import SortedGaps
from otel_lifecycle._instruments.moment import Moment

_SECOND: Final = 1e9
# 146 years: a boundary may be any number of seconds, and no gap is longer than this.
_LONGEST_NS: Final = 1 << 62
VALUE: Final = itemgetter(0)
"""The value of a sample; its moment is the other half."""

Sample: TypeAlias = tuple[float, Moment]
"""A value, in seconds where it is a duration, and when it was taken."""

Run: TypeAlias = tuple[Sequence[int], Moment]
"""Gaps of one request in integer nanoseconds, sorted ascending."""


class ExemplarChoice(Protocol):
    """Which samples the provider's filter lets become exemplars."""

    def wants(self, value: float, moment: Moment) -> bool:
        """Return whether a sample may become one."""

    def among(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        """Return the samples that may, in order."""


class Tally(NamedTuple):
    """What a batch adds to one explicit-bucket histogram.

    ``counts``: for each bucket that is not empty its number and its samples.  ``offers``: samples for the exemplar
    reservoir, oldest first.  ``total``, ``low`` and ``high`` are in seconds.
    """

    counts: Sequence[tuple[int, int]]
    total: float
    low: float
    high: float
    offers: Sequence[Sample]


class Batch(Protocol):
    """Samples for one histogram and one attribute set; never empty."""

    def tally(self, boundaries: tuple[float, ...], choice: ExemplarChoice) -> Tally | None:
        """Sort the samples into buckets; None for boundaries that cannot be searched."""

    def each(self) -> Iterator[tuple[float, Moment, bool]]:
        """Yield every sample in order: seconds, moment, and whether it is worth an offer as exemplar."""

    def rest(self) -> Batch | None:
        """Return all but the first sample; None where nothing is left."""


class Durations:
    """Durations in seconds, oldest first; finite and not negative."""

    __slots__ = ("_samples",)

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples

    def tally(self, boundaries: tuple[float, ...], choice: ExemplarChoice) -> Tally | None:
        """Sort the samples into buckets.  The last sample of each bucket is offered: the reservoir keeps no other."""
        if not _searchable(boundaries):
            return None
        values = sorted(map(VALUE, self._samples))
        last = {bisect_left(boundaries, sample[0]): sample for sample in choice.among(self._samples)}
        return Tally(
            counts=[(number, end - start) for number, start, end in _spans(values, boundaries)],
            # Rounded once, however many samples there are.
            total=math.fsum(values),
            low=values[0],
            high=values[-1],
            offers=list(last.values()),
        )

    def each(self) -> Iterator[tuple[float, Moment, bool]]:
        """Yield every sample; each may become an exemplar."""
        for value, moment in self._samples:
            yield value, moment, True

    def rest(self) -> Durations | None:
        """Return all but the first."""
        return Durations(self._samples[1:]) if len(self._samples) > 1 else None


class Gaps:
    """Gaps in whole nanoseconds, run by run.  Runs are sorted, not empty, and have no negative gap."""

    __slots__ = ("_runs",)

    OFFER_EVERY: Final = 128
    """In gap-by-gap aggregation one gap in so many is offered as exemplar: an offer costs as much as ten gaps."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs

    def tally(self, boundaries: tuple[float, ...], choice: ExemplarChoice) -> Tally | None:
        """Sort the gaps into buckets.  For each bucket, the largest gap of the last request in it is offered."""
        edges = _edges_ns(boundaries)
        if edges is None:
            return None
        counts: dict[int, int] = {}
        offers: dict[int, Sample] = {}
        for gaps, moment in self._runs:
            for number, start, end in _spans(gaps, edges):
                counts[number] = counts.get(number, 0) + end - start
                largest = gaps[end - 1] / _SECOND
                if choice.wants(largest, moment):
                    offers[number] = (largest, moment)
        return Tally(
            counts=list(counts.items()),
            # Integers add up exactly; the sum is rounded once, when it becomes seconds.
            total=sum(gaps.total if type(gaps) is SortedGaps else sum(gaps) for gaps, _ in self._runs) / _SECOND,
            low=min(gaps[0] for gaps, _ in self._runs) / _SECOND,
            high=max(gaps[-1] for gaps, _ in self._runs) / _SECOND,
            offers=list(offers.values()),
        )

    def each(self) -> Iterator[tuple[float, Moment, bool]]:
        """Yield every gap in seconds; some of each request may become exemplars, its longest among them."""
        for gaps, moment in self._runs:
            first = (len(gaps) - 1) % self.OFFER_EVERY
            for number, gap in enumerate(gaps):
                yield gap / _SECOND, moment, number % self.OFFER_EVERY == first

    def rest(self) -> Gaps | None:
        """Return all but the first."""
        (gaps, moment), *others = self._runs
        runs = [(gaps[1:], moment), *others] if len(gaps) > 1 else others
        return Gaps(runs) if runs else None


def _spans(values: Sequence[float], edges: tuple[float, ...]) -> Iterator[tuple[int, int, int]]:
    """Yield for each bucket that is not empty its number and where its values begin and end; ``values`` are sorted.

    A value on an edge belongs to the bucket below, as in the SDK.
    """
    start, size = 0, len(values)
    # From the bucket of the smallest on, and no further than the largest: most buckets are empty.
    for number in range(bisect_left(edges, values[0]), len(edges)):
        end = bisect_right(values, edges[number], start)
        if end > start:
            yield number, start, end
            start = end
            if end == size:
                return
    yield len(edges), start, size


@lru_cache(maxsize=64)
def _searchable(boundaries: tuple[float, ...]) -> bool:
    return all(map(math.isfinite, boundaries)) and all(a < b for a, b in pairwise(boundaries))


@lru_cache(maxsize=64)
def _edges_ns(boundaries: tuple[float, ...]) -> tuple[int, ...] | None:
    """Return for each boundary the largest whole nanosecond that is not above it once it is float seconds.

    ``gap / 1e9`` never falls as ``gap`` grows, so comparing integers with these finds the bucket that comparing the
    float with the boundaries finds, for every gap, one on an edge included.
    """
    return tuple(map(_edge_ns, boundaries)) if _searchable(boundaries) else None


def _edge_ns(boundary: float) -> int:
    # No gap is negative, so the bucket below stays empty.
    if boundary < 0:
        return -1
    edge = math.floor(min(boundary * _SECOND, _LONGEST_NS))
    # The product above was rounded: step from it to the exact edge.
    while edge < _LONGEST_NS and (edge + 1) / _SECOND <= boundary:
        edge += 1
    while edge / _SECOND > boundary:
        edge -= 1
    return edge
