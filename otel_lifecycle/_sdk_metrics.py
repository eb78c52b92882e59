"""Private names of OpenTelemetry's metrics: all that this package uses, and what happens without them.

Checked with opentelemetry-sdk 1.31.0 and 1.45.2.

The SDK has no bulk record, and a thousand calls of ``Histogram.record`` cost milliseconds.  What those calls leave
behind is small: a count per bucket, a sum, a minimum, a maximum and some exemplars.  :class:`Stream` adds these to the
aggregations behind an instrument, under the locks that the SDK itself takes, so that every reader, view and temporality
sees what plain recording would have left.

The SDK promises none of these names.  ``_instruments.self_test`` therefore records known samples both ways in a
provider of its own, once a process.  If a name is gone, or means something else, there is one warning, and all samples
go through the public ``record`` and ``add``: the same figures, for more CPU of the thread that collects.

The SDK is imported inside functions, because the package itself loads the API only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_
from typing import Any, Final, Literal, TypeAlias

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from otel_lifecycle._instruments.moment import Labels, Moment
from otel_lifecycle._instruments.samples import IS_SAMPLED, Sample, Samples
from otel_lifecycle._instruments.tally import NO_EDGES, Edges, ExemplarChoice, Tally, edges_of

Kind: TypeAlias = Literal["explicit", "exponential", "sum", "drop", "other"]

MOST_KEYS: Final = 4096
"""Attribute sets whose key a stream remembers: the 1000 of an instrument, with room for what a restart leaves."""

CHUNK: Final = 128
"""Samples aggregated one by one under one hold of the SDK's lock; a collection waits for that long at most."""

_SAMPLED, _UNSAMPLED = (
    set_span_in_context(NonRecordingSpan(SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(flags))), Context())
    for flags in (TraceFlags.SAMPLED, TraceFlags.DEFAULT)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SdkMetrics:
    """The classes of the installed SDK, and how it files attributes."""

    counter: type[Any]
    histogram: type[Any]
    consumer: type[Any]
    storage: type[Any]
    match: type[Any]
    kinds: Mapping[type[Any], Kind]
    measurement: Callable[..., Any]
    filters_by_context: frozenset[type[Any]]
    key: Callable[[Labels], Hashable]

    def makes(self, instrument: Any) -> bool:
        """Return whether the instrument is one whose measurements go where this module looks for them."""
        return (
            isinstance(instrument, (self.counter, self.histogram))
            and type(instrument._measurement_consumer) is self.consumer
        )


def installed_sdk() -> SdkMetrics | None:
    """Find the classes; None if the SDK is absent or has others."""
    try:
        from opentelemetry.sdk.metrics import (
            AlwaysOffExemplarFilter,
            AlwaysOnExemplarFilter,
            TraceBasedExemplarFilter,
        )
        from opentelemetry.sdk.metrics import Counter as SdkCounter
        from opentelemetry.sdk.metrics import Histogram as SdkHistogram
        from opentelemetry.sdk.metrics._internal import _view_instrument_match, aggregation
        from opentelemetry.sdk.metrics._internal.measurement import Measurement
        from opentelemetry.sdk.metrics._internal.measurement_consumer import SynchronousMeasurementConsumer
        from opentelemetry.sdk.metrics._internal.metric_reader_storage import MetricReaderStorage

        return SdkMetrics(
            counter=SdkCounter,
            histogram=SdkHistogram,
            consumer=SynchronousMeasurementConsumer,
            storage=MetricReaderStorage,
            match=_view_instrument_match._ViewInstrumentMatch,
            kinds={
                aggregation._ExplicitBucketHistogramAggregation: "explicit",
                aggregation._ExponentialBucketHistogramAggregation: "exponential",
                aggregation._SumAggregation: "sum",
                aggregation._DropAggregation: "drop",
            },
            measurement=Measurement,
            filters_by_context=frozenset({AlwaysOffExemplarFilter, AlwaysOnExemplarFilter, TraceBasedExemplarFilter}),
            # SDKs before 1.44 file attributes under a frozenset.
            key=getattr(_view_instrument_match, "_hash_attributes", _as_frozenset),
        )
    except (ImportError, AttributeError):
        return None


def _as_frozenset(attributes: Labels) -> Hashable:
    return frozenset(attributes.items())


def real_instrument(instrument: Any) -> Any:
    """Return the instrument that a proxy of the API records into; the proxy itself while it has none.

    Without the private name a proxy is recorded into as it is, which is right and slower.
    """
    while (behind := getattr(instrument, "_real_instrument", instrument)) is not instrument:
        instrument = behind
    return instrument


def held_readers(provider: object) -> list[object] | None:
    """Return the metric readers of a meter provider, for ``doctor``; None where that cannot be seen."""
    held = getattr(getattr(provider, "_measurement_consumer", None), "_reader_storages", None)
    return None if held is None else list(held)


