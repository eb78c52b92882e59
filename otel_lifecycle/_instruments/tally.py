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
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, compress, pairwise, repeat
from operator import itemgetter
from typing import Final, NamedTuple, Protocol

from otel_lifecycle._core.usual import SortedGaps
from otel_lifecycle._instruments.moment import Moment
from otel_lifecycle._instruments.samples import Nanoseconds, Sample, Samples, gathered

_SECOND: Final = 1e9
# 146 years: a boundary may be any number of seconds, and no gap is longer than this.
_LONGEST_NS: Final = 1 << 62
FIRST: Final = itemgetter(0)
_LAST: Final = itemgetter(-1)


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """The boundaries between the buckets of a histogram; the same boundaries are the same object.

    ``nanoseconds``: for each boundary, the largest whole nanosecond that is not above it once it is float seconds.
    """

    seconds: tuple[float, ...]
    nanoseconds: tuple[int, ...]


NO_EDGES: Final = Edges((), ())
"""A single bucket."""


class ExemplarChoice(Protocol):
    """Which samples the provider's filter lets become exemplars."""

    def may_want(self, *, sampled: bool) -> bool:
        """Whether a sample may become one; ``sampled``: some of them may lie in a sampled trace."""

    def wants(self, value: float, moment: Moment) -> bool:
        """Return whether a sample may become one."""

    def among(self, samples: Samples) -> Sequence[Sample]:
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

    def tally(self, edges: Edges, choice: ExemplarChoice) -> Tally:
        """Sort the samples into buckets."""

    def each(self) -> Iterator[tuple[float, Moment, bool]]:
        """Yield every sample in order: seconds, moment, and whether it is worth an offer as exemplar."""

    def rest(self) -> Batch | None:
        """Return all but the first sample; None where nothing is left."""


class Durations:
    """Durations in seconds, oldest first; finite and not negative."""

    __slots__ = ("_samples",)

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def tally(self, edges: Edges, choice: ExemplarChoice) -> Tally:
        """Sort the samples into buckets.  The last sample of each bucket is offered: the reservoir keeps no other."""
        samples, values = self._samples, self._samples.sorted
        offers: Sequence[Sample] = ()
        if choice.may_want(sampled=samples.moments.sampled):
            chosen = choice.among(samples)
            offers = list(
                dict(zip(map(bisect_left, repeat(edges.seconds), map(FIRST, chosen)), chosen, strict=True)).values()
            )
        low, high = values[0], values[-1]
        if isinstance(samples, Nanoseconds):
            spans = _spans(values, edges.nanoseconds)
            low, high = low / _SECOND, high / _SECOND
        else:
            spans = _spans(values, edges.seconds)
        return Tally([(number, end - start) for number, start, end in spans], samples.total, low, high, offers)

    def each(self) -> Iterator[tuple[float, Moment, bool]]:
        """Yield every sample; each may become an exemplar."""
        for value, moment in self._samples:
            yield value, moment, True

    def rest(self) -> Durations | None:
        """Return all but the first."""
        rest = self._samples.rest()
        return Durations(rest) if rest.values else None


class Gaps:
    """Gaps in whole nanoseconds, run by run: each value is a sorted run, not empty, without a negative gap."""

    __slots__ = ("_runs",)

    OFFER_EVERY: Final = 128
    """In gap-by-gap aggregation one gap in so many is offered as exemplar: an offer costs as much as ten gaps."""

    SHORT: Final = 64
    """Runs of up to so many gaps are merged first: bisecting each of them would cost more than sorting them."""

    def __init__(self, runs: Samples) -> None:
        self._runs = runs

    def tally(self, edges: Edges, choice: ExemplarChoice) -> Tally:
        """Sort the gaps into buckets.  For each bucket, the largest gap of the last request in it is offered."""
        counts: dict[int, int] = {}
        offers: dict[int, Sample] = {}
        runs: Sequence[Sequence[int]] = self._runs.values
        silent = runs
        if choice.may_want(sampled=self._runs.moments.sampled):
            silent = []
            for gaps, moment in self._runs:
                if not choice.may_want(sampled=moment.sampled):
                    silent.append(gaps)
                    continue
                for number, start, end in _spans(gaps, edges.nanoseconds):
                    counts[number] = counts.get(number, 0) + end - start
                    largest = gaps[end - 1] / _SECOND
                    if choice.wants(largest, moment):
                        offers[number] = (largest, moment)
        for gaps in self._merged(silent):
            for number, start, end in _spans(gaps, edges.nanoseconds):
                counts[number] = counts.get(number, 0) + end - start
        return Tally(
            list(counts.items()),
            # Integers add up exactly; the sum is rounded once, when it becomes seconds.
            sum(gaps.total if type(gaps) is SortedGaps else sum(gaps) for gaps in runs) / _SECOND,
            min(map(FIRST, runs)) / _SECOND,
            max(map(_LAST, runs)) / _SECOND,
            list(offers.values()),
        )

    def _merged(self, runs: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        short = [len(gaps) <= self.SHORT for gaps in runs]
        if sum(short) < 2:
            return runs
        long = (gaps for gaps, is_short in zip(runs, short, strict=True) if not is_short)
        return [sorted(chain.from_iterable(compress(runs, short))), *long]

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
        return Gaps(gathered(runs)) if runs else None


def _spans(values: Sequence[float], edges: tuple[float, ...]) -> list[tuple[int, int, int]]:
    """Return for each bucket that is not empty its number and where its values begin and end; ``values`` are sorted.

    A value on an edge belongs to the bucket below, as in the SDK.
    """
    # Most buckets are empty: from that of the smallest on, and no further than that of the largest.
    number, last = bisect_left(edges, values[0]), bisect_left(edges, values[-1])
    start, found = 0, []
    while number < last:
        end = bisect_right(values, edges[number], start)
        if end > start:
            found.append((number, start, end))
            start = end
        number += 1
    found.append((last, start, len(values)))
    return found


@lru_cache(maxsize=64)
def edges_of(boundaries: tuple[float, ...]) -> Edges | None:
    """Return the edges of a histogram with these boundaries; None where they cannot be searched.

    ``gap / 1e9`` never falls as ``gap`` grows, so comparing integers with the edges in nanoseconds finds the bucket
    that comparing the float with the boundaries finds, for every gap, one on an edge included.
    """
    if all(map(math.isfinite, boundaries)) and all(a < b for a, b in pairwise(boundaries)):
        return Edges(boundaries, tuple(map(_edge_ns, boundaries)))
    return None


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
