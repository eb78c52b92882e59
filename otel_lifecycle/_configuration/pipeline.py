"""The providers of one process: built from settings, shut down in order, silent in a child that inherited them."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from math import isfinite
from operator import index
from time import monotonic
from typing import Any

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from otel_lifecycle import semconv
from otel_lifecycle._configuration.exporter_lookup import metric_readers, span_processor
from otel_lifecycle._configuration.otlp_file import OtlpFile
from otel_lifecycle._configuration.settings import Settings
from otel_lifecycle._core.text import shown
from otel_lifecycle._log import say
from otel_lifecycle._version import __version__
from otel_lifecycle.processor import LifecycleSpanProcessor

MEGABYTE = 1_000_000
INSTANCE_ID = "service.instance.id"
# The SDK's default: over a range of 1:1000 the buckets are 4.4 % wide, over 1:1,000,000 they are 9 %.
NATIVE_BUCKETS = 160
_RESOURCE_METRICS = {
    "cache_usage": semconv.CACHE_USAGE,
    "memory_used": semconv.MEMORY_USED,
    "device_utilization": semconv.DEVICE_UTILIZATION,
}


class Pipeline:
    """A tracer provider, a meter provider and the processor between them.

    ``tracer_provider`` or ``meter_provider`` given is the app's own: used, not built, and not shut down.
    """

    def __init__(
        self, settings: Settings, *, tracer_provider: Any = None, meter_provider: Any = None, child: bool = False
    ) -> None:
        self.settings = settings
        _import_now()
        resource = build_resource(settings, child=child)
        self.owns_meters = meter_provider is None
        self.owns_spans = tracer_provider is None
        file = None if settings.file is None else OtlpFile(settings.file, settings.file_max_mb * MEGABYTE)
        self.meter_provider = (
            _meter_provider(settings, resource, file, child=child) if meter_provider is None else meter_provider
        )
        self.processor = LifecycleSpanProcessor(
            span_processor(settings, file) if self.owns_spans else None,
            meter_provider=self.meter_provider,
            dominance_threshold=settings.dominance_threshold,
            slo=settings.slo,
            strict=settings.strict,
            token_times=settings.token_times,
            compat=settings.compat,
            interference=settings.interference,
            tenant_metrics=settings.tenant_metrics,
            gen_ai_metrics=settings.gen_ai_metrics,
            gen_ai_usage=settings.gen_ai_usage,
        )
        # A child gets a new pipeline only in place of providers of our own; those of the app it keeps using.
        self.processor.survives_fork = self.owns_spans and self.owns_meters
        self.tracer_provider = _tracer_provider(settings, resource) if tracer_provider is None else tracer_provider
        self.tracer_provider.add_span_processor(self.processor)
        observe_resources(self.meter_provider, settings)
        self._closers = [_Closer(self._end_requests)]
        if self.owns_spans:
            self._closers.append(_Closer(self.tracer_provider.shutdown))
        if self.owns_meters:
            self._closers.append(_Closer(self.meter_provider.shutdown))

    def shutdown(self, timeout: float) -> bool:
        """End the open requests, then flush and shut both signals; give up, and say so, after ``timeout`` seconds.

        Ending requests gives the exporters their last spans and counts, so it comes first.  An exporter that hangs
        keeps a daemon thread, not the caller.
        """
        # One deadline for all of them: the second signal gets what the first has left.
        deadline = monotonic() + timeout
        first, *others = self._closers
        first.begin()
        done = first.wait(deadline - monotonic())
        for closer in others:
            closer.begin()
        return all(closer.wait(deadline - monotonic()) for closer in others) and done

    def flush(self, timeout: float) -> None:
        """Send what has ended so far; the providers go on."""
        milliseconds = int(timeout * 1000)
        self.tracer_provider.force_flush(milliseconds)
        self.meter_provider.force_flush(milliseconds)

    def _end_requests(self) -> None:
        # An app's own exporter may hang at the spans that end here, so this too is done on a thread of its own.
        self.processor.end_requests()
        if not self.owns_spans:
            self.processor.shutdown()


class _Closer:
    """A waiting daemon thread that shuts one provider down on request.

    It is started with the provider, because Python 3.12 starts no thread while the interpreter exits.
    """

    def __init__(self, step: Callable[[], Any]) -> None:
        self._begin = threading.Event()
        self._step = step
        self._thread = threading.Thread(target=self._run, name="otel-lifecycle-shutdown", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._begin.wait()
        self._step()

    def begin(self) -> None:
        """Start the shutdown."""
        self._begin.set()

    def wait(self, seconds: float) -> bool:
        """Return whether the shutdown was done within so many seconds."""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()


def build_resource(settings: Settings, *, child: bool = False) -> Resource:
    """Return the resource: the environment's, the service's name, and an instance id that no other process has."""
    attributes = dict(settings.resource_attributes)
    if settings.service_name is not None:
        attributes["service.name"] = settings.service_name
    resource = Resource.create(attributes)
    given = INSTANCE_ID in attributes or INSTANCE_ID in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    # A child gets an id of its own even where one was given: two processes with one id overwrite each other's series.
    if child or not given:
        resource = resource.merge(Resource({INSTANCE_ID: str(uuid.uuid4())}))
    return resource


def _tracer_provider(settings: Settings, resource: Resource) -> TracerProvider:
    sampler = settings.sampler
    if isinstance(sampler, float):
        sampler = ParentBased(TraceIdRatioBased(sampler))
    # The SDK's own exit hook has no time limit; shutdown() has one.
    return TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)


def _meter_provider(settings: Settings, resource: Resource, file: OtlpFile | None, *, child: bool) -> MeterProvider:
    readers = metric_readers(settings, file, child=child)
    views = [native_histograms()] if settings.native_histograms else []
    return MeterProvider(readers, resource=resource, shutdown_on_exit=False, views=views)


def native_histograms() -> View:
    """Return the view that makes exponential histograms of this package's instruments, and of no others."""
    return View(
        instrument_type=Histogram,
        meter_name=semconv.SCOPE,
        aggregation=ExponentialBucketHistogramAggregation(max_size=NATIVE_BUCKETS),
    )