def is_sdk_instrument(instrument: object) -> bool:
    """Return whether it is the SDK's, without importing the SDK to find out."""
    return type(instrument).__module__.startswith("opentelemetry.sdk.")


class Streams:
    """The streams behind one SDK instrument: one for each reader and view.

    Raises AttributeError where the SDK has other insides; the self-test finds that before anything is recorded.
    """

    __slots__ = ("_answers", "_asked", "_consumer", "_instrument", "_readers", "_streams", "enabled", "sdk")

    def __init__(self, instrument: Any, sdk: SdkMetrics) -> None:
        self.sdk = sdk
        # Newer SDKs can switch a meter off, and on again, at any time.
        self.enabled: Callable[[], bool] = getattr(instrument, "_is_enabled", _always)
        self._instrument = instrument
        # Where the instrument sends its measurements: one storage for each reader is behind it.
        self._consumer = instrument._measurement_consumer
        self._readers: object = None
        self._streams: list[Stream] = []
        self._asked: object = None
        self._answers: ExemplarChoice = ExemplarsByTrace(unsampled=False, sampled=False)

    def all(self) -> list[Stream]:
        """Return every stream of every reader."""
        readers = self._consumer._reader_storages
        # A reader that comes or goes makes a new mapping; the streams of an instrument never change in the SDK.
        if self._readers is not readers:
            self._streams, self._readers = list(self._find(readers)), readers
        return self._streams

    def _find(self, readers: Mapping[Any, Any]) -> Iterator[Stream]:
        # A copy, because a reader may be added meanwhile.
        for storage in list(readers.values()):
            if type(storage) is self.sdk.storage:
                # The SDK's own look-up, which makes what is missing, as the first plain measurement would.
                for match in storage._get_or_init_view_instrument_match(self._instrument):
                    yield Stream(match, self._instrument, self.sdk)
            else:
                yield Stream(storage, self._instrument, self.sdk)

    def exemplars(self, attributes: Labels) -> ExemplarChoice:
        """Return what chooses the samples that may become exemplars.

        The SDK's own filters look at the context alone, so each is asked once for sampled traces and once for others.
        Somebody else's filter is asked for every sample.
        """
        ask = self._consumer._sdk_config.exemplar_filter
        if ask is not self._asked:
            if type(ask) not in self.sdk.filters_by_context:
                return AskedExemplars(ask, attributes)
            # The two contexts are made once, at import: each holds nothing but an invented span.
            off, on = (bool(ask.should_sample(0.0, 0, {}, context)) for context in (_UNSAMPLED, _SAMPLED))
            self._answers, self._asked = ExemplarsByTrace(unsampled=off, sampled=on), ask
        return self._answers


class ExemplarsByTrace:
    """A choice that depends only on whether the sample's trace is sampled."""

    __slots__ = ("_sampled", "_unsampled")

    def __init__(self, *, unsampled: bool, sampled: bool) -> None:
        self._unsampled = unsampled
        self._sampled = sampled

    def may_want(self, *, sampled: bool) -> bool:
        """Return whether a sample may become an exemplar; ``sampled``: some may lie in a sampled trace."""
        return self._unsampled or (self._sampled and sampled)

    def wants(self, value: float, moment: Moment) -> bool:  # the value decides elsewhere
        """Return whether a sample may become an exemplar."""
        return self._sampled if moment.sampled else self._unsampled

    def among(self, samples: Samples) -> Sequence[Sample]:
        """Return the samples that may become exemplars, in order."""
        if not self.may_want(sampled=samples.moments.sampled):
            return ()
        if self._sampled is self._unsampled:
            return list(samples)
        # At C speed: most requests are not sampled, and their samples come past here all the same.
        chosen = map(IS_SAMPLED, samples.moments.all())
        return list(compress(samples, chosen if self._sampled else map(not_, chosen)))


class AskedExemplars:
    """A choice by somebody else's filter."""

    __slots__ = ("_attributes", "_filter")

    def __init__(self, ask: Any, attributes: Labels) -> None:
        self._filter = ask
        self._attributes = attributes

    def may_want(self, *, sampled: bool) -> bool:
        """Return whether a sample may become an exemplar: that is not known before it is asked for."""
        return True

    def wants(self, value: float, moment: Moment) -> bool:
        """Return whether a sample may become an exemplar."""
        return bool(self._filter.should_sample(value, moment.time_unix_nano, self._attributes, moment.context))

    def among(self, samples: Samples) -> Sequence[Sample]:
        """Return the samples that may become exemplars, in order."""
        return [sample for sample in samples if self.wants(*sample)]


def _always() -> bool:
    return True


