"""The instruments of one meter provider, made from the metric table, and what is observed when they are collected.

There is one set for each meter provider, however many processors record into it.  Requests only hand values over
(:class:`~otel_lifecycle._instruments.buffer.FoldBuffer`); they are folded in a callback of an observable instrument.
An SDK runs all callbacks of a collection before it reads any instrument, so that one collection has both, whatever the
order in which the instruments were made, and for every kind of reader: there is no other public way to be called.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby
from threading import RLock
from typing import Any, cast

from opentelemetry import metrics
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from otel_lifecycle import semconv
from otel_lifecycle._core.labels import RequestLabels
from otel_lifecycle._core.usual import UsualEnd, UsualFields, UsualVerdict
from otel_lifecycle._core.verdict import Finished, Verdict
from otel_lifecycle._instruments.buffer import AS_GAPS, SORTED, FoldBuffer
from otel_lifecycle._instruments.columns import Columns, Take
from otel_lifecycle._instruments.delivery import CounterOutlet, HistogramOutlet
from otel_lifecycle._instruments.label_sets import SHARED, AttributeSets, Combination, LabelSets, MetricColumns
from otel_lifecycle._instruments.moment import now_in
from otel_lifecycle._instruments.process import ServingProcess
from otel_lifecycle._instruments.recording import FinishedRequest, HandedOver, OpenGaps, SingleSample, StartupPhase
from otel_lifecycle._instruments.usual import fold_usual
from otel_lifecycle._log import say
from otel_lifecycle._runtime import runtime
from otel_lifecycle._version import __version__
from otel_lifecycle.semconv import Metric


class Instruments:
    """Every instrument of one meter provider."""

    def __init__(self, meter_provider: MeterProvider) -> None:
        meter = meter_provider.get_meter(semconv.SCOPE, __version__, schema_url=semconv.SCHEMA_URL)
        # Gaps decide whether a fold is cheap: a request can have a thousand, and a dozen of all other samples.
        self._gaps = _histogram(meter, semconv.INTER_TOKEN_LATENCY)
        self._columns = Columns()
        self._attributes = AttributeSets()
        self._sets = LabelSets(MetricColumns(self._attributes, self._columns, _takes(meter, self._gaps)))
        self._buffer: FoldBuffer[HandedOver | UsualFields] = FoldBuffer(self._fold, lambda: self._gaps.bulk)
        # By itself, without a call in between: nearly every request comes this way.
        self.take_usual: Callable[[UsualFields, int], None] = self._buffer.put
        # Never emptied: a combination that is no longer observed would leave its last count standing in the backend.
        # Its labels are bounded.
        self._active_seen: dict[Combination, None] = {}
        # Replaced where a child forgets what it inherited.
        self._inherited = object()
        # Weak, since the meter provider keeps this object, and a dropped processor must not live as long.
        self._recorders: weakref.WeakSet[Any] = weakref.WeakSet()
        _observe(meter, semconv.ACTIVE_REQUESTS, self._observe_active)
        self._process = ServingProcess(self._recorders)
        _observe(meter, semconv.OLDEST_REQUEST_AGE, self._observe_oldest)
        _observe(meter, semconv.SERVERS, self._process.servers)
        _observe(meter, semconv.SERVER_START_TIME, self._process.start_time)

    def attach(self, recorder: object, *, tenants: bool = False) -> None:
        """Observe the open requests of this processor too; ``tenants``: label metrics with the tenant from now on."""
        self._recorders.add(recorder)
        self._sets.label_tenants(tenants)

    def retire(self, recorder: object) -> None:
        """Stop counting this processor as one that serves: it was shut down in order."""
        self._process.retire(recorder)

    # What requests hand over.

    def finished(
        self, finished: Finished, verdict: Verdict, context: Context | None, *, convention: bool = True
    ) -> None:
        """Take all that a finished request adds to the metrics; its samples have the trace of the context.

        ``convention``: the server metrics of the GenAI convention, too.
        """
        value = FinishedRequest(finished, verdict, now_in(context), convention)
        self._buffer.put(value, AS_GAPS + self._of_sorted(len(verdict.output_gaps)))

    def judged(self, end: UsualEnd, verdict: UsualVerdict) -> None:
        """Take a usual request that was judged."""
        # Its tokens are freed now, with their request: later they would have left the processor's cache.
        gaps = 0 if end.log is None else self._of_sorted(len(end.log))
        self._buffer.put(tuple(end._replace(log=None, gaps=None, verdict=verdict)), gaps)

    def _of_sorted(self, gaps: int) -> int:
        """Return what so many sorted gaps count in the buffer."""
        return gaps // SORTED if self._gaps.bulk else gaps

    def gaps(self, gaps: Sequence[int], labels: RequestLabels, context: Context | None) -> None:
        """Take inter-token gaps of a stream that goes on, nanoseconds."""
        self._buffer.put(OpenGaps(labels, sorted(gaps), now_in(context)), len(gaps))

    def single(
        self, metric: Metric, value: float, labels: RequestLabels, *own: str, context: Context | None = None
    ) -> None:
        """Take one sample: a count, or seconds; ``own`` are the values of the metric's own attributes."""
        self._buffer.put(SingleSample(labels, metric, value, own, now_in(context)))

    def startup(self, phase: str, seconds: float, model: str | None, context: Context | None) -> None:
        """Take a cold-start phase."""
        self._buffer.put(StartupPhase(phase, model, seconds, now_in(context)))

    # What becomes of it.

    def fold(self) -> None:
        """Bring everything handed over so far into the instruments."""
        self._buffer.fold()

    def forget(self) -> None:
        """Drop what a forked child inherited: its parent counts that."""
        self._inherited = object()
        self._buffer.forget()
        self._columns.forget()

    def _fold(self, values: list[HandedOver | UsualFields]) -> None:
        """Fold these values, and take off each that was begun; callers hold the buffer's lock."""
        inherited = self._inherited
        self._fold_in_order(values)
        if self._inherited is inherited:
            self._columns.flush()
        else:
            # A signal handler has forked meanwhile, and this is the child.
            self._columns.forget()

    def _fold_in_order(self, values: list[HandedOver | UsualFields]) -> None:
        # The order of the samples is that of the requests.
        for kind, group in groupby(values.copy(), type):
            alike = list(group)
            # Nearly all come without names, and those that follow each other are folded together.
            if kind is tuple or kind is UsualEnd:
                del values[: len(alike)]
                self._process.had_traffic = True
                fold_usual(cast("list[UsualFields]", alike), self._sets)
            else:
                for value in alike:
                    del values[0]
                    self._fold_one(cast("HandedOver", value))

    def _fold_one(self, value: HandedOver) -> None:
        if isinstance(value, FinishedRequest):
            self._process.had_traffic = True
        try:
            value.fold(self._sets)
        except Exception as error:  # noqa: BLE001  # one bad value must not cost the others
            say("fold", "the metrics of a request could not be recorded", level=logging.ERROR, error=error)

    # What is observed.

    def _collected(self) -> None:
        """End requests whose handle is gone, then fold what they and all others handed over."""
        runtime().housekeep(now=True)
        self._buffer.fold()

    def _open(self) -> Iterator[tuple[Combination, str, int | None]]:
        """Yield labels, stage and age of every open request that is a whole one of ours."""
        for request in runtime().snapshot():
            active = request.active()
            # The parts of a disaggregated request would count it twice.
            if active is not None and request.assessor in self._recorders and request.labels.role == "whole":
                stage, age = active
                yield self._sets.bounded(request.labels), stage, age

    def _observe_active(self, options: CallbackOptions) -> list[Observation]:
        # First: a request that ends here is not active any more.
        self._collected()
        counts: dict[Combination, int] = dict.fromkeys(self._active_seen, 0)
        for labels, stage, _ in self._open():
            key = (*labels, stage)
            counts[key] = counts.get(key, 0) + 1
        self._active_seen.update(dict.fromkeys(counts))
        self._process.had_traffic = self._process.had_traffic or bool(counts)
        return [
            Observation(count, self._attributes.of(semconv.ACTIVE_REQUESTS, key[:SHARED], key[SHARED:]))
            for key, count in counts.items()
        ]

    def _observe_oldest(self, options: CallbackOptions) -> list[Observation]:
        oldest: dict[Combination, int] = {}
        for labels, _, age in self._open():
            if age is not None:
                oldest[labels] = max(oldest.get(labels, 0), age)
        return [
            Observation(age / 1e9, self._attributes.of(semconv.OLDEST_REQUEST_AGE, labels, ()))
            for labels, age in oldest.items()
        ]


