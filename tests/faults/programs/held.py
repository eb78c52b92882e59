"""Serves in turns, as it is told, and says how long that held its thread: ``held.py KIND``.

``KIND``: ``ours`` (under ``configure()``), ``plain`` (the same spans by the plain API and a BatchSpanProcessor) or
``simple`` (ours, with a processor that exports on the serving thread: what must not be).  Each has a metric reader that
collects the same series.

Each line of input is a turn, ``COUNT [alone] [together]``; a line of JSON answers it, one :class:`Sample` a request.
``alone``: no thread takes the interpreter from one that does not let go, so whatever the serving thread waits for is a
lock, a file or a socket.  ``together``: all are served first, then all end.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

import otel_lifecycle as lifecycle
from otel_lifecycle.processor import LifecycleSpanProcessor
from tests.faults.programs.serving import say

TOKENS = 100
FOREVER = 1000.0
"""Seconds for which no other thread takes the interpreter, in a turn that is served alone."""


class Sample(NamedTuple):
    """One request: nanoseconds of wall and of the thread's CPU, and how often the thread waited.

    ``end_…`` is its end, ``whole_…`` all of it from arrival on.
    """

    end_wall: int
    end_cpu: int
    end_waits: int
    whole_wall: int
    whole_cpu: int
    whole_waits: int


class Kind(NamedTuple):
    """How a request is served up to its end, and how it is ended."""

    serve: Callable[[], Any]
    end: Callable[[Any], None]


# ---------------------------------------------------------------------------------------------------------- the kinds


def by_us(tracers: TracerProvider | None = None) -> Kind:
    """Serve by the package; with the global providers unless others are given."""

    def serve() -> Any:
        request = lifecycle.request(model="tiny", input_tokens=7, tracer_provider=tracers)
        request.admit()
        request.input_ready()
        request.first_token()
        for _ in range(TOKENS - 1):
            request.token()
        return request

    return Kind(serve, lambda request: request.complete())


def ours() -> Kind:
    """Serve as an app does that leaves the set-up to the package."""
    lifecycle.configure()
    return by_us()


def simple() -> Kind:
    """Serve by the package, each span exported where it ends."""
    return by_us(tracing(LifecycleSpanProcessor(SimpleSpanProcessor(OTLPSpanExporter()), meter_provider=metering())))


class Kept(SpanProcessor):
    """Keeps the spans that ended, and the attributes that the first of them was started with."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.spans: list[ReadableSpan] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Keep the attributes."""
        self.given = self.given or dict(span.attributes or {})

    def on_end(self, span: ReadableSpan) -> None:
        """Keep the span."""
        self.spans.append(span)


def plain() -> Kind:
    """Make the spans of one of our requests again and again, each call made where ours is made."""
    kept = Kept()
    serve, end = by_us(tracing(LifecycleSpanProcessor(kept, meter_provider=metering())))
    end(serve())
    *stages, root = kept.spans
    set_at_end = {name: value for name, value in (root.attributes or {}).items() if name not in kept.given}
    tracer = tracing(BatchSpanProcessor(OTLPSpanExporter())).get_tracer("plain")

    def start_span() -> trace.Span:
        return tracer.start_span(root.name, Context(), root.kind, kept.given, start_time=root.start_time)

    def end_span(span: trace.Span) -> None:
        for event in root.events:
            span.add_event(event.name, event.attributes, event.timestamp)
        span.set_attributes(set_at_end)
        context = trace.set_span_in_context(span, Context())
        for stage in stages:
            child = tracer.start_span(stage.name, context, attributes=stage.attributes, start_time=stage.start_time)
            child.end(stage.end_time)
        span.end(root.end_time)

    return Kind(start_span, end_span)


def tracing(processor: SpanProcessor) -> TracerProvider:
    """Return a tracer provider with that processor."""
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(processor)
    return tracers


def metering() -> MeterProvider:
    """Return a meter provider that exports as the one of ``configure()`` does."""
    return MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], shutdown_on_exit=False)


KINDS = {"ours": ours, "plain": plain, "simple": simple}

# ---------------------------------------------------------------------------------------------------------- measuring

Reading = tuple[int, int, int]


def reading() -> Reading:
    """Read the clock, the thread's CPU, and how often the thread has let go of its processor to wait."""
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return time.perf_counter_ns(), time.thread_time_ns(), usage.ru_nvcsw


def since(before: Reading) -> Reading:
    """Return what has passed."""
    wall, cpu, waits = (now - then for now, then in zip(reading(), before, strict=True))
    return wall, cpu, waits


def served(kind: Kind, count: int) -> Iterator[tuple[Any, Reading]]:
    """Serve requests up to their ends; yield each with what it took."""
    for _ in range(count):
        before = reading()
        request = kind.serve()
        yield request, since(before)


def ended(kind: Kind, requests: Iterable[tuple[Any, Reading]]) -> Iterator[Sample]:
    """End the requests as they come."""
    for request, taken in requests:
        before = reading()
        kind.end(request)
        end = since(before)
        yield Sample(*end, *map(sum, zip(taken, end, strict=True)))


def main(name: str) -> None:
    """Run."""
    # What a log handler does is the server's own; this one lets no request wait for a file.
    logging.getLogger().addHandler(logging.NullHandler())
    kind = KINDS[name]()
    usual = sys.getswitchinterval()
    for line in sys.stdin:
        count, *manner = line.split()
        sys.setswitchinterval(FOREVER if "alone" in manner else usual)
        # Whoever waits for the interpreter already waits by the interval there was.
        time.sleep(5 * usual)
        requests: Iterable[tuple[Any, Reading]] = served(kind, int(count))
        if "together" in manner:
            requests = list(requests)
        say(json.dumps(list(ended(kind, requests))))
        sys.setswitchinterval(usual)


if __name__ == "__main__":
    main(sys.argv[1])