class _Measured:
    """What an aggregation reads of a measurement, with a value that can be set again."""

    __slots__ = ("attributes", "context", "time_unix_nano", "value")

    def __init__(self, attributes: Labels) -> None:
        self.attributes = attributes
        self.value: float = 0
        self.time_unix_nano = 0
        self.context: Context | None = None

    def be(self, value: float, moment: Moment, wanted: bool) -> None:
        """Become another sample; its context is read of an exemplar only."""
        self.value = value
        self.time_unix_nano = moment.time_unix_nano
        self.context = moment.context if wanted else None


class Stream:
    """One stream of a reader, or a reader of an unknown kind as a whole.

    ``kind``: how its aggregation takes samples; ``other`` takes plain measurements only.  ``edges``: between the
    buckets of an explicit one.
    """

    __slots__ = ("_instrument", "_keys", "_sdk", "_target", "edges", "kind")

    def __init__(self, target: Any, instrument: Any, sdk: SdkMetrics) -> None:
        self._target = target
        self._instrument = instrument
        self._sdk = sdk
        self._keys: dict[int, tuple[Labels, Hashable]] = {}
        # A class of somebody's own may count otherwise than the one it is derived from: the type is compared exactly.
        self.kind: Kind = sdk.kinds.get(type(target._aggregation), "other") if type(target) is sdk.match else "other"
        self.edges: Edges = NO_EDGES
        if self.kind == "explicit":
            edges = edges_of(target._aggregation._boundaries)
            if edges is None:
                self.kind = "other"
            else:
                self.edges = edges

    def _key(self, attributes: Labels) -> Hashable:
        """Return what the SDK files the attributes under, as far as the view keeps them."""
        # The same combination is the same object: its identity is looked up, and it lives as long as its entry.
        known = self._keys.get(id(attributes))
        if known is not None:
            return known[1]
        if len(self._keys) >= MOST_KEYS:
            self._keys.clear()
        kept = self._target._view._attribute_keys
        key = self._sdk.key(dict(attributes) if kept is None else {k: v for k, v in attributes.items() if k in kept})
        self._keys[id(attributes)] = (attributes, key)
        return key

    def has(self, attributes: Labels) -> bool:
        """Return whether there is an aggregation for these attributes."""
        return self._key(attributes) in self._target._attributes_aggregation

    def add(self, attributes: Labels, tally: Tally) -> bool:
        """Add to an explicit-bucket aggregation; False where there is none for these attributes.

        There is none before the first sample, after a delta collection, and beyond the cardinality limit.
        """
        key = self._key(attributes)
        # The stream stays locked so that a delta collection cannot discard the aggregation in between.
        with self._target._lock:
            aggregation = self._target._attributes_aggregation.get(key)
            if self._sdk.kinds.get(type(aggregation)) != "explicit":
                return False
            _add_tally(aggregation, tally)
            for value, moment in tally.offers:
                aggregation._reservoir.offer(value, moment.time_unix_nano, attributes, moment.context)
        return True

    def add_total(self, attributes: Labels, total: float) -> bool:
        """Add to a sum, without an exemplar; False where there is none for these attributes."""
        key = self._key(attributes)
        with self._target._lock:
            aggregation = self._target._attributes_aggregation.get(key)
            if aggregation is None:
                return False
            measured = _Measured(attributes)
            measured.value = total
            aggregation.aggregate(measured, False)
        return True

    def aggregate(self, attributes: Labels, samples: Sequence[tuple[float, Moment, bool]], start: int = 0) -> int:
        """Let the aggregation take samples one by one, past the look-ups; return the index it came to.

        Each comes with whether it becomes an exemplar.  It stops early where the attributes have no aggregation.
        """
        key, measured = self._key(attributes), _Measured(attributes)
        while start < len(samples):
            with self._target._lock:
                aggregation = self._target._attributes_aggregation.get(key)
                if aggregation is None:
                    break
                for value, moment, wanted in samples[start : start + CHUNK]:
                    measured.be(value, moment, wanted)
                    aggregation.aggregate(measured, wanted)
            start += CHUNK
        return min(start, len(samples))

    def measure(self, attributes: Labels, value: float, moment: Moment, wanted: bool) -> None:
        """Hand a sample to the stream as the SDK's own measurement."""
        measurement = self._sdk.measurement(value, moment.time_unix_nano, self._instrument, moment.context, attributes)
        self._target.consume_measurement(measurement, wanted)


def _add_tally(aggregation: Any, tally: Tally) -> None:
    # The stream's lock is held already. `collect()` takes the two in the same order, so there is no deadlock.
    with aggregation._lock:
        buckets = aggregation._value
        # A delta collection leaves None; the SDK makes the counts anew with the next sample, and so does this.
        if buckets is None:
            buckets = aggregation._value = [0] * (len(aggregation._boundaries) + 1)
        for number, count in tally.counts:
            buckets[number] += count
        aggregation._sum += tally.total
        # A view may have switched both off.
        if aggregation._record_min_max:
            aggregation._min = min(aggregation._min, tally.low)
            aggregation._max = max(aggregation._max, tally.high)
