"""Providers in every order and number: the spans and the metrics find their place."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, SamplingResult

import otel_lifecycle as lifecycle
from otel_lifecycle._runtime import runtime
from otel_lifecycle.errors import ConfigurationError
from otel_lifecycle.processor import LifecycleSpanProcessor
from tests.support.patient_reader import PatientReader
from tests.support.plain import plain_id, plain_points
from tests.support.telemetry import Telemetry


def counted(reader: InMemoryMetricReader, metric: str = "inference.requests") -> int:
    """How many requests a reader's counter has."""
    points = plain_points(reader.get_metrics_data())
    return sum(int(point["value"] or 0) for point in points if point["metric"] == metric)


def serve(**arguments: object) -> None:
    """Serve one request that completes."""
    with lifecycle.request(**arguments) as request:  # type: ignore[arg-type]  # passed through
        list(request.stream([1, 2]))


@pytest.mark.parametrize("order", ["tracer", "meter", "processor"])
def test_global_providers_in_any_order(fresh_globals: None, order: str) -> None:
    """The processor may be made first, before either global provider, or last."""
    reader, exporter = PatientReader(), InMemorySpanExporter()
    tracers, meters = TracerProvider(shutdown_on_exit=False), MeterProvider([reader], shutdown_on_exit=False)

    def set_meters() -> None:
        metrics.set_meter_provider(meters)

    def set_tracers() -> None:
        trace.set_tracer_provider(tracers)
        tracers.add_span_processor(SimpleSpanProcessor(exporter))

    def add_processor() -> None:
        tracers.add_span_processor(LifecycleSpanProcessor())

    steps = {"tracer": set_tracers, "meter": set_meters, "processor": add_processor}
    for step in (steps.pop(order), *steps.values()):
        step()
    serve()
    assert (counted(reader), counted(reader, "inference.active_requests")) == (1, 0)
    assert [span.name for span in exporter.get_finished_spans()] == ["decode", "chat"]
    tracers.shutdown()
    meters.shutdown()


def test_two_providers_in_one_process(make_telemetry: Callable[..., Telemetry]) -> None:
    """Each request is counted and exported by its own provider, and by no other."""
    one, other = make_telemetry(), make_telemetry()
    serve(tracer_provider=one.tracer_provider)
    serve(tracer_provider=other.tracer_provider)
    serve(tracer_provider=other.tracer_provider)
    assert [counted(telemetry.reader) for telemetry in (one, other)] == [1, 2]
    assert [len(telemetry.spans("chat")) for telemetry in (one, other)] == [1, 2]


def test_unsampled_request_goes_to_the_processor_seen_with_its_provider(
    make_telemetry: Callable[..., Telemetry],
) -> None:
    """With no trace to see, a provider's requests go where its last seen one went; else to the oldest processor."""

    class Once(ParentBased):
        """Samples the first trace only."""

        def should_sample(self, *arguments: Any, **named: Any) -> SamplingResult:
            first, self.first = getattr(self, "first", True), False
            return super().should_sample(*arguments, **named) if first else ALWAYS_OFF.should_sample(*arguments)

    oldest = make_telemetry()
    mine = make_telemetry(sampler=Once(ALWAYS_ON))
    unseen = make_telemetry(sampler=ALWAYS_OFF)
    for telemetry in (mine, mine, unseen):
        serve(tracer_provider=telemetry.tracer_provider)
    assert [counted(telemetry.reader) for telemetry in (oldest, mine, unseen)] == [1, 2, 0]


def test_unsampled_request_finds_the_processors_of_now(make_telemetry: Callable[..., Telemetry]) -> None:
    """What a provider's requests went to is not kept beyond a change: a processor that came, went or saw a span."""
    unseen = make_telemetry(sampler=ALWAYS_OFF)
    unseen.processor.shutdown()
    first, second = make_telemetry(), make_telemetry()
    told = []

    def serve_one() -> None:
        serve(tracer_provider=unseen.tracer_provider)
        told.append([counted(telemetry.reader) for telemetry in (unseen, first, second)])

    changes: list[Callable[[], object]] = [
        lambda: None,
        lambda: runtime().seen_with(unseen.tracer_provider, second.processor),
        second.processor.shutdown,
        first.processor.shutdown,
    ]
    for change in changes:
        change()
        serve_one()
        serve_one()
    assert told == [[0, *seen] for seen in ([1, 0], [2, 0], [2, 1], [2, 2], [3, 2], [4, 2], [4, 2], [4, 2])]


def test_request_opened_before_the_processor(telemetry: Telemetry) -> None:
    """A recording request that was opened before any processor is adopted at its end."""
    tracers, reader = TracerProvider(shutdown_on_exit=False), PatientReader()
    telemetry.shutdown()
    request = lifecycle.request(tracer_provider=tracers)
    meters = MeterProvider([reader], shutdown_on_exit=False)
    tracers.add_span_processor(LifecycleSpanProcessor(meter_provider=meters))
    list(request.stream([1]))
    request.complete()
    assert counted(reader) == 1
    tracers.shutdown()
    meters.shutdown()


