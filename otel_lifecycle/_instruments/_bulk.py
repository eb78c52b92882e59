"""Many samples into one SDK histogram at the price of a few.

The SDK has no bulk record, and a thousand calls of ``Histogram.record`` cost milliseconds on the thread that serves.
What those calls leave behind is small: a count per bucket, a sum, a minimum, a maximum and some exemplars.  This module
works that out from the sorted samples and adds it to the aggregations behind an ordinary SDK histogram, under the locks
the SDK itself takes, so that every reader, view and temporality sees what plain recording would have left.

It reaches into parts of the SDK that carry no promise, hence two guards.  :func:`ways_agree` compares both ways on
known data in a throw-away provider, once a process; unless they agree the direct way is never used.  Then each stream
is judged by its exact type: an explicit-bucket histogram takes the counts, an exponential one takes the samples past
the look-ups, a dropped stream costs nothing, and whatever else (sum, last value, a class of somebody's own, an
attribute set beyond the cardinality limit) is given plain measurements.  An instrument that is not the SDK's gets
plain ``record`` calls.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

from opentelemetry.metrics import Histogram

from otel_lifecycle._instruments._direct import Behind, Direct, Stream
from otel_lifecycle._instruments._occasion import Labels, Occasion, Sample

_SECOND: Final = 1e9
_LONGEST_NS: Final = 1 << 62
_CHUNK: Final = 128
"""Samples aggregated under one hold of a lock, where each costs a call."""


class BulkHistogram:
    """A histogram in seconds that also takes many samples at once.

    ``histogram`` may be of any provider: the SDK's, the API's proxy (which records nothing until a provider is set), a
    no-op one, or one of another implementation.  Safe for threads as far as the histogram is.
    """

    __slots__ = ("_behind",)

    def __init__(self, histogram: Histogram, *, verify: bool = True) -> None:
        self._behind = Behind(histogram, verify=verify)

    @property
    def fast(self) -> bool:
        """Whether samples bypass ``Histogram.record`` now; a view can still make single streams of it plain."""
        return self._behind.find()[1] is not None

    def record(self, seconds: float, attributes: Labels, occasion: Occasion) -> None:
        """Record one sample, as ``Histogram.record`` does in the same context."""
        histogram, direct = self._behind.find()
        if direct is not None and 0 <= seconds < math.inf:
            direct.take(seconds, attributes, occasion)
        elif histogram is not None:
            histogram.record(seconds, attributes, occasion.context)

    def record_many(self, gaps: Sequence[int], attributes: Labels, occasion: Occasion) -> None:
        """Record every gap, in integer nanoseconds sorted ascending, as ``Histogram.record(gap / 1e9)`` would.

        Counts, buckets, minimum and maximum are those of plain recording; the sum is rounded once where plain recording
        rounds at every addition.  Of each bucket the largest gap is offered as an exemplar, with the trace of
        the occasion.  A negative gap is left out, as the SDK refuses it.
        """
        histogram, direct = self._behind.find()
        if gaps and gaps[0] < 0:
            gaps = gaps[bisect_left(gaps, 0) :]
        if histogram is None or not gaps:
            return
        if direct is None:
            for gap in gaps:
                histogram.record(gap / _SECOND, attributes, occasion.context)
        elif direct.enabled():
            _pour(direct, _Samples(gaps), attributes, occasion)


# ------------------------------------------------------------------------------------------------------------ samples


class _Bucket(NamedTuple):
    """The samples that fall into one bucket."""

    number: int
    samples: int
    largest: float


class _Samples:
    """Gaps in integer nanoseconds, sorted and not empty, seen in seconds."""

    __slots__ = ("_gaps", "high", "low", "total")

    def __init__(self, gaps: Sequence[int]) -> None:
        self._gaps = gaps
        self.low = gaps[0] / _SECOND
        self.high = gaps[-1] / _SECOND
        self.total = sum(gaps) / _SECOND

    def seconds(self) -> list[float]:
        return [gap / _SECOND for gap in self._gaps]

    def rest(self) -> _Samples | None:
        """Return all but the first."""
        return _Samples(self._gaps[1:]) if len(self._gaps) > 1 else None

    def buckets(self, boundaries: tuple[float, ...]) -> list[_Bucket] | None:
        """Return every bucket that is not empty, in order; None for boundaries that cannot be searched."""
        edges = _edges_ns(boundaries)
        if edges is None:
            return None
        gaps, start = self._gaps, 0
        found: list[_Bucket] = []
        for index in range(bisect_left(edges, gaps[0]), len(edges)):
            end = bisect_right(gaps, edges[index], start)
            if end > start:
                found.append(_Bucket(index, end - start, gaps[end - 1] / _SECOND))
                start = end
                if end == len(gaps):
                    return found
        found.append(_Bucket(len(edges), len(gaps) - start, self.high))
        return found


@lru_cache(maxsize=64)
def _edges_ns(boundaries: tuple[float, ...]) -> tuple[int, ...] | None:
    """Return for each boundary the largest whole nanosecond that is not above it once it is float seconds.

    ``gap / 1e9`` never falls as ``gap`` grows, so comparing integers with these finds the bucket that comparing the
    float with the boundaries finds, for every gap, one on an edge included.
    """
    if not all(map(math.isfinite, boundaries)) or any(a >= b for a, b in pairwise(boundaries)):
        return None
    return tuple(map(_edge_ns, boundaries))


def _edge_ns(boundary: float) -> int:
    if boundary < 0:
        return -1
    edge = math.floor(min(boundary * _SECOND, _LONGEST_NS))
    while edge < _LONGEST_NS and (edge + 1) / _SECOND <= boundary:
        edge += 1
    while edge / _SECOND > boundary:
        edge -= 1
    return edge


# ----------------------------------------------------------------------------------------------------------- delivery


def _pour(direct: Direct, samples: _Samples, attributes: Labels, occasion: Occasion) -> None:
    """Bring the samples into every stream of every reader."""
    sdk = direct.sdk
    for stream in direct.streams():
        kind = type(stream.target._aggregation) if stream.known else None
        if kind is sdk.explicit:
            _add_buckets(direct, stream, samples, attributes, occasion)
        elif kind is sdk.exponential:
            _aggregate_each(direct, stream, samples.seconds(), attributes, occasion)
        elif kind is not sdk.drop:
            _measure_each(direct, stream, samples.seconds(), attributes, occasion)


def _measure_each(
    direct: Direct, stream: Stream, values: Iterable[float], attributes: Labels, occasion: Occasion
) -> None:
    for value in values:
        wanted = direct.wanted(value, attributes, occasion)
        direct.measure(stream, Sample(value, attributes, occasion), wanted)


def _add_buckets(direct: Direct, stream: Stream, samples: _Samples, attributes: Labels, occasion: Occasion) -> None:
    """Add to an explicit-bucket aggregation; where there is none yet, its first sample goes the plain way."""
    if not _try_buckets(direct, stream, samples, attributes, occasion):
        _measure_each(direct, stream, (samples.low,), attributes, occasion)
        rest = samples.rest()
        if rest is not None and not _try_buckets(direct, stream, rest, attributes, occasion):
            _measure_each(direct, stream, rest.seconds(), attributes, occasion)


def _try_buckets(direct: Direct, stream: Stream, samples: _Samples, attributes: Labels, occasion: Occasion) -> bool:
    match = stream.target
    buckets = samples.buckets(match._aggregation._boundaries)
    if buckets is None:
        return False
    offers = [bucket.largest for bucket in buckets if direct.wanted(bucket.largest, attributes, occasion)]
    key = stream.key(attributes)
    # The match stays locked so that a delta collection cannot discard the aggregation in between.
    with match._lock:
        aggregation = match._attributes_aggregation.get(key)
        if type(aggregation) is not direct.sdk.explicit:
            return False
        _add(aggregation, buckets, samples)
        for value in offers:
            aggregation._reservoir.offer(value, occasion.time_unix_nano, attributes, occasion.context)
    return True


def _add(aggregation: Any, buckets: Iterable[_Bucket], samples: _Samples) -> None:
    with aggregation._lock:
        counts = aggregation._value
        if counts is None:
            counts = aggregation._value = [0] * (len(aggregation._boundaries) + 1)
        for number, count, _ in buckets:
            counts[number] += count
        aggregation._sum += samples.total
        if aggregation._record_min_max:
            aggregation._min = min(aggregation._min, samples.low)
            aggregation._max = max(aggregation._max, samples.high)


def _aggregate_each(
    direct: Direct, stream: Stream, values: list[float], attributes: Labels, occasion: Occasion
) -> None:
    """Let an exponential aggregation take the samples one by one, the last of each chunk as an exemplar."""
    match, key = stream.target, stream.key(attributes)
    sample = Sample(0.0, attributes, occasion)
    start = 0
    while start < len(values):
        chunk = values[start : start + _CHUNK]
        wanted = direct.wanted(chunk[-1], attributes, occasion)
        with match._lock:
            aggregation = match._attributes_aggregation.get(key)
            if known := type(aggregation) is direct.sdk.exponential:
                for sample.value in chunk[:-1]:
                    aggregation.aggregate(sample, False)
                sample.value = chunk[-1]
                aggregation.aggregate(sample, wanted)
        if not known:
            # Not made yet, discarded by a delta collection, or beyond the cardinality limit.
            chunk = chunk[:1]
            _measure_each(direct, stream, chunk, attributes, occasion)
        start += len(chunk)
