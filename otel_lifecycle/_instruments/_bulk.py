"""Many samples into one SDK histogram at the price of a few.

The SDK has no bulk record, and a thousand calls of ``Histogram.record`` cost milliseconds on the thread that serves.
What those calls leave behind is small: a count per bucket, a sum, a minimum, a maximum and some exemplars.  This module
works that out from the sorted samples and adds it to the aggregations behind an ordinary SDK histogram, under the locks
the SDK itself takes, so that every reader, view and temporality sees what plain recording would have left.

It reaches into parts of the SDK that carry no promise, hence two guards.  :func:`ways_agree` compares both ways on
known data in a throw-away provider, once a process; unless they agree the fast way is never used.  Then each target is
judged by its exact type: an explicit-bucket histogram takes the counts, an exponential one takes the samples past the
look-ups, a dropped stream costs nothing, and whatever else (sum, last value, a class of somebody's own, an attribute
set beyond the cardinality limit) is given plain measurements.  An instrument that is not the SDK's gets plain
``record`` calls.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from time import time_ns
from typing import Any, Final, cast

from opentelemetry.context import Context, get_current
from opentelemetry.metrics import Histogram, NoOpHistogram

from otel_lifecycle._instruments._sdk_metrics import Labels, SdkMetrics, installed_sdk, ways_agree

_logger = logging.getLogger(__name__)

_SECOND: Final = 1e9
_LONGEST_NS: Final = 1 << 62
_CHUNK: Final = 128
"""Samples aggregated under one hold of a lock, where each costs a call."""
_MOST_KEYS: Final = 4096


class BulkHistogram:
    """A histogram in seconds that also takes many samples at once.

    ``histogram`` may be of any provider: the SDK's, the API's proxy (which records nothing until a provider is set), a
    no-op one, or one of another implementation.  Safe for threads as far as the histogram is.
    """

    __slots__ = ("_histogram", "_route", "_verify")

    def __init__(self, histogram: Histogram, *, verify: bool = True) -> None:
        """Wrap ``histogram``; without ``verify`` the fast way is taken unproven, as its own proof must."""
        self._histogram = histogram
        self._verify = verify
        self._route: _Route | None = None
        if self._find_route() is None and verify and hasattr(histogram, "_real_instrument"):
            # A provider may come later; the proof belongs here at set-up, not to the first request.
            _verified_sdk()

    @property
    def fast(self) -> bool:
        """Whether samples bypass ``Histogram.record`` now; a view can still make single streams of it plain."""
        return isinstance(self._find_route(), _FastRoute)

    def record_many(self, gaps: Sequence[int], attributes: Labels, context: Context | None = None) -> None:
        """Record every gap, in integer nanoseconds sorted ascending, as ``Histogram.record(gap / 1e9)`` would.

        Counts, buckets, minimum and maximum are those of plain recording; the sum is rounded once where plain recording
        rounds at every addition.  Of each bucket the largest gap is offered as an exemplar, with the trace of
        ``context`` (None: the current one).  A negative gap is left out, as the SDK refuses it.
        """
        route = self._find_route()
        if route is None or not gaps:
            return
        if gaps[0] < 0:
            gaps = gaps[bisect_left(gaps, 0) :]
        if gaps:
            route.record_many(gaps, attributes, context)

    def _find_route(self) -> _Route | None:
        """Return the way to the instrument behind any proxy, None where nothing keeps samples."""
        histogram: Any = self._histogram
        while (behind := getattr(histogram, "_real_instrument", histogram)) is not histogram:
            histogram = behind
        if histogram is None or isinstance(histogram, NoOpHistogram):
            return None
        route = self._route
        if route is None or route.histogram is not histogram:
            self._route = route = _make_route(histogram, verify=self._verify)
        return route


# ------------------------------------------------------------------------------------------------------------- routes


class _Route:
    """The plain way: a call of ``Histogram.record`` for every sample."""

    __slots__ = ("histogram",)

    def __init__(self, histogram: Any) -> None:
        self.histogram = histogram

    def record_many(self, gaps: Sequence[int], attributes: Labels, context: Context | None) -> None:
        record = self.histogram.record
        for gap in gaps:
            record(gap / _SECOND, attributes, context)


class _FastRoute(_Route):
    """The way past ``Histogram.record``, into the aggregations of every reader and view."""

    __slots__ = ("_consumer", "_is_enabled", "_keys", "_sdk")

    def __init__(self, histogram: Any, sdk: SdkMetrics) -> None:
        super().__init__(histogram)
        self._sdk = sdk
        self._consumer = histogram._measurement_consumer
        # Newer SDKs can switch a meter off, and on again, at any time.
        self._is_enabled = cast("Callable[[], bool]", getattr(histogram, "_is_enabled", lambda: True))
        self._keys: dict[tuple[tuple[str, str | bool], ...], Hashable] = {}

    def record_many(self, gaps: Sequence[int], attributes: Labels, context: Context | None) -> None:
        if not self._is_enabled():
            return
        sdk, samples = self._sdk, _Samples(gaps)
        delivery = _Delivery(
            sdk, self.histogram, self._consumer._sdk_config.exemplar_filter, attributes, context or get_current()
        )
        for storage in list(self._consumer._reader_storages.values()):
            if type(storage) is not sdk.storage:
                delivery.measure(storage, samples.seconds())
                continue
            for match in storage._get_or_init_view_instrument_match(self.histogram):
                kind = type(match._aggregation) if type(match) is sdk.match else None
                if kind is sdk.explicit:
                    delivery.add_buckets(match, self._key(match, attributes), samples)
                elif kind is sdk.exponential:
                    delivery.aggregate_each(match, self._key(match, attributes), samples)
                elif kind is not sdk.drop:
                    delivery.measure(match, samples.seconds())

    def _key(self, match: Any, attributes: Labels) -> Hashable:
        """Return what the SDK files the attributes under, as far as the view keeps them."""
        kept = match._view._attribute_keys
        items = tuple(attributes.items() if kept is None else ((k, v) for k, v in attributes.items() if k in kept))
        key = self._keys.get(items)
        if key is None:
            if len(self._keys) >= _MOST_KEYS:
                self._keys.clear()
            key = self._keys[items] = self._sdk.key(dict(items))
        return key


def _make_route(histogram: Any, *, verify: bool) -> _Route:
    """Choose the way; the SDK is not even imported for an instrument that is not its own."""
    if type(histogram).__module__.startswith("opentelemetry.sdk."):
        sdk = _verified_sdk() if verify else installed_sdk()
        if (
            sdk is not None
            and isinstance(histogram, sdk.histogram)
            and type(histogram._measurement_consumer) is sdk.consumer
        ):
            return _FastRoute(histogram, sdk)
    return _Route(histogram)


@lru_cache(maxsize=1)
def _verified_sdk() -> SdkMetrics | None:
    """Return the SDK's classes if bulk and plain recording agree in it, found out once a process."""
    sdk = installed_sdk()
    if sdk is not None and ways_agree(lambda histogram: BulkHistogram(histogram, verify=False)):
        return sdk
    _logger.warning("the installed opentelemetry-sdk is not one whose histograms take samples in bulk; they are slower")
    return None


