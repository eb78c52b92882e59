"""What violations look like: in a live server, in spans of the plain OpenTelemetry API, and where they raise.

    python -m examples.broken_lifecycle

An illegal event is never applied and never raises into the server: it is counted, and written on the span.
"""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otel_lifecycle as lifecycle
from otel_lifecycle import semconv
from otel_lifecycle.errors import LifecycleError
from otel_lifecycle.processor import LifecycleSpanProcessor

SECOND = 1_000_000_000
NOON = 1_790_000_000 * SECOND


def live(provider: TracerProvider) -> None:
    """Serve four requests, each with a bug in how it marks its lifecycle."""
    with lifecycle.request(request_id="admitted twice", tracer_provider=provider) as request:
        request.admit()
        request.admit()
        request.input_ready()
        request.token()

    with lifecycle.request(request_id="never ended", tracer_provider=provider) as request:
        request.admit()

    with lifecycle.request(request_id="goes on after its client left", tracer_provider=provider) as request:
        request.admit()
        request.input_ready()
        request.token()
        request.cancel("client_disconnected")
        request.token()
        request.complete()

    request = lifecycle.request(request_id="clock set back", arrived_at_ns=NOON, tracer_provider=provider)
    request.admit(at_ns=NOON + 2 * SECOND)
    request.input_ready(at_ns=NOON + 1 * SECOND)
    request.first_token(at_ns=NOON + 5 * SECOND)
    request.complete(at_ns=NOON + 6 * SECOND)


def foreign(provider: TracerProvider) -> None:
    """Make two spans by the plain OpenTelemetry API; an ``arrive`` event makes a span a lifecycle."""
    tracer = provider.get_tracer("another library")
    cases = {
        "token before admission": ("arrive", "first_token", "admit", "input_ready", "first_token", "complete"),
        "two ends": ("arrive", "admit", "input_ready", "first_token", "complete", "fail"),
    }
    for name, events in cases.items():
        span = tracer.start_span(name, start_time=NOON)
        for second, event in enumerate(events):
            span.add_event(event, timestamp=NOON + second * SECOND)
        span.end(end_time=NOON + len(events) * SECOND)


def raising() -> None:
    """Show the same rule where it raises: in a replay, and in a live request of a strict processor."""
    trace = [{"event": "arrive", "timestamp": 0.0}, {"event": "first_token", "timestamp": 1.0}]
    try:
        lifecycle.replay_request_events(trace)
    except LifecycleError as error:
        print(f"  replay: {type(error).__name__}: {error}")
    strict = TracerProvider()
    strict.add_span_processor(LifecycleSpanProcessor(strict=True, meter_provider=MeterProvider()))
    request = lifecycle.request(tracer_provider=strict)
    try:
        request.complete()
    except LifecycleError as error:
        print(f"  strict: {type(error).__name__}: {error}")
    request.fail("engine_error")


def show(exporter: InMemorySpanExporter) -> None:
    """Print what each request's span says about itself."""
    for span in exporter.get_finished_spans():
        attributes = span.attributes or {}
        if semconv.LEGAL not in attributes:
            continue
        print(f"  {attributes.get(semconv.REQUEST_ID, span.name)!s}: {attributes[semconv.OUTCOME]!s}")
        for event in span.events:
            if event.name == semconv.VIOLATION_SPAN_EVENT:
                found = event.attributes or {}
                kind, state = found[semconv.VIOLATION_KIND], found.get(semconv.VIOLATION_STATE)
                print(f"    {kind!s}: {found.get(semconv.VIOLATION_EVENT, 'left')!s} while {state!s}")
        if attributes[semconv.LEGAL]:
            print("    what came after its end is counted below: its span was gone by then")


def main() -> None:
    """Break lifecycles, and show what is reported about them."""
    exporter, reader, provider = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    # Foreign spans are assessed at their end and handed on rebuilt, so the exporter stands behind the processor.
    behind = SimpleSpanProcessor(exporter)
    provider.add_span_processor(LifecycleSpanProcessor(behind, meter_provider=MeterProvider([reader])))
    print("Live requests:")
    live(provider)
    show(exporter)
    exporter.clear()
    print("Spans of another library:")
    foreign(provider)
    show(exporter)
    print("Where it raises:")
    raising()
    provider.shutdown()
    print("Counted as inference.transition.violations:")
    data = reader.get_metrics_data()
    for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
        if metric.name == semconv.TRANSITION_VIOLATIONS.name:
            counts = {
                (p.attributes or {})[semconv.VIOLATION_KIND]: getattr(p, "value", 0) for p in metric.data.data_points
            }
            for kind in sorted(counts, key=str):
                print(f"  {kind}: {counts[kind]}")


if __name__ == "__main__":
    main()
