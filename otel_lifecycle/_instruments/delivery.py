"""Puts a batch of samples into an instrument of any provider; in the SDK's that costs as much as a few samples.

Each stream of an SDK instrument is judged by the exact type of its aggregation: an explicit-bucket histogram takes
counts, a sum takes a total, an exponential histogram takes the samples past the look-ups, a dropped stream takes
nothing.  Every other one (last value, a class of somebody's own, an attribute set beyond the cardinality limit) gets
plain measurements, and an instrument that is not the SDK's gets plain ``record`` and ``add`` calls.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import islice
from typing import Any

from opentelemetry.metrics import Counter, Histogram, NoOpCounter, NoOpHistogram

from otel_lifecycle._instruments.moment import Labels, Moment
from otel_lifecycle._instruments.samples import IS_SAMPLED, Parts, Samples, gathered
from otel_lifecycle._instruments.self_test import ways_agree
from otel_lifecycle._instruments.tally import FIRST, Batch, Durations, Edges, Gaps, Tally
from otel_lifecycle._log import logger
from otel_lifecycle._sdk_metrics import SdkMetrics, Stream, Streams, installed_sdk, is_sdk_instrument, real_instrument


class _Outlet:
    """What an instrument of the API stands for: the real one behind a proxy, and its streams if they are known.

    ``sdk`` is given by the self-test, which runs before bulk recording is used.
    """

    __slots__ = ("_instrument", "_known", "_sdk")

    def __init__(self, instrument: Any, sdk: SdkMetrics | None = None) -> None:
        self._instrument = instrument
        self._sdk = sdk
        self._known: tuple[Any, Streams | None] = (None, None)
        if self._find()[0] is None and sdk is None:
            # The provider may come later; the self-test runs here, at set-up, and not in the first collection.
            trusted_sdk()

    @property
    def bulk(self) -> bool:
        """Whether every stream takes samples in bulk, so that a batch is cheap on any thread."""
        streams = self._find()[1]
        return streams is not None and all(stream.kind in ("explicit", "sum", "drop") for stream in streams.all())

    def finds(self, attributes: Labels) -> bool:
        """Return whether every stream that keeps samples has some under these attributes."""
        streams = self._find()[1]
        return streams is not None and all(stream.kind == "drop" or stream.has(attributes) for stream in streams.all())

    def _find(self) -> tuple[Any, Streams | None]:
        """Return the instrument that takes samples, None while there is none, and its streams if they are known."""
        instrument = real_instrument(self._instrument)
        # One tuple, replaced as a whole: no thread sees the streams of another instrument.
        known = self._known
        if known[0] is instrument:
            return known
        # This stream keeps no samples, so sorting for it would be wasted.
        if isinstance(instrument, (NoOpCounter, NoOpHistogram)):
            return None, None
        self._known = known = (instrument, _streams_of(instrument, self._sdk))
        return known


class HistogramOutlet(_Outlet):
    """A histogram in seconds that takes samples in batches."""

    __slots__ = ()

    def __init__(self, histogram: Histogram, sdk: SdkMetrics | None = None) -> None:
        super().__init__(histogram, sdk)

    def take(self, attributes: Labels, samples: Parts) -> None:
        """Take durations in seconds, oldest first; what the SDK would refuse goes to ``record``, which says so."""
        taken = gathered(samples)
        if not taken.values:
            return
        # A NaN can stand anywhere among sorted values.
        if taken.sorted[0] >= 0 and taken.finite:
            self._pour(attributes, Durations(taken))
        else:
            self._take_apart(attributes, taken)

    def _take_apart(self, attributes: Labels, samples: Samples) -> None:
        """Take the valid values; the SDK refuses the rest."""
        taken = gathered([sample for sample in samples if 0 <= sample[0] < math.inf])
        if taken.values:
            self._pour(attributes, Durations(taken))
        histogram = self._find()[0]
        if histogram is not None:
            for value, moment in samples:
                if not 0 <= value < math.inf:
                    histogram.record(value, attributes, moment.context)

    def take_gaps(self, attributes: Labels, runs: Parts) -> None:
        """Take gaps in nanoseconds, as ``record(gap / 1e9)`` would, but with the sum rounded once.

        A negative gap is left out, as the SDK refuses it.
        """
        runs = gathered(runs)
        # They are sorted, so the first gap tells whether any is negative.
        if not all(map(len, runs.values)) or min(map(FIRST, runs.values), default=0) < 0:
            valid = [([gap for gap in gaps if gap >= 0], moment) for gaps, moment in runs]
            runs = gathered([run for run in valid if run[0]])
        if runs.values:
            self._pour(attributes, Gaps(runs))

    def _pour(self, attributes: Labels, batch: Batch) -> None:
        histogram, streams = self._find()
        if histogram is None:
            return
        if streams is None:
            for value, moment, _ in batch.each():
                histogram.record(value, attributes, moment.context)
        # A meter that is switched off drops what `record` gets; bulk samples must not slip past that.
        elif streams.enabled():
            _Pouring(streams, attributes).pour(batch)


class CounterOutlet(_Outlet):
    """A counter that takes amounts in batches."""

    __slots__ = ()

    def __init__(self, counter: Counter, sdk: SdkMetrics | None = None) -> None:
        super().__init__(counter, sdk)

    def take(self, attributes: Labels, amounts: Parts) -> None:
        """Take amounts; a negative one goes to ``add``, which refuses it and says so."""
        amounts = gathered(amounts)
        counter, streams = self._find()
        if counter is None or not amounts.values:
            return
        if min(amounts.values) < 0:
            for amount, moment in amounts:
                counter.add(amount, attributes, moment.context)
        elif streams is None:
            # One total gives the same sum as its parts.  Only the exemplar, chosen at random, may differ.
            moments = amounts.moments.all()
            shown = next(filter(IS_SAMPLED, reversed(moments)), moments[-1])
            counter.add(amounts.sum, attributes, shown.context)
        elif streams.enabled():
            _Pouring(streams, attributes).pour_amounts(amounts)


class _Pouring:
    """One batch on its way into every stream of every reader."""

    __slots__ = ("_attributes", "_choice", "_streams")

    def __init__(self, streams: Streams, attributes: Labels) -> None:
        self._streams = streams.all()
        self._attributes = attributes
        self._choice = streams.exemplars(attributes)

    def pour(self, batch: Batch) -> None:
        # Most readers share their boundaries, so they share the sorted samples.
        tallies: dict[Edges, Tally] = {}
        for stream in self._streams:
            if stream.kind == "explicit":
                tally = tallies.get(stream.edges)
                if tally is None:
                    tally = tallies[stream.edges] = batch.tally(stream.edges, self._choice)
                if not stream.add(self._attributes, tally):
                    self._pour_first(stream, batch)
            elif stream.kind == "exponential":
                self._aggregate(stream, list(batch.each()))
            elif stream.kind != "drop":
                self._measure(stream, batch)

    def pour_amounts(self, amounts: Samples) -> None:
        for stream in self._streams:
            if stream.kind == "sum":
                self._pour_total(stream, amounts)
            elif stream.kind in ("explicit", "exponential"):
                self._aggregate(stream, [(amount, moment, True) for amount, moment in amounts])
            elif stream.kind != "drop":
                for amount, moment in amounts:
                    stream.measure(self._attributes, amount, moment, self._choice.wants(amount, moment))

    def _pour_total(self, stream: Stream, amounts: Samples) -> None:
        """Add their sum, with the moment of the last one that may become an exemplar, else of the last."""
        total = amounts.sum
        shown = self._choice.may_want(sampled=amounts.moments.sampled)
        if shown or not stream.add_total(self._attributes, total):
            moment = (self._choice.among(amounts) or list(amounts))[-1][1]
            self._aggregate(stream, [(total, moment, True)])

    def _pour_first(self, stream: Stream, batch: Batch) -> None:
        """Add to an explicit-bucket aggregation that is not there yet: the first sample goes through the API."""
        for value, moment, _ in islice(batch.each(), 1):
            stream.measure(self._attributes, value, moment, self._choice.wants(value, moment))
        # Recording has made the aggregation, unless a limit sent the sample elsewhere.
        rest = batch.rest()
        if rest is not None and not stream.add(self._attributes, rest.tally(stream.edges, self._choice)):
            self._measure(stream, rest)

    def _aggregate(self, stream: Stream, samples: list[tuple[float, Moment, bool]]) -> None:
        """Let an aggregation take the samples one by one; while it is missing, record through the API."""
        samples = [(value, moment, offered and self._choice.wants(value, moment)) for value, moment, offered in samples]
        taken = stream.aggregate(self._attributes, samples)
        # Recording through the API makes the missing aggregation; later samples skip the look-ups again.
        while taken < len(samples):
            stream.measure(self._attributes, *samples[taken])
            taken = stream.aggregate(self._attributes, samples, taken + 1)

    def _measure(self, stream: Stream, batch: Batch) -> None:
        for value, moment, _ in batch.each():
            stream.measure(self._attributes, value, moment, self._choice.wants(value, moment))


def _streams_of(instrument: Any, sdk: SdkMetrics | None) -> Streams | None:
    """Return the streams of the SDK's own instruments, where the SDK is one that can be trusted."""
    if not is_sdk_instrument(instrument):
        return None
    known = trusted_sdk() if sdk is None else sdk
    if known is None or not known.makes(instrument):
        return None
    return Streams(instrument, known)


# The self-test takes some 20 ms of CPU, so its answer is kept, also if it fails.
@lru_cache(maxsize=1)
def trusted_sdk() -> SdkMetrics | None:
    """Return the SDK's classes if bulk recording gives the same result as the API; tested once in a process."""
    sdk = installed_sdk()
    if sdk is not None and ways_agree(
        lambda histogram: HistogramOutlet(histogram, sdk), lambda counter: CounterOutlet(counter, sdk)
    ):
        return sdk
    logger.warning(
        "the installed opentelemetry-sdk has other insides than those known here; "
        "metrics are as exact as before, and collecting them takes more CPU"
    )
    return None
