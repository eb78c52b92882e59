"""Fresh OpenTelemetry providers around one LifecycleSpanProcessor, read back as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._once import Once

from otel_lifecycle._instruments import instruments
from tests.support.patient_reader import PatientReader
from tests.support.plain import Point, Span, plain_points, plain_span
from tests.support.registry import wrong_points, wrong_spans

if TYPE_CHECKING:
    import pytest
    from opentelemetry.sdk.trace.sampling import Sampler

RESOURCE = {"service.name": "tests", "service.instance.id": "one"}


class Telemetry:
    """A TracerProvider with a LifecycleSpanProcessor and an in-memory exporter, and a MeterProvider with a reader.

    ``order`` says which of the two span processors is registered first; with ``wrap`` the exporter hangs on the
    lifecycle processor as its ``next`` instead.  All other arguments go to LifecycleSpanProcessor.  The providers are
    not the global ones: hand ``tracer_provider`` to ``lifecycle.request``, or call :meth:`request`.
    """

    def __init__(
        self,
        *,
        order: str = "processor_first",
        wrap: bool = False,
        sampler: Sampler | None = None,
        reader: InMemoryMetricReader | None = None,
        **arguments: Any,
    ) -> None:
        from otel_lifecycle.processor import LifecycleSpanProcessor

        resource = Resource(RESOURCE)
        self.reader = reader or PatientReader()
        self.exporter = InMemorySpanExporter()
        self.meter_provider = MeterProvider([self.reader], resource=resource, shutdown_on_exit=False)
        self.tracer_provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
        export = SimpleSpanProcessor(self.exporter)
        self.processor = LifecycleSpanProcessor(
            *([export] if wrap else []), meter_provider=self.meter_provider, **arguments
        )
        processors = [self.processor] if wrap else [self.processor, export]
        for processor in processors if order == "processor_first" else reversed(processors):
            self.tracer_provider.add_span_processor(processor)

    def request(self, **arguments: Any) -> Any:
        """Open a request of these providers."""
        import otel_lifecycle as lifecycle

        return lifecycle.request(tracer_provider=self.tracer_provider, **arguments)

    def tracer(self, name: str = "another.library") -> trace.Tracer:
        """A tracer as another library would have it, for foreign spans."""
        return self.tracer_provider.get_tracer(name)

    def spans(self, name: str | None = None) -> list[Span]:
        """Every exported span in the order they ended; of that name if one is given."""
        spans = [plain_span(span) for span in self.exporter.get_finished_spans()]
        return [span for span in spans if name is None or span["name"] == name]

    def span(self, name: str) -> Span:
        """The one exported span of that name; AssertionError if there is none or more than one."""
        found = self.spans(name)
        assert len(found) == 1, f"{len(found)} spans {name!r} among {[span['name'] for span in self.spans()]}"
        return found[0]

    def points(self, metric: str | None = None) -> list[Point]:
        """Collect now: every point, sorted by metric and attributes; of one metric if given.

        The SDK hands an exemplar out once: a second collection has the counts, and the newer exemplars only.
        """
        points = plain_points(self.reader.get_metrics_data())
        assert wrong_points(points) == []
        return [point for point in points if metric is None or point["metric"] == metric]

    def point(self, metric: str, **match: Any) -> Point:
        """Collect now: the one point of a metric whose attributes hold ``match``; in a name, ``__`` is a dot."""
        wanted = {key.replace("__", "."): value for key, value in match.items()}
        points = self.points(metric)
        found = [point for point in points if wanted.items() <= point["attributes"].items()]
        assert len(found) == 1, f"{len(found)} points of {metric} with {wanted}: {[p['attributes'] for p in points]}"
        return found[0]

    def shutdown(self) -> None:
        """Shut both providers down, and hold every span against the registry; once is enough, twice does no harm."""
        # A second shutdown only logs a warning in the SDK, which a test that shuts down itself should not show.
        if not getattr(self, "_down", False):
            self._down = True
            self.tracer_provider.shutdown()
            self.meter_provider.shutdown()
            assert wrong_spans(self.exporter.get_finished_spans()) == []


def forget_global_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put OpenTelemetry's API back to where a new process starts, until the test ends.

    The API sets its global providers once and offers no way back, hence the private names.
    """
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    internal = metrics._internal
    monkeypatch.setattr(internal, "_METER_PROVIDER_SET_ONCE", Once())
    monkeypatch.setattr(internal, "_METER_PROVIDER", None)
    monkeypatch.setattr(internal, "_PROXY_METER_PROVIDER", internal._ProxyMeterProvider())
    # There is one stand-in in a process; what was made through the one before must not serve the new one.
    monkeypatch.setattr(instruments, "_instruments", WeakKeyDictionary())