# ------------------------------------------------------------------------------------------------------------ samples


@dataclass(frozen=True, slots=True)
class _Bucket:
    """The samples that fall into one bucket."""

    index: int
    count: int
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


@dataclass(slots=True)
class _Sample:
    """What an aggregation reads of a measurement, with a value that can be set again."""

    value: float
    time_unix_nano: int
    attributes: Labels
    context: Context


class _Delivery:
    """What is the same for all samples of one call, and the ways they reach an aggregation."""

    __slots__ = ("_attributes", "_context", "_histogram", "_now", "_sdk", "_should_sample")

    def __init__(
        self, sdk: SdkMetrics, histogram: Any, exemplar_filter: Any, attributes: Labels, context: Context
    ) -> None:
        self._sdk = sdk
        self._histogram = histogram
        self._should_sample: Callable[[float, int, Labels, Context], bool] = exemplar_filter.should_sample
        self._attributes = attributes
        self._context = context
        self._now = time_ns()

    def measure(self, target: Any, values: Iterable[float]) -> None:
        """Hand the values to a reader's storage or to a view's as the SDK's own measurements."""
        for value in values:
            measurement = self._sdk.measurement(value, self._now, self._histogram, self._context, self._attributes)
            target.consume_measurement(measurement, self._wants(value))

    def add_buckets(self, match: Any, key: Hashable, samples: _Samples) -> None:
        """Add to an explicit-bucket aggregation; where there is none yet, its first sample goes the plain way."""
        rest: _Samples | None = samples
        if not self._try_buckets(match, key, samples):
            self.measure(match, (samples.low,))
            rest = samples.rest()
            if rest is not None and not self._try_buckets(match, key, rest):
                self.measure(match, rest.seconds())

    def _try_buckets(self, match: Any, key: Hashable, samples: _Samples) -> bool:
        buckets = samples.buckets(match._aggregation._boundaries)
        if buckets is None:
            return False
        offers = [bucket.largest for bucket in buckets if self._wants(bucket.largest)]
        # The match stays locked so that a delta collection cannot discard the aggregation in between.
        with match._lock:
            aggregation = match._attributes_aggregation.get(key)
            if type(aggregation) is not self._sdk.explicit:
                return False
            _add(aggregation, buckets, samples)
            for value in offers:
                aggregation._reservoir.offer(value, self._now, self._attributes, self._context)
        return True

    def aggregate_each(self, match: Any, key: Hashable, samples: _Samples) -> None:
        """Let an exponential aggregation take the samples one by one, the last of each chunk as an exemplar."""
        values = samples.seconds()
        sample = _Sample(0.0, self._now, self._attributes, self._context)
        start = 0
        while start < len(values):
            chunk = values[start : start + _CHUNK]
            wanted = self._wants(chunk[-1])
            with match._lock:
                aggregation = match._attributes_aggregation.get(key)
                if known := type(aggregation) is self._sdk.exponential:
                    for sample.value in chunk[:-1]:
                        aggregation.aggregate(sample, False)
                    sample.value = chunk[-1]
                    aggregation.aggregate(sample, wanted)
            if not known:
                # Not made yet, discarded by a delta collection, or beyond the cardinality limit.
                chunk = chunk[:1]
                self.measure(match, chunk)
            start += len(chunk)

    def _wants(self, value: float) -> bool:
        return bool(self._should_sample(value, self._now, self._attributes, self._context))


def _add(aggregation: Any, buckets: Iterable[_Bucket], samples: _Samples) -> None:
    with aggregation._lock:
        counts = aggregation._value
        if counts is None:
            counts = aggregation._value = [0] * (len(aggregation._boundaries) + 1)
        for bucket in buckets:
            counts[bucket.index] += bucket.count
        aggregation._sum += samples.total
        if aggregation._record_min_max:
            aggregation._min = min(aggregation._min, samples.low)
            aggregation._max = max(aggregation._max, samples.high)
