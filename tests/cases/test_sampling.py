"""Cases of what the SDK does with spans: order of processors, sampling, and the same processor twice."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    DEFAULT_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)

import otel_lifecycle as lifecycle
from otel_lifecycle.processor import LifecycleSpanProcessor
from tests.support.patient_reader import PatientReader
from tests.support.plain import Point, plain_points
from tests.support.telemetry import Telemetry

from .live import BASE, EPOCH, expected_attributes, expected_points, found_points, play
from .notation import Case
from .table import BY_ID


@pytest.mark.parametrize("order", ["processor_first", "exporter_first"])
@pytest.mark.parametrize("wrap", [False, True], ids=["beside", "around"])
def test_c65_attribution_is_on_the_exported_span(
    make_telemetry: Callable[..., Telemetry], order: str, wrap: bool
) -> None:
    """Whatever the order of registration, and exported once."""
    telemetry = make_telemetry(order=order, wrap=wrap)
    play(BY_ID["C43"], telemetry)
    found = telemetry.span("chat tiny")["attributes"]
    expected = expected_attributes(BY_ID["C43"])
    assert {name: found.get(name) for name in expected} == expected


def test_c66_metrics_know_nothing_of_the_sampler(make_telemetry: Callable[..., Telemetry]) -> None:
    """A tenth of the traces is exported; every one of 1000 requests is counted."""
    telemetry = make_telemetry(sampler=TraceIdRatioBased(0.1))
    good, bad = BY_ID["C14"], BY_ID["C33-failed"]
    cases = [*[good] * 980, *[bad] * 20]
    for case in cases:
        play(case, telemetry)
    assert found_points(telemetry.points()) == expected_points(*cases)
    assert 40 < len(telemetry.spans("chat tiny")) < 180


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ParentBased(ALWAYS_OFF)], ids=["off", "parent based"])
def test_c66_no_trace_at_all(make_telemetry: Callable[..., Telemetry], sampler: Sampler) -> None:
    """Without a single sampled trace the metrics are complete."""
    telemetry = make_telemetry(sampler=sampler)
    for case in (BY_ID["C43"], BY_ID["C30"], BY_ID["C56"]):
        play(case, telemetry)
    assert found_points(telemetry.points()) == expected_points(BY_ID["C43"], BY_ID["C30"], BY_ID["C56"])
    assert telemetry.spans() == []


def test_c66_upstream_that_does_not_sample(make_telemetry: Callable[..., Telemetry]) -> None:
    """A remote parent with flags 00 switches the trace off, and no metric."""
    telemetry = make_telemetry(sampler=DEFAULT_ON)
    remote = trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(0))
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(remote)))
    try:
        play(BY_ID["C43"], telemetry)
    finally:
        context.detach(token)
    assert found_points(telemetry.points()) == expected_points(BY_ID["C43"])
    assert telemetry.spans() == []


class RecordOnly(Sampler):
    """Record every span and sample none, as the SDK's AlwaysRecordSampler does of what its own sampler dropped."""

    def should_sample(
        self,
        parent_context: Any,
        trace_id: int,
        name: str,
        kind: Any = None,
        attributes: Any = None,
        links: Any = None,
        trace_state: Any = None,
    ) -> SamplingResult:
        """Record."""
        return SamplingResult(Decision.RECORD_ONLY, attributes)

    def get_description(self) -> str:
        """Name it."""
        return "RecordOnly"


def test_c66_recorded_and_not_sampled(make_telemetry: Callable[..., Telemetry]) -> None:
    """With such a sampler foreign spans are in the metrics too, and requests of the API only once."""
    telemetry = make_telemetry(sampler=RecordOnly())
    play(BY_ID["C14"], telemetry)
    foreign(telemetry.tracer_provider, BY_ID["C14"])
    assert found_points(telemetry.points()) == expected_points(BY_ID["C14"], BY_ID["C14"])
    assert telemetry.spans() == []


