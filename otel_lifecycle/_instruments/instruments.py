"""The instruments, made from the metric table, and the attribute sets they are recorded with.

There is one set of instruments for each meter provider, however many processors record into it.  An attribute set is
built once for each combination and then looked up.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from otel_lifecycle import semconv
from otel_lifecycle._core.labels import RequestLabels
from otel_lifecycle._core.text import Bounded
from otel_lifecycle._instruments._bulk import BulkHistogram
from otel_lifecycle._instruments._direct import QuickCounter
from otel_lifecycle._instruments._occasion import Occasion
from otel_lifecycle._log import say
from otel_lifecycle._runtime import runtime
from otel_lifecycle._version import __version__
from otel_lifecycle.semconv import Metric

MAX_NAMES: Final = 32
MAX_ERROR_TYPES: Final = 16
MAX_TRAFFIC: Final = 8
MAX_COMBINATIONS: Final = 1000

Combination = tuple[Any, ...]


class Instruments:
    """Every instrument of one meter provider."""

    def __init__(self, meter_provider: MeterProvider) -> None:
        meter = meter_provider.get_meter(semconv.SCOPE, __version__, schema_url=semconv.SCHEMA_URL)
        self._counters = {row.name: _counter(meter, row) for row in semconv.METRICS if row.kind == "counter"}
        self._histograms = {row.name: _histogram(meter, row) for row in semconv.METRICS if row.kind == "histogram"}
        self._gaps = self._histograms[semconv.INTER_TOKEN_LATENCY.name]
        self._sets: dict[str, dict[Combination, dict[str, Any]]] = {row.name: {} for row in semconv.METRICS}
        self._names = {name: Bounded(MAX_NAMES) for name in ("operation", "provider", "model")}
        self._names["error"] = Bounded(MAX_ERROR_TYPES)
        self._names["phase"] = Bounded(MAX_NAMES)
        self._names["traffic"] = Bounded(MAX_TRAFFIC)
        self._active_seen: dict[Combination, None] = {}
        self._recorders: weakref.WeakSet[Any] = weakref.WeakSet()
        _observe(meter, semconv.ACTIVE_REQUESTS, self._observe_active)
        _observe(meter, semconv.OLDEST_REQUEST_AGE, self._observe_oldest)

    def attach(self, recorder: object) -> None:
        """Observe the open requests of this processor too."""
        self._recorders.add(recorder)

    def labels(self, labels: RequestLabels) -> Combination:
        """Return what every metric of a request bears, its names bounded: operation, provider, model, traffic."""
        names = self._names
        return (
            names["operation"].admit(labels.operation),
            None if labels.provider is None else names["provider"].admit(labels.provider),
            None if labels.model is None else names["model"].admit(labels.model),
            None if labels.traffic == "live" else names["traffic"].admit(labels.traffic),
        )

    def error(self, error_type: str | None) -> str | None:
        """Return an error type, bounded."""
        return None if error_type is None else self._names["error"].admit(error_type)

    def add(self, occasion: Occasion, metric: Metric, amount: int, labels: Combination, *own: Any) -> None:
        """Count; ``own`` are the values of the metric's own attributes in the table's order, None for absent."""
        self._counters[metric.name].add(amount, self.attributes(metric, labels, own), occasion)

    def record(self, occasion: Occasion, metric: Metric, seconds: float | None, labels: Combination, *own: Any) -> None:
        """Record one duration; nothing of None."""
        if seconds is not None:
            self._histograms[metric.name].record(seconds, self.attributes(metric, labels, own), occasion)

    def record_gaps(self, occasion: Occasion, gaps: Sequence[int], labels: Combination) -> None:
        """Record inter-token gaps, nanoseconds."""
        if gaps:
            self._gaps.record_many(gaps, self.attributes(semconv.INTER_TOKEN_LATENCY, labels, ()), occasion)

    def record_startup(self, phase: str, seconds: float, model: str | None, context: Context | None) -> None:
        """Record a cold-start phase; it belongs to no request, so it bears neither operation nor provider."""
        labels = (None, None, None if model is None else self._names["model"].admit(model), None)
        named = self._names["phase"].admit(phase)
        self.record(Occasion(context), semconv.STARTUP_DURATION, seconds, labels, named)

    def attributes(self, metric: Metric, labels: Combination, own: Combination) -> dict[str, Any]:
        """Return the attribute set of a combination; beyond 1000 of a metric its open names are ``_OTHER``."""
        sets = self._sets[metric.name]
        key = labels + own
        known = sets.get(key)
        if known is not None:
            return known
        if len(sets) >= MAX_COMBINATIONS:
            labels, own = _overflow(labels), _overflow_own(metric, own)
        # Of those beyond the limit there are few: all of their values come from tables.
        return sets.setdefault(labels + own, _attributes(metric, labels, own))

    # ---------------------------------------------------------------------------------------- observables

    def _open(self) -> Iterator[tuple[Combination, str, int | None]]:
        """Yield labels, stage and age of every open request that is a whole one of ours."""
        runtime().housekeep(now=True)
        for request in runtime().snapshot():
            active = request.active()
            if active is not None and request.assessor in self._recorders and request.labels.role == "whole":
                stage, age = active
                yield self.labels(request.labels), stage, age

    def _observe_active(self, options: CallbackOptions) -> list[Observation]:
        counts: dict[Combination, int] = dict.fromkeys(self._active_seen, 0)
        for labels, stage, _ in self._open():
            key = (*labels, stage)
            counts[key] = counts.get(key, 0) + 1
        self._active_seen.update(dict.fromkeys(counts))
        return [
            Observation(count, self.attributes(semconv.ACTIVE_REQUESTS, key[:4], key[4:]))
            for key, count in counts.items()
        ]

    def _observe_oldest(self, options: CallbackOptions) -> list[Observation]:
        oldest: dict[Combination, int] = {}
        for labels, _, age in self._open():
            if age is not None:
                oldest[labels] = max(oldest.get(labels, 0), age)
        return [
            Observation(age / 1e9, self.attributes(semconv.OLDEST_REQUEST_AGE, labels, ()))
            for labels, age in oldest.items()
        ]


def _overflow(labels: Combination) -> Combination:
    *names, traffic = labels
    return (*(None if name is None else semconv.OTHER for name in names), traffic)


def _overflow_own(metric: Metric, own: Combination) -> Combination:
    return tuple(
        semconv.OTHER if name == semconv.ERROR_TYPE and value is not None else value
        for name, value in zip(metric.attributes, own, strict=True)
    )


def _attributes(metric: Metric, labels: Combination, own: Combination) -> dict[str, Any]:
    operation, provider, model, traffic = labels
    attributes = {
        semconv.GEN_AI_OPERATION_NAME: operation,
        semconv.GEN_AI_PROVIDER_NAME: provider,
        semconv.GEN_AI_REQUEST_MODEL: model,
        semconv.TRAFFIC: traffic,
        **dict(zip(metric.attributes, own, strict=True)),
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _counter(meter: Meter, row: Metric) -> Any:
    return QuickCounter(meter.create_counter(row.name, unit=row.unit, description=row.description))


def _histogram(meter: Meter, row: Metric) -> Any:
    return BulkHistogram(
        meter.create_histogram(
            row.name, unit=row.unit, description=row.description, explicit_bucket_boundaries_advisory=row.buckets
        )
    )


def _observe(meter: Meter, row: Metric, callback: Callable[[CallbackOptions], Iterable[Observation]]) -> None:
    """Create an observable whose callback, held by the meter provider, never raises into a collection."""

    def guarded(options: CallbackOptions) -> Iterable[Observation]:
        try:
            return callback(options)
        except Exception as error:  # noqa: BLE001  # a collection goes on without this instrument
            say(row.name, f"{row.name} could not be observed", level=logging.ERROR, error=error)
            return []

    gauge = row.kind == "observable_gauge"
    create = meter.create_observable_gauge if gauge else meter.create_observable_up_down_counter
    create(row.name, callbacks=[guarded], unit=row.unit, description=row.description)


_instruments: weakref.WeakKeyDictionary[MeterProvider, Instruments] = weakref.WeakKeyDictionary()


def instruments_of(meter_provider: MeterProvider) -> Instruments:
    """Return the instruments of a meter provider, made once."""
    known = _instruments.get(meter_provider)
    if known is None:
        # What was made before the app set its global provider went through the API's proxy, and records there now.
        behind = ((getattr(key, "_real_meter_provider", None), made) for key, made in list(_instruments.items()))
        known = next((made for real, made in behind if real is meter_provider), None)
    if known is None:
        known = _instruments[meter_provider] = Instruments(meter_provider)
    return known
