"""The same request done by several: this package, plain OpenTelemetry, prometheus_client, opentelemetry-util-genai.

Each subject serves one request of ``n`` tokens that an engine yields as fast as it can, keeps the spans that ended, and
on ``export`` encodes them and one metrics collection as OTLP (Prometheus: as its text format).  Nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from time import perf_counter, time_ns
from typing import Any, Protocol
from unittest.mock import patch

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

import otel_lifecycle as lifecycle
from otel_lifecycle import semconv
from otel_lifecycle._core.lifecycle import STAGE_ORDER
from otel_lifecycle._instruments import delivery
from otel_lifecycle._runtime import runtime
from otel_lifecycle._version import __version__
from otel_lifecycle.processor import LifecycleSpanProcessor

MODEL = "smollm2"
LABELS = {
    semconv.GEN_AI_OPERATION_NAME: "chat",
    semconv.GEN_AI_PROVIDER_NAME: semconv.OTHER,
    semconv.GEN_AI_REQUEST_MODEL: MODEL,
}
EDGES = list(semconv.TOKEN_GAP_BUCKETS)
OBJECTIVES = lifecycle.Slo(ttft=1, tpot=0.1, e2e=60)
"""Everything is switched on; nearly all requests of a healthy server meet theirs."""


class Method:
    """The one-line method that a token is held against."""

    __slots__ = ("_ts",)

    def __init__(self) -> None:
        self._ts: list[int] = []

    def token(self) -> None:
        """Append the time."""
        self._ts.append(time_ns())


class Kept(SpanProcessor):
    """Keeps the spans that ended."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Keep the span."""
        self.spans.append(span)


class Subject(Protocol):
    """Somebody who can serve a request and export what it left."""

    def serve(self, tokens: int) -> None:
        """Serve one request."""

    def export(self) -> int:
        """Encode what ended since the last time; return how many bytes that are."""


class Providers:
    """Providers of a subject's own, without exporters, threads or exit handlers."""

    def __init__(self, *, sampled: bool = True) -> None:
        self.kept = Kept()
        self.reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.tracer_provider = TracerProvider(sampler=None if sampled else ALWAYS_OFF, shutdown_on_exit=False)

    def keep(self) -> None:
        """Let the keeper see spans end, after the processors there are."""
        self.tracer_provider.add_span_processor(self.kept)

    def export(self) -> int:
        """Encode the spans that ended and one collection."""
        spans, self.kept.spans = self.kept.spans, []
        encoded = encode_spans(spans).SerializeToString() if spans else b""
        collected = self.reader.get_metrics_data()
        return len(encoded) + (len(encode_metrics(collected).SerializeToString()) if collected else 0)


class Lifecycle(Providers):
    """This package: boundaries marked, every token a mark."""

    def __init__(self, *, sampled: bool = True) -> None:
        super().__init__(sampled=sampled)
        self.processor = LifecycleSpanProcessor(meter_provider=self.meter_provider, slo=OBJECTIVES)
        self.tracer_provider.add_span_processor(self.processor)
        # No processor sees an unsampled span, and several live in this process: say whose requests these are.
        runtime().seen_with(self.tracer_provider, self.processor)
        self.keep()

    def open(self) -> Any:
        """Return a request that has passed queue, preprocessing and prefill: it is in decode, with its first token."""
        request = lifecycle.request(model=MODEL, tracer_provider=self.tracer_provider)
        request.admit()
        request.input_ready()
        request.first_token()
        return request

    def serve(self, tokens: int) -> None:
        """Serve one request."""
        with self.open() as request:
            for _ in range(tokens - 1):
                request.token()


class LifecyclePooling(Lifecycle):
    """This package: a request of an embedding model, which has no tokens."""

    def serve(self, tokens: int) -> None:
        """Serve one request."""
        with lifecycle.request(model=MODEL, shape="pooling", tracer_provider=self.tracer_provider) as request:
            request.admit()
            request.input_ready()


class LifecycleFallback(Lifecycle):
    """This package on an SDK with other insides than those it knows: everything goes through the public API."""

    def __init__(self, *, sampled: bool = True) -> None:
        with patch.object(delivery, "trusted_sdk", lambda: None):
            super().__init__(sampled=sampled)


