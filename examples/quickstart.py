"""Three requests for one slot, without a model or a Collector: python -m examples.quickstart."""

from concurrent.futures import ThreadPoolExecutor
from hashlib import pbkdf2_hmac
from threading import Semaphore

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

import otel_lifecycle as lifecycle
from otel_lifecycle.processor import LifecycleSpanProcessor


def serve(prompt: str, length: int) -> None:
    """Answer a request; hashing stands for a model: hard for a long input, then a little for each token."""
    with lifecycle.request(model="toy", tracer_provider=provider) as request:
        with request.stage("queue"):
            slots.acquire()
        with request.stage("preprocessing"):
            text, efforts = prompt.encode(), [2000 * len(prompt), *[20_000] * (length - 1)]
        list(request.stream(pbkdf2_hmac("sha256", text, b"", n) for n in efforts))
        slots.release()


def show(span: ReadableSpan) -> str:
    """Write a span, its milliseconds, and what held the request up, on one line."""
    took = ((span.end_time or 0) - (span.start_time or 0)) / 1e6
    return f"{span.name:14}{took:7.1f} ms  {(span.attributes or {}).get('inference.bottleneck', '')}\n"


reader, provider, slots = InMemoryMetricReader(), TracerProvider(), Semaphore(1)
provider.add_span_processor(LifecycleSpanProcessor(meter_provider=MeterProvider([reader])))
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=show)))
list(ThreadPoolExecutor().map(serve, ["a long prompt " * 20, "short", "short"], [3, 60, 5]))
if data := reader.get_metrics_data():
    for metric in sorted(data.resource_metrics[0].scope_metrics[0].metrics, key=lambda metric: metric.name):
        if count := sum(getattr(p, "count" if metric.unit == "s" else "value", 0) for p in metric.data.data_points):
            print(f"{metric.name:36} counts {count:4}")