def test_fresh_providers_after_others_were_shut_down(make_telemetry: Callable[..., Telemetry]) -> None:
    """As tests do it: a provider that was shut down takes nothing of the next one's requests."""
    for _ in range(3):
        telemetry = make_telemetry(sampler=ALWAYS_OFF)
        serve(tracer_provider=telemetry.tracer_provider)
        assert counted(telemetry.reader) == 1
        telemetry.shutdown()


def test_shutdown_of_the_processor(telemetry: Telemetry) -> None:
    """Open requests end as cancelled, reason shutdown; what their handles do later is ignored."""
    request = telemetry.request()
    request.admit()
    telemetry.processor.shutdown()
    request.token()
    request.complete()
    request.usage(input_tokens=1)
    attributes = telemetry.span("chat")["attributes"]
    assert (attributes["inference.outcome"], attributes["inference.end.reason"]) == ("cancelled", "shutdown")
    assert telemetry.points("inference.transition.violations") == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"next": object()},
        {"meter_provider": 5},
        {"dominance_threshold": 0},
        {"dominance_threshold": "0.5"},
        {"slo": 1},
        {"strict": "yes"},
        {"token_times": 1},
        {"compat": "tgi"},
    ],
    ids=plain_id,
)
def test_argument_that_makes_no_sense(arguments: dict[str, object]) -> None:
    """It is refused where it is set, with the rule."""
    with pytest.raises(ConfigurationError, match="must be"):
        LifecycleSpanProcessor(**arguments)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    "objectives",
    [{}, {"ttft": 0}, {"tpot": -1}, {"e2e": float("nan")}, {"ttft": float("inf")}, {"ttft": "1"}, {"ttft": True}],
    ids=plain_id,
)
def test_slo_that_makes_no_sense(objectives: dict[str, object]) -> None:
    """An objective is a positive number of seconds, and there must be one."""
    with pytest.raises(ConfigurationError):
        lifecycle.Slo(**objectives)  # type: ignore[arg-type]  # wrong on purpose


def test_slo_results(make_telemetry: Callable[..., Telemetry]) -> None:
    """Judged only where the metric exists; goodput is met over terminated."""
    telemetry = make_telemetry(slo=lifecycle.Slo(ttft=1, e2e=10))
    now = time.time_ns()

    def play(ttft: float | None, e2e: float, end: str) -> None:
        start = now - 60 * 10**9
        request = telemetry.request(arrived_at_ns=start)
        request.admit(at_ns=None)
        request.input_ready(at_ns=None)
        if ttft is not None:
            request.first_token(at_ns=start + int(ttft * 1e9))
        getattr(request, end)(at_ns=start + int(e2e * 1e9))

    play(0.5, 5, "complete")
    play(2, 5, "complete")
    play(0.5, 5, "fail")
    play(None, 20, "cancel")
    results = {
        (point["attributes"]["inference.slo.objective"], point["attributes"]["inference.slo.met"]): point["value"]
        for point in telemetry.points("inference.slo.results")
    }
    assert results == {
        ("ttft", True): 2,
        ("ttft", False): 1,
        ("e2e", True): 3,
        ("e2e", False): 1,
        ("all", True): 1,
        ("all", False): 3,
    }
    assert [span["attributes"]["inference.slo.met"] for span in telemetry.spans("chat")] == [True, False, False, False]


def test_startup_is_no_request(telemetry: Telemetry) -> None:
    """A cold-start phase has a span and a sample of its own; an exception leaves its type and no sample."""
    provider = telemetry.tracer_provider
    with lifecycle.startup("load_model", model="m", hardware="cpu", parameters={"slots": 2}, tracer_provider=provider):
        pass
    with pytest.raises(MemoryError), lifecycle.startup("warm_up", tracer_provider=provider):
        raise MemoryError
    loaded, failed = telemetry.span("startup load_model"), telemetry.span("startup warm_up")
    assert loaded["attributes"] == {
        "inference.startup.phase": "load_model",
        "gen_ai.request.model": "m",
        "inference.hardware": "cpu",
        "inference.startup.parameter.slots": 2,
    }
    assert (failed["status"], failed["attributes"]["error.type"]) == ("ERROR", "MemoryError")
    point = telemetry.point("inference.startup.duration")
    assert (point["count"], point["attributes"]) == (
        1,
        {"gen_ai.request.model": "m", "inference.startup.phase": "load_model"},
    )
    assert telemetry.points("inference.requests") == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"phase": "a b"},
        {"phase": ""},
        {"phase": 5},
        {"phase": None},
        {"phase": "x", "model": 1},
        {"phase": "x", "slots": 2},
    ],
    ids=plain_id,
)
def test_startup_that_makes_no_sense(arguments: dict[str, object]) -> None:
    """A phase is an identifier, and a condition one that there is."""
    with pytest.raises(ConfigurationError), lifecycle.startup(**arguments):  # type: ignore[arg-type]  # on purpose
        pass
