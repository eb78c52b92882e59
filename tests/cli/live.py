"""Traces as people have them: made by the live API and the real SDK, encoded by the real OTLP exporter."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_lifecycle import request
from otel_lifecycle.processor import LifecycleSpanProcessor
from tests.support.patient_reader import PatientReader

ARRIVED = 1_770_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class Server:
    """A process with real providers, whose spans and metrics stay at hand."""

    provider: TracerProvider
    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """What was exported so far."""
        return self.exporter.get_finished_spans()

    def proto(self) -> bytes:
        """Return the export request as protobuf: the bytes of a TracesData."""
        return proto_of(self.spans)

    def json_line(self) -> bytes:
        """Return the same as the Collector's file exporter writes it: ids as hex, a document a line."""
        return otlp_json(MessageToDict(encode_spans(self.spans)))

    def metrics_line(self) -> bytes:
        """Return the metrics as such a line."""
        data = self.reader.get_metrics_data()
        assert data is not None
        return json.dumps(MessageToDict(encode_metrics(data))).encode() + b"\n"

    def values(self, name: str) -> dict[tuple[tuple[str, Any], ...], Any]:
        """Return the points of a metric by their attributes: a number, or (count, sum) of a histogram."""
        data = self.reader.get_metrics_data()
        found: dict[tuple[tuple[str, Any], ...], Any] = {}
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name == name:
                        for point in metric.data.data_points:
                            key = tuple(sorted((point.attributes or {}).items()))
                            found[key] = getattr(point, "value", None) or (
                                getattr(point, "count", None),
                                getattr(point, "sum", None),
                            )
        return found


def proto_of(spans: Sequence[ReadableSpan]) -> bytes:
    """Return spans as the exporter encodes them."""
    return bytes(encode_spans(spans).SerializeToString())


def otlp_json(message: dict[str, Any]) -> bytes:
    """Return a message of the generic protobuf printer in OTLP's own JSON: ids as hex instead of base64."""
    for batch in message.get("resourceSpans", ()):
        for scope in batch["scopeSpans"]:
            for span in scope["spans"]:
                for key in ("traceId", "spanId", "parentSpanId"):
                    if span.get(key):
                        span[key] = base64.b64decode(span[key]).hex()
                for link in span.get("links", ()):
                    for key in ("traceId", "spanId"):
                        link[key] = base64.b64decode(link[key]).hex()
    return json.dumps(message).encode() + b"\n"


@contextmanager
def server(**options: Any) -> Iterator[Server]:
    """Give a process with a lifecycle processor (``options``) in front of its exporter."""
    exporter, reader = InMemorySpanExporter(), PatientReader()
    resource = Resource({"service.name": "tiny-llm", "host.arch": "amd64"})
    meters = MeterProvider([reader], resource=resource)
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(LifecycleSpanProcessor(meter_provider=meters, **options))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    try:
        yield Server(provider, exporter, reader)
    finally:
        provider.shutdown()
        meters.shutdown()


def serve(
    made: Server,
    times: Sequence[float | None],
    tokens: Sequence[float] = (),
    end: tuple[str, float] | None = None,
    start: float = 0.0,
    **conditions: Any,
) -> None:
    """Serve one request whose boundaries lie at ``times`` (admit, input_ready, first token) seconds after its arrival.

    ``tokens``: of every further token.  ``end``: event and time; None leaves it without one.
    """
    arrived = ARRIVED + round(start * 1e9)

    def at(seconds: float) -> int:
        return arrived + round(seconds * 1e9)

    conditions = {"model": "smollm2", **conditions}
    handle = request(tracer_provider=made.provider, arrived_at_ns=arrived, **conditions)
    marks: tuple[Callable[..., object], ...] = (handle.admit, handle.input_ready, handle.first_token)
    with handle:
        for mark, time in zip(marks, times, strict=False):
            if time is not None:
                mark(at_ns=at(time))
        for time in tokens:
            handle.token(at_ns=at(time))
        if end is not None:
            event, time = end
            getattr(handle, event)(at_ns=at(time))