class LifecycleAndRecords(Lifecycle):
    """The fast path, and by hand what no fallback can do without: a ``record`` for each sample of a histogram."""

    def __init__(self) -> None:
        super().__init__(sampled=False)
        meter = self.meter_provider.get_meter(semconv.SCOPE, __version__, schema_url=semconv.SCHEMA_URL)
        request = {semconv.GEN_AI_OPERATION_NAME: "chat", semconv.GEN_AI_REQUEST_MODEL: MODEL}
        done = {**request, semconv.OUTCOME: "completed"}
        samples = [
            *((semconv.STAGE_DURATION, {**request, semconv.STAGE: stage}) for stage in STAGE_ORDER),
            (semconv.REQUEST_DURATION, done),
            (semconv.TIME_TO_FIRST_TOKEN, done),
            (semconv.GEN_AI_REQUEST_DURATION, request),
            (semconv.GEN_AI_TIME_TO_FIRST_TOKEN, request),
        ]
        # Those there are, and the points there are: nothing more is collected and encoded.
        self._records = [
            (
                meter.create_histogram(
                    row.name, row.unit, row.description, explicit_bucket_boundaries_advisory=row.buckets
                ).record,
                attributes,
            )
            for row, attributes in samples
        ]
        self._context = set_span_in_context(NonRecordingSpan(SpanContext(1, 1, is_remote=False)), Context())

    def serve(self, tokens: int) -> None:
        """Serve one request, and record what its histograms get."""
        super().serve(tokens)
        for record, attributes in self._records:
            record(0.001, attributes, self._context)


class LifecycleStream(Lifecycle):
    """This package: its wrapper around the engine's iterator."""

    def serve(self, tokens: int) -> None:
        """Serve one request."""
        with lifecycle.request(model=MODEL, tracer_provider=self.tracer_provider) as request:
            request.admit()
            request.input_ready()
            for _ in request.stream(engine(tokens)):
                pass


class Plain(Providers):
    """Plain OpenTelemetry, the naive way: an event and a histogram sample for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.keep()
        self.tracer = self.tracer_provider.get_tracer("plain")
        self.gaps = self.meter_provider.get_meter("plain").create_histogram(
            "itl", "s", explicit_bucket_boundaries_advisory=EDGES
        )

    def serve(self, tokens: int) -> None:
        """Serve one request."""
        span = self.tracer.start_span("chat", attributes=LABELS)
        last = perf_counter()
        for _ in range(tokens):
            span.add_event("token")
            now = perf_counter()
            self.gaps.record(now - last, LABELS)
            last = now
        span.end()

    def finish(self, times: list[int]) -> None:
        """Do at the end of a request what :meth:`serve` does while it runs: events and gaps of kept times."""
        span = self.tracer.start_span("chat", attributes=LABELS)
        last = times[0]
        for now in times:
            span.add_event("token", None, now)
            self.gaps.record((now - last) / 1e9, LABELS)
            last = now
        span.end()


class BareSpans(Providers):
    """Five spans without anything in them: as many as a request and its stages."""

    def __init__(self, *, sampled: bool = True) -> None:
        super().__init__(sampled=sampled)
        self.keep()
        self.tracer = self.tracer_provider.get_tracer("bare")

    def serve(self, tokens: int) -> None:
        """Start and end them."""
        for _ in range(5):
            self.tracer.start_span("bare").end()


class Prometheus:
    """prometheus_client: a histogram observes every gap; there are no traces."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Histogram

        self.registry = CollectorRegistry()
        names = ("operation", "provider", "model")
        self.gaps = Histogram("itl", "gaps", names, buckets=EDGES, registry=self.registry).labels(*LABELS.values())

    def serve(self, tokens: int) -> None:
        """Serve one request."""
        last = perf_counter()
        for _ in range(tokens):
            now = perf_counter()
            self.gaps.observe(now - last)
            last = now

    def export(self) -> int:
        """Write the text format once."""
        from prometheus_client import generate_latest

        return len(generate_latest(self.registry))


class GenAi(Providers):
    """opentelemetry-util-genai: its stream wrapper, which records every gap as time per output chunk."""

    def __init__(self) -> None:
        from opentelemetry.util.genai.handler import TelemetryHandler

        super().__init__()
        self.keep()
        self.handler = TelemetryHandler(tracer_provider=self.tracer_provider, meter_provider=self.meter_provider)
        self.wrapper = genai_wrapper()

    def serve(self, tokens: int) -> None:
        """Serve one request."""
        invocation = self.handler.inference(semconv.OTHER, request_model=MODEL)
        for _ in self.wrapper(engine(tokens), invocation):
            pass


def genai_wrapper() -> Any:
    """Return the stream wrapper that does the least its base class asks for."""
    from opentelemetry.util.genai.stream import SyncStreamWrapper

    class Wrapper(SyncStreamWrapper[str]):
        _self_invocation: Any

        def _process_chunk(self, chunk: str) -> None:
            """Nothing is read from a chunk."""

        def _on_stream_end(self) -> None:
            self._self_invocation.stop()

        def _on_stream_error(self, error: BaseException) -> None:
            self._self_invocation.fail(error)

    return Wrapper


def engine(tokens: int) -> Iterator[str]:
    """Yield tokens as fast as one asks for them."""
    for _ in range(tokens):
        yield "token"


def others() -> dict[str, Subject]:
    """Return those that are done by packages of the extra ``bench``, as far as they are installed."""
    found: dict[str, Subject] = {}
    for name, subject in (("prometheus_client", Prometheus), ("opentelemetry-util-genai", GenAi)):
        with suppress(ImportError):
            found[name] = subject()
    return found
