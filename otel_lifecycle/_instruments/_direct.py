"""From an instrument straight to the aggregations behind it, past what the SDK does anew for every sample.

``Histogram.record`` and ``Counter.add`` clean and hash the attributes of each sample, which costs more than adding it.
Attribute sets here are made once for each combination, so what the SDK files them under is looked up instead.  The
sample itself is taken by the aggregation's own ``aggregate``, whatever kind it is of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from opentelemetry.metrics import Counter, NoOpCounter, NoOpHistogram

from otel_lifecycle._instruments._occasion import Labels, Occasion, Sample
from otel_lifecycle._instruments._sdk_metrics import SdkMetrics, installed_sdk, ways_agree

_logger = logging.getLogger(__name__)

MOST_KEYS: Final = 4096
"""Attribute sets whose key a stream remembers."""


class Behind:
    """What an instrument of the API stands for: a proxy's own instrument, and the direct way if there is one.

    ``verify=False`` takes the direct way unproven, as its own proof must.
    """

    __slots__ = ("_instrument", "_known", "_verify")

    def __init__(self, instrument: Any, *, verify: bool = True) -> None:
        self._instrument = instrument
        self._verify = verify
        self._known: tuple[Any, Direct | None] = (None, None)
        if self.find()[0] is None and verify and hasattr(instrument, "_real_instrument"):
            # A provider may come later; the proof belongs here at set-up, not to the first request.
            verified_sdk()

    def find(self) -> tuple[Any, Direct | None]:
        """Return the real instrument, None where nothing keeps samples, and the direct way to its aggregations."""
        instrument = self._instrument
        while (behind := getattr(instrument, "_real_instrument", instrument)) is not instrument:
            instrument = behind
        known = self._known
        if known[0] is instrument:
            return known
        if isinstance(instrument, (NoOpCounter, NoOpHistogram)):
            return None, None
        self._known = known = (instrument, _direct_to(instrument, verify=self._verify))
        return known


class QuickCounter:
    """A counter of any provider; adding to the SDK's takes half as long."""

    __slots__ = ("_behind",)

    def __init__(self, counter: Counter, *, verify: bool = True) -> None:
        self._behind = Behind(counter, verify=verify)

    def add(self, amount: int, attributes: Labels, occasion: Occasion) -> None:
        """Add, as ``Counter.add`` does in the same context."""
        counter, direct = self._behind.find()
        if direct is not None and amount >= 0:
            direct.take(amount, attributes, occasion)
        elif counter is not None:
            counter.add(amount, attributes, occasion.context)


class Stream:
    """A stream of a reader, or a reader of another kind as a whole; ``known``: whether its inside is."""

    __slots__ = ("_keys", "_make", "known", "target")

    def __init__(self, target: Any, sdk: SdkMetrics) -> None:
        self.target = target
        self.known = type(target) is sdk.match
        self._make = sdk.key
        self._keys: dict[int, tuple[Labels, Hashable]] = {}

    def key(self, attributes: Labels) -> Hashable:
        """Return what the SDK files the attributes under, as far as the view keeps them."""
        # The same combination is the same object: its identity is looked up, and it lives as long as its entry.
        known = self._keys.get(id(attributes))
        if known is not None:
            return known[1]
        if len(self._keys) >= MOST_KEYS:
            self._keys.clear()
        kept = self.target._view._attribute_keys
        key = self._make(dict(attributes) if kept is None else {k: v for k, v in attributes.items() if k in kept})
        self._keys[id(attributes)] = (attributes, key)
        return key


class Direct:
    """The way from an SDK instrument into the aggregations of every reader and view."""

    __slots__ = ("_consumer", "_instrument", "_readers", "_streams", "enabled", "sdk")

    def __init__(self, instrument: Any, sdk: SdkMetrics) -> None:
        self.sdk = sdk
        # Newer SDKs can switch a meter off, and on again, at any time.
        self.enabled: Callable[[], bool] = getattr(instrument, "_is_enabled", _always)
        self._instrument = instrument
        self._consumer = instrument._measurement_consumer
        self._readers: object = None
        self._streams: list[Stream] = []

    def take(self, value: float, attributes: Labels, occasion: Occasion) -> None:
        """Take one sample that the instrument would not refuse."""
        if not self.enabled():
            return
        sample = Sample(value, attributes, occasion)
        wanted = self.wanted(value, attributes, occasion)
        for stream in self.streams():
            if stream.known:
                match, key = stream.target, stream.key(attributes)
                # The stream stays locked so that a delta collection cannot discard the aggregation in between.
                with match._lock:
                    aggregation = match._attributes_aggregation.get(key)
                    if aggregation is not None:
                        aggregation.aggregate(sample, wanted)
                        continue
            self.measure(stream, sample, wanted)

    def streams(self) -> list[Stream]:
        """Return every stream of every reader."""
        readers = self._consumer._reader_storages
        # A reader that comes or goes makes a new mapping; the streams of an instrument never change in the SDK.
        if self._readers is not readers:
            self._streams, self._readers = list(self._find_streams(readers)), readers
        return self._streams

    def _find_streams(self, readers: Mapping[Any, Any]) -> Iterator[Stream]:
        for storage in list(readers.values()):
            if type(storage) is self.sdk.storage:
                for match in storage._get_or_init_view_instrument_match(self._instrument):
                    yield Stream(match, self.sdk)
            else:
                yield Stream(storage, self.sdk)

    def wanted(self, value: float, attributes: Labels, occasion: Occasion) -> bool:
        """Ask the provider's filter whether the sample may become an exemplar."""
        return occasion.wanted(
            self._consumer._sdk_config.exemplar_filter, self.sdk.filters_by_context, value, attributes
        )

    def measure(self, stream: Stream, sample: Sample, wanted: bool) -> None:
        """Hand the sample to a stream or a reader as the SDK's own measurement."""
        measurement = self.sdk.measurement(
            sample.value, sample.time_unix_nano, self._instrument, sample.context, sample.attributes
        )
        stream.target.consume_measurement(measurement, wanted)


def _always() -> bool:
    return True


def _direct_to(instrument: Any, *, verify: bool) -> Direct | None:
    """Return the direct way; the SDK is not even imported for an instrument that is not its own."""
    if not type(instrument).__module__.startswith("opentelemetry.sdk."):
        return None
    sdk = verified_sdk() if verify else installed_sdk()
    if (
        sdk is None
        or not isinstance(instrument, (sdk.counter, sdk.histogram))
        or type(instrument._measurement_consumer) is not sdk.consumer
    ):
        return None
    return Direct(instrument, sdk)


@lru_cache(maxsize=1)
def verified_sdk() -> SdkMetrics | None:
    """Return the SDK's classes if the direct way leaves in it what the plain one does; found out once a process."""
    from otel_lifecycle._instruments._bulk import BulkHistogram

    sdk = installed_sdk()
    if sdk is not None and ways_agree(
        lambda histogram: BulkHistogram(histogram, verify=False), lambda counter: QuickCounter(counter, verify=False)
    ):
        return sdk
    _logger.warning("the installed opentelemetry-sdk is not one whose aggregations are known; metrics cost more")
    return None