def _takes(meter: Meter, gaps: HistogramOutlet) -> dict[str, Take]:
    """Make the counters and histograms; return what takes the samples of each, by name."""
    takes: dict[str, Take] = {
        semconv.INTER_TOKEN_LATENCY.name: gaps.take_gaps,
        semconv.OUTPUT_GAP.name: _histogram(meter, semconv.OUTPUT_GAP).take_gaps,
    }
    for row in semconv.METRICS:
        if row.kind == "counter":
            counter = meter.create_counter(row.name, unit=row.unit, description=row.description)
            takes[row.name] = CounterOutlet(counter).take
        elif row.kind == "histogram" and row.name not in takes:
            takes[row.name] = _histogram(meter, row).take
    return takes


def _histogram(meter: Meter, row: Metric) -> HistogramOutlet:
    return HistogramOutlet(
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


_making = RLock()

# Weak keys: a provider that nobody holds any more takes its instruments with it.
_instruments: weakref.WeakKeyDictionary[MeterProvider, Instruments] = weakref.WeakKeyDictionary()

# A processor can outlive the meter provider that it was made with, and with it the requests that wait there.
_inherited_by_forks: weakref.WeakSet[Instruments] = weakref.WeakSet()


def instruments_of(meter_provider: MeterProvider) -> Instruments:
    """Return the instruments of a meter provider, made once."""
    # Making them registers callbacks, so a second set of a racing thread could not be thrown away.
    with _making:
        known = _instruments.get(meter_provider) or _made_before_it_was_global(meter_provider)
        if known is None:
            known = _instruments[meter_provider] = Instruments(meter_provider)
            _inherited_by_forks.add(known)
            _watch_forks()
    return known


def _made_before_it_was_global(meter_provider: MeterProvider) -> Instruments | None:
    """Return what was made through the API's stand-in for the global provider: it records into the real one now."""
    if meter_provider is not metrics.get_meter_provider():
        return None
    # The API's own classes are the stand-in, which there is one of, and the no-op provider, which keeps nothing.
    made = ((type(provider).__module__, instruments) for provider, instruments in list(_instruments.items()))
    return next((instruments for module, instruments in made if module.startswith("opentelemetry.metrics")), None)


# At the first use, because importing has no effects, and once, because a hook cannot be taken back.
@cache
def _watch_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget_in_child)


def _forget_in_child() -> None:
    global _making  # noqa: PLW0603  # another thread of the parent may have held it
    _making = RLock()
    for instruments in list(_inherited_by_forks):
        instruments.forget()