def _import_now() -> None:
    """Import what an HTTP exporter would at its first export.

    A fork in the middle of that leaves a child in which the import, and with it every export, never finishes.
    """
    for name in ("netrc", "encodings.idna"):
        import_module(name)


def observe_resources(meter_provider: Any, settings: Settings) -> None:
    """Make the gauges of cache, memory and device, each fed by the callback that was given for it."""
    meter = meter_provider.get_meter(semconv.SCOPE, __version__, schema_url=semconv.SCHEMA_URL)
    for name, callback in settings.resources.items():
        row = _RESOURCE_METRICS[name]
        meter.create_observable_gauge(
            row.name, callbacks=[_observer(name, callback)], unit=row.unit, description=row.description
        )


def _observer(name: str, callback: Callable[[], Any]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        value = callback()
        if value is None:  # Not known now: no sample, never 0.
            return []
        # A scalar of numpy or torch is iterable by its class, and a number all the same.
        pairs = value if isinstance(value, Iterable) and not hasattr(value, "__float__") else [(value, None)]
        return [observation for pair in pairs for observation in _observed(name, pair)]

    return observe


def _observed(name: str, pair: Any) -> list[Observation]:
    """Return one sample as the exporter can encode it: one that it cannot would lose every metric of its export."""
    try:
        value, attributes = pair
        if not (attributes is None or isinstance(attributes, Mapping)):
            raise TypeError("its attributes are not a mapping")
        return [Observation(_number(value), attributes)]
    except (TypeError, ValueError, OverflowError) as error:
        say(f"resources.{name}", f"resources[{name!r}] gave {shown(pair)}; it is left out: {error}")
        return []


def _number(value: Any) -> int | float:
    """Return a number of whatever library as Python's own; ValueError unless it is finite and fits into 64 bits."""
    if not hasattr(value, "__float__"):
        raise TypeError("it is not a number")
    try:
        # Integers first: a float loses the low digits of a large count.
        number: int | float = int(index(value))
    except TypeError:
        number = float(value)
    if not (-(2**63) <= number < 2**63 if isinstance(number, int) else isfinite(number)):
        raise ValueError("it is not finite, or does not fit into 64 bits")
    return number