def foreign(provider: TracerProvider, case: Case) -> None:
    """Make the span of a case as another library would."""
    span = provider.get_tracer("another.library").start_span("generate", start_time=EPOCH, attributes=BASE)
    for step in case.steps:
        span.add_event(step.event, timestamp=EPOCH + step.ns)
    span.end(end_time=EPOCH + case.steps[-1].ns)


class Pair:
    """Two tracer providers and two readers, to register processors on in every wrong way."""

    def __init__(self) -> None:
        self.readers = [PatientReader(), PatientReader()]
        self.meters = [MeterProvider([reader], shutdown_on_exit=False) for reader in self.readers]
        self.tracers = [TracerProvider(shutdown_on_exit=False), TracerProvider(shutdown_on_exit=False)]
        self.processors = [LifecycleSpanProcessor(meter_provider=meters) for meters in self.meters]

    def points(self) -> list[Point]:
        """Collect from both readers."""
        return [point for reader in self.readers for point in plain_points(reader.get_metrics_data())]

    def shutdown(self) -> None:
        """Shut everything down."""
        for tracers in self.tracers:
            tracers.shutdown()
        for meters in self.meters:
            meters.shutdown()


def same_twice(pair: Pair) -> None:
    """Add one processor two times to one provider."""
    pair.tracers[0].add_span_processor(pair.processors[0])
    pair.tracers[0].add_span_processor(pair.processors[0])


def two_on_one(pair: Pair) -> None:
    """Add two processors to one provider."""
    pair.tracers[0].add_span_processor(pair.processors[0])
    pair.tracers[0].add_span_processor(pair.processors[1])


def one_on_two(pair: Pair) -> None:
    """Add one processor to two providers."""
    pair.tracers[0].add_span_processor(pair.processors[0])
    pair.tracers[1].add_span_processor(pair.processors[0])


def one_on_each(pair: Pair) -> None:
    """Add a processor to each provider."""
    for provider, processor in zip(pair.tracers, pair.processors, strict=True):
        provider.add_span_processor(processor)


REGISTRATIONS = [same_twice, two_on_one, one_on_two, one_on_each]


def serve(provider: TracerProvider, case: Case) -> None:
    """Run a case on this provider."""
    first, *rest = case.steps
    request: Any = lifecycle.request(
        model="tiny", provider="tests", arrived_at_ns=EPOCH + first.ns, tracer_provider=provider
    )
    for step in rest:
        getattr(request, step.event)(at_ns=EPOCH + step.ns)


@pytest.mark.parametrize("register", REGISTRATIONS, ids=lambda register: str(register.__name__))
def test_c75_request_is_counted_once(register: Callable[[Pair], None]) -> None:
    """However processors are registered, one request is one request, with one TTFT."""
    pair = Pair()
    register(pair)
    serve(pair.tracers[0], BY_ID["C14"])
    points = pair.points()
    pair.shutdown()
    assert found_points(points) == expected_points(BY_ID["C14"])


@pytest.mark.parametrize("register", REGISTRATIONS, ids=lambda register: str(register.__name__))
def test_c75_foreign_span_is_counted_once(register: Callable[[Pair], None]) -> None:
    """The same of a span that another library made."""
    pair = Pair()
    register(pair)
    foreign(pair.tracers[0], BY_ID["C14"])
    points = pair.points()
    pair.shutdown()
    assert found_points(points) == expected_points(BY_ID["C14"])


def test_c75_second_processor_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """One warning, however many requests follow."""
    pair = Pair()
    two_on_one(pair)
    for _ in range(5):
        serve(pair.tracers[0], BY_ID["C14"])
    pair.shutdown()
    warnings = [record for record in caplog.records if record.name.startswith("otel_lifecycle")]
    assert [record.levelno for record in warnings] == [logging.WARNING]


def test_c75_processors_on_providers_of_their_own_warn_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Two providers in one process, each with its processor, are not a mistake."""
    pair = Pair()
    one_on_each(pair)
    for provider in pair.tracers:
        serve(provider, BY_ID["C14"])
    totals = [point["value"] for point in pair.points() if point["metric"] == "inference.requests"]
    pair.shutdown()
    assert (totals, caplog.records) == ([1, 1], [])
