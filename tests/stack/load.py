"""Scripted load through the live API: every time is given (``at_ns``), so what comes out is known beforehand.

A :class:`Server` is one instrumented process: providers of its own, sending OTLP as any application would.
``python -m tests.stack.load NAME ENDPOINT SEED COUNT`` is such a process by itself; it prints the reports of what it
played.
"""

from __future__ import annotations

import json
import random
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otel_lifecycle as lifecycle
from otel_lifecycle import semconv
from otel_lifecycle._configuration.pipeline import native_histograms
from otel_lifecycle.processor import LifecycleSpanProcessor

MODEL: Final = "smollm2"
STAGES: Final = ("queue", "preprocessing", "prefill", "decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How one request goes: seconds in each stage, the gap between tokens, and how and in which stage it ends.

    ``end`` is complete, cancel, timeout, fail or leave (nothing: it stays active); an abnormal end comes half-way
    through ``where``.  ``late`` tokens follow the end, 0.1 s apart.
    """

    queue: float = 0.02
    preprocessing: float = 0.01
    prefill: float = 0.2
    gap: float = 0.02
    tokens: int = 6
    end: str = "complete"
    where: str = "decode"
    reason: str | None = None
    preempted: float = 0.0
    late: int = 0
    illegal: bool = False
    conditions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long it takes from arrival to its end, if it is not cut off before."""
        return self.queue + self.preprocessing + self.prefill + self.gap * (self.tokens - 1) + self.preempted


PREFILL_BOUND: Final = Script()
MIXED: Final = Script(queue=0.1, preprocessing=0.1, prefill=0.1, gap=0.02, tokens=6)
QUEUE_BOUND: Final = Script(queue=0.8)
SLOW_DECODE: Final = Script(gap=0.4)


def mix(seed: int, count: int) -> list[Script]:
    """Return that many different requests, the same for the same seed: all outcomes, all bottlenecks, preemptions."""
    rng = random.Random(seed)
    ends = ["complete"] * 16 + ["cancel", "cancel", "timeout", "fail"]
    return [
        Script(
            queue=rng.choice((0.001, 0.02, 0.4)) * rng.uniform(0.5, 2),
            preprocessing=rng.choice((0.002, 0.2)) * rng.uniform(0.5, 2),
            prefill=rng.choice((0.05, 0.3)) * rng.uniform(0.5, 2),
            gap=rng.uniform(0.004, 0.09),
            tokens=rng.randint(1, 30),
            end=ends[number % len(ends)],
            where=rng.choice(STAGES),
            reason="out_of_memory" if ends[number % len(ends)] == "fail" else None,
            preempted=0.3 if number % 11 == 0 else 0.0,
            conditions={"input_tokens": rng.randint(8, 4000)},
        )
        for number in range(count)
    ]


class Server:
    """One instrumented process, as the backends see it."""

    def __init__(
        self,
        name: str,
        *,
        endpoint: str,
        slo: lifecycle.Slo | None = None,
        interval_ms: int = 500,
        batch_delay_ms: int = 200,
        counts_its_losses: bool = False,
        instance: str | None = None,
        native: bool = False,
    ) -> None:
        self.name = name
        self.instance = instance or str(uuid.uuid4())
        resource = Resource.create({"service.name": name, "service.instance.id": self.instance})
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(endpoint=endpoint, insecure=True), export_interval_millis=interval_ms
        )
        # As configure(native_histograms=True) does.
        views = [native_histograms()] if native else []
        self.meter_provider = MeterProvider(resource=resource, metric_readers=[reader], views=views)
        self.tracer_provider = TracerProvider(resource=resource)
        self.kept = InMemorySpanExporter()
        self.tracer_provider.add_span_processor(LifecycleSpanProcessor(meter_provider=self.meter_provider, slo=slo))
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.kept))
        # With OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED the exporter counts what it could not send; older SDKs cannot.
        counted: dict[str, Any] = {"meter_provider": self.meter_provider} if counts_its_losses else {}
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=True, **counted)
        self.tracer_provider.add_span_processor(
            BatchSpanProcessor(exporter, schedule_delay_millis=batch_delay_ms, **counted)
        )
        self.reports: list[Mapping[str, Any]] = []
        self.open: list[Any] = []

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Send what is left and stop; both providers, spans first."""
        self.tracer_provider.shutdown()
        self.meter_provider.shutdown()

    def flush(self) -> None:
        """Send everything now."""
        self.tracer_provider.force_flush()
        self.meter_provider.force_flush()

    def play(self, script: Script, *, arrived_ns: int | None = None, **conditions: Any) -> Any:
        """Play one request as if it ended now (or arrived at ``arrived_ns``) and return its handle."""
        at = arrived_ns if arrived_ns is not None else time.time_ns() - _ns(script.seconds)
        settings = {"model": MODEL, "provider": "stack", **script.conditions, **conditions}
        request = lifecycle.request(arrived_at_ns=at, tracer_provider=self.tracer_provider, **settings)
        ended_ns = _play(request, script, at)
        if ended_ns is None:
            self.open.append(request)
            return request
        report = request.report
        assert report is not None
        self.reports.append(report)
        for number in range(script.late):
            request.token(at_ns=ended_ns + _ns(0.1 * (number + 1)))
        return request

    def stall(self, engine: str, seconds: float, *, victim: bool = True) -> set[str]:
        """Play a prefill of so many seconds, and a request that decodes meanwhile; return their trace ids."""
        at = time.time_ns() - _ns(10)
        others = [self._begun(at, engine)] if victim else []
        for other in others:
            for number in range(10):
                other.token(at_ns=at + number * _ns(0.02))
        start = at + _ns(0.19)
        culprit = self._begun(start, engine)
        end = start + _ns(seconds)
        culprit.first_token(at_ns=end)
        for other in others:
            other.token(at_ns=end + _ns(0.01))
            other.complete(at_ns=end + _ns(0.01))
        culprit.complete(at_ns=end + _ns(0.02))
        contexts = [span.context for span in self.request_spans()[-len(others) - 1 :]]
        return {f"{context.trace_id:032x}" for context in contexts if context is not None}

    def _begun(self, at: int, engine: str) -> Any:
        """Return a request that went into prefill as it arrived."""
        request = lifecycle.request(
            arrived_at_ns=at, tracer_provider=self.tracer_provider, model=MODEL, provider="stack", engine=engine
        )
        request.admit(at_ns=at)
        request.input_ready(at_ns=at)
        return request

    def play_all(self, scripts: Iterable[Script], *, per_second: float | None = None) -> None:
        """Play requests one after another, at that rate or at once."""
        for number, script in enumerate(scripts):
            self.play(script, request_id=f"{self.name}-{number}")
            if per_second is not None:
                time.sleep(1 / per_second)

    @property
    def results(self) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Every report with its metrics, as ``summarize_workload`` takes them; in nanoseconds."""
        return [(report, lifecycle.compute_request_metrics(report)) for report in self.reports]

    def request_spans(self) -> list[ReadableSpan]:
        """Return the request spans that have ended, in the order they ended."""
        return [span for span in self.kept.get_finished_spans() if semconv.OUTCOME in (span.attributes or {})]


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _play(request: Any, script: Script, at: int) -> int | None:
    """Mark the boundaries of one request from ``at`` on; return when it ended, None if it stays open."""
    marks = {"queue": request.admit, "preprocessing": request.input_ready, "prefill": request.first_token}
    if script.illegal:
        request.resume(at_ns=at)
    for stage in STAGES[:3]:
        seconds = getattr(script, stage)
        if script.end != "complete" and script.where == stage:
            return _end(request, script, at + _ns(seconds / 2))
        at += _ns(seconds)
        marks[stage](at_ns=at)
    if script.preempted:
        request.preempt(at_ns=at)
        at += _ns(script.preempted)
        request.resume(at_ns=at)
    for _ in range(script.tokens - 1):
        at += _ns(script.gap)
        request.token(at_ns=at)
    return _end(request, script, at)


def _end(request: Any, script: Script, at: int) -> int | None:
    if script.end == "leave":
        return None
    if script.end == "complete":
        request.complete(at_ns=at)
    else:
        getattr(request, script.end)(script.reason, at_ns=at)
    return at


def main(arguments: Sequence[str]) -> None:
    """Be one server process: play ``mix(SEED, COUNT)`` and print the reports."""
    name, endpoint, seed, count = arguments
    with Server(name, endpoint=endpoint) as server:
        server.play_all(mix(int(seed), int(count)))
        json.dump(server.reports, sys.stdout, default=dict)


if __name__ == "__main__":
    main(sys.argv[1:])
