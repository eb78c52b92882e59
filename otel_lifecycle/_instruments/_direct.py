"""From an instrument straight to the aggregations behind it, past what the SDK does anew for every sample.

``Histogram.record`` and ``Counter.add`` clean and hash the attributes of each sample, which costs more than adding it.
Attribute sets here are made once for each combination, so what the SDK files them under is looked up instead.  The
sample itself is taken by the aggregation's own ``aggregate``, whatever kind it is of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import lru_cache
from time import time_ns
from typing import Any, Final

from opentelemetry.context import Context, get_current
from opentelemetry.metrics import Counter, NoOpCounter, NoOpHistogram

from otel_lifecycle._instruments._sdk_metrics import Labels, SdkMetrics, installed_sdk, ways_agree

_logger = logging.getLogger(__name__)

MOST_KEYS: Final = 4096
"""Attribute sets whose key an instrument remembers."""


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

    def add(self, amount: int, attributes: Labels, context: Context | None = None) -> None:
        """Add, as ``Counter.add`` does with the same arguments."""
        counter, direct = self._behind.find()
        if direct is not None and amount >= 0:
            direct.take(amount, attributes, context)
        elif counter is not None:
            counter.add(amount, attributes, context)


class Sample:
    """What an aggregation reads of a measurement, with a value that can be set again."""

    __slots__ = ("attributes", "context", "time_unix_nano", "value")

    def __init__(self, value: float, attributes: Labels, context: Context) -> None:
        self.value = value
        self.attributes = attributes
        self.context = context
        self.time_unix_nano = time_ns()


class Direct:
    """The way from an SDK instrument into the aggregations of every reader and view."""

    __slots__ = ("_consumer", "_instrument", "_keys", "_readers", "_targets", "enabled", "sdk")

    def __init__(self, instrument: Any, sdk: SdkMetrics) -> None:
        self.sdk = sdk
        # Newer SDKs can switch a meter off, and on again, at any time.
        self.enabled: Callable[[], bool] = getattr(instrument, "_is_enabled", _always)
        self._instrument = instrument
        self._consumer = instrument._measurement_consumer
        self._keys: dict[tuple[tuple[str, str | bool], ...], Hashable] = {}
        self._readers: object = None
        self._targets: list[tuple[Any, bool]] = []

    def take(self, value: float, attributes: Labels, context: Context | None) -> None:
        """Take one sample that the instrument would not refuse."""
        if not self.enabled():
            return
        sample = Sample(value, attributes, context or get_current())
        wanted = self.wanted(sample)
        for target, known in self.targets():
            if known:
                key = self.key(target, attributes)
                # The stream stays locked so that a delta collection cannot discard the aggregation in between.
                with target._lock:
                    aggregation = target._attributes_aggregation.get(key)
                    if aggregation is not None:
                        aggregation.aggregate(sample, wanted)
                        continue
            self.measure(target, sample, wanted)

    def targets(self) -> list[tuple[Any, bool]]:
        """Return every stream of every reader, and whether its inside is known; a reader of another kind as a whole."""
        readers = self._consumer._reader_storages
        # A reader that comes or goes makes a new mapping; the streams of an instrument never change in the SDK.
        if self._readers is not readers:
            self._targets, self._readers = list(self._find_targets(readers)), readers
        return self._targets

    def _find_targets(self, readers: Mapping[Any, Any]) -> Iterator[tuple[Any, bool]]:
        for storage in list(readers.values()):
            if type(storage) is self.sdk.storage:
                for match in storage._get_or_init_view_instrument_match(self._instrument):
                    yield match, type(match) is self.sdk.match
            else:
                yield storage, False

    def wanted(self, sample: Sample) -> bool:
        """Ask the provider's filter whether the sample may become an exemplar."""
        ask = self._consumer._sdk_config.exemplar_filter.should_sample
        return bool(ask(sample.value, sample.time_unix_nano, sample.attributes, sample.context))

    def measure(self, target: Any, sample: Sample, wanted: bool) -> None:
        """Hand the sample to a stream or a reader as the SDK's own measurement."""
        measurement = self.sdk.measurement(
            sample.value, sample.time_unix_nano, self._instrument, sample.context, sample.attributes
        )
        target.consume_measurement(measurement, wanted)

    def key(self, match: Any, attributes: Labels) -> Hashable:
        """Return what the SDK files the attributes under, as far as the view keeps them."""
        kept = match._view._attribute_keys
        items = tuple(attributes.items() if kept is None else ((k, v) for k, v in attributes.items() if k in kept))
        key = self._keys.get(items)
        if key is None:
            if len(self._keys) >= MOST_KEYS:
                self._keys.clear()
            key = self._keys[items] = self.sdk.key(dict(items))
        return key


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
