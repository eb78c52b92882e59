"""``configure()`` over the wire, beside an app's own providers, and its end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from fractions import Fraction

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otel_lifecycle as lifecycle
from otel_lifecycle.errors import ConfigurationError
from tests.support.otlp_receiver import GrpcReceiver, HttpReceiver, OtlpReceiver
from tests.support.patient_reader import PatientReader
from tests.support.plain import plain_points
from tests.support.threads import exporting, still_running


def serve(tokens: int = 3) -> None:
    """Serve one request that completes."""
    with lifecycle.request(model="tiny") as request:
        for _ in request.stream(range(tokens)):
            pass


def test_spans_and_metrics_arrive(otlp: OtlpReceiver) -> None:
    """Over gRPC and over HTTP: the request with its stages, and its metrics, of one named service instance."""
    lifecycle.configure(service_name="svc", endpoint=otlp.endpoint, protocol=otlp.scheme)
    serve()
    assert lifecycle.shutdown()
    names = [span["name"] for span in otlp.spans()]
    (requests,) = otlp.points("inference.requests")
    resource = requests["resource"]
    assert names == ["decode", "chat tiny"]
    assert (requests["value"], resource["service.name"]) == (1, "svc")
    assert len(resource["service.instance.id"]) == 36
    assert {span["resource"]["service.instance.id"] for span in otlp.spans()} == {resource["service.instance.id"]}


def test_standard_variables(otlp: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without arguments, OpenTelemetry's own variables say where to and how."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", otlp.endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", otlp.scheme)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=from.env,service.instance.id=mine")
    lifecycle.configure()
    serve()
    assert lifecycle.shutdown()
    (requests,) = otlp.points("inference.requests")
    resource = requests["resource"]
    assert (resource["service.name"], resource["service.instance.id"]) == ("from.env", "mine")


def test_sampler_leaves_the_metrics_alone(otlp_http: HttpReceiver) -> None:
    """With no trace sampled, every request is counted."""
    lifecycle.configure(endpoint=otlp_http.endpoint, sampler=0.0)
    for _ in range(5):
        serve()
    assert lifecycle.shutdown()
    (requests,) = otlp_http.points("inference.requests")
    assert (otlp_http.spans(), requests["value"]) == ([], 5)


def test_foreign_span_is_attributed(otlp_http: HttpReceiver) -> None:
    """A span of another tracer that carries an arrive event gets its attribution on the way out."""
    lifecycle.configure(endpoint=otlp_http.endpoint)
    span = trace.get_tracer("other").start_span("mine")
    for name in ("arrive", "admit", "input_ready", "first_token", "token", "complete"):
        span.add_event(name)
    span.end()
    assert lifecycle.shutdown()
    (exported,) = otlp_http.spans("mine")
    assert exported["attributes"]["inference.outcome"] == "completed"


def test_app_with_its_own_providers() -> None:
    """Nothing is replaced: the processor joins the app's tracer provider and records into its meter provider."""
    exporter, reader = InMemorySpanExporter(), PatientReader()
    tracers, meters = TracerProvider(shutdown_on_exit=False), MeterProvider([reader], shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(meters)
    lifecycle.configure()
    serve()
    assert trace.get_tracer_provider() is tracers
    assert metrics.get_meter_provider() is meters
    assert [span.name for span in exporter.get_finished_spans()] == ["decode", "chat tiny"]
    points = [point for point in plain_points(reader.get_metrics_data()) if point["metric"] == "inference.requests"]
    assert [point["value"] for point in points] == [1]
    assert lifecycle.shutdown()
    meters.force_flush()
    meters.shutdown()
    tracers.shutdown()


def test_own_providers_keep_their_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an app tells its own exporters by OpenTelemetry's variables is none of our business."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "prometheus")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    tracers, meters = TracerProvider(shutdown_on_exit=False), MeterProvider(shutdown_on_exit=False)
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(meters)
    lifecycle.configure()
    serve()
    assert lifecycle.shutdown()
    meters.shutdown()
    tracers.shutdown()


def test_shutdown_keeps_to_its_time_with_an_exporter_of_the_app() -> None:
    """An app's own exporter may hang at the spans that end at shutdown; the caller gets its time all the same."""
    hold = threading.Event()
    released: list[bool] = []

    class Hangs(InMemorySpanExporter):
        """Answers when it is let go."""

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            hold.wait(60)
            released.append(hold.is_set())
            return super().export(spans)

    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(Hangs()))
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(MeterProvider(shutdown_on_exit=False))
    lifecycle.configure()
    request = lifecycle.request()
    done = lifecycle.shutdown(timeout=0.3)
    still_held = not released
    hold.set()
    assert (done, still_held, request.report is None) == (False, True, False)


def test_app_with_a_tracer_provider_only(otlp_http: HttpReceiver) -> None:
    """The missing half is made: metrics go out though the app set up tracing alone."""
    tracers = TracerProvider(shutdown_on_exit=False)
    trace.set_tracer_provider(tracers)
    lifecycle.configure(endpoint=otlp_http.endpoint)
    serve()
    assert lifecycle.shutdown()
    (requests,) = otlp_http.points("inference.requests")
    assert (trace.get_tracer_provider(), requests["value"]) == (tracers, 1)
    tracers.shutdown()


def test_instruments_made_before_record_after(otlp_http: HttpReceiver) -> None:
    """A counter, a gauge and a tracer that a library took from the API before configure() work after it."""
    meter, tracer = metrics.get_meter("early"), trace.get_tracer("early")
    counter = meter.create_counter("early.counter")
    meter.create_observable_gauge("early.gauge", callbacks=[lambda options: [metrics.Observation(7)]])
    lifecycle.configure(endpoint=otlp_http.endpoint)
    counter.add(2)
    tracer.start_span("early").end()
    assert lifecycle.shutdown()
    assert [point["value"] for name in ("early.counter", "early.gauge") for point in otlp_http.points(name)] == [2, 7]
    assert len(otlp_http.spans("early")) == 1


def test_every_kind_of_instrument_delegates(otlp_http: HttpReceiver) -> None:
    """Instruments taken from the installed provider record as the SDK's own do."""
    lifecycle.configure(endpoint=otlp_http.endpoint)
    meter = metrics.get_meter("app")
    meter.create_counter("a").add(1)
    meter.create_up_down_counter("b").add(-2)
    meter.create_histogram("c").record(3)
    meter.create_gauge("d").set(4)
    observe = [lambda options: [metrics.Observation(5)]]
    meter.create_observable_counter("e", callbacks=observe)
    meter.create_observable_up_down_counter("f", callbacks=observe)
    meter.create_observable_gauge("g", callbacks=observe)
    assert lifecycle.shutdown()
    values = {name: otlp_http.points(name)[0] for name in "abcdefg"}
    assert [values[name]["value"] for name in "abdefg"] == [1, -2, 4, 5, 5, 5]
    assert values["c"]["sum"] == 3


def test_resources_are_observed(otlp_http: HttpReceiver) -> None:
    """Each callback feeds its gauge; one that knows nothing now gives no sample, never 0."""
    lifecycle.configure(
        endpoint=otlp_http.endpoint,
        resources={
            "cache_usage": lambda: 0.25,
            "memory_used": lambda: [(10, {"device": "a"}), (20, {"device": "b"})],
            "device_utilization": lambda: None,
        },
    )
    assert lifecycle.shutdown()
    assert [point["value"] for point in otlp_http.points("inference.cache.usage")] == [0.25]
    memory = otlp_http.points("inference.memory.used")
    assert [(point["attributes"], point["value"]) for point in memory] == [({"device": "a"}, 10), ({"device": "b"}, 20)]
    assert otlp_http.points("inference.device.utilization") == []


class Scalar:
    """A whole number of another library, as numpy has them: no int, and not iterable."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __float__(self) -> float:
        return float(self._value)

    def __index__(self) -> int:
        return self._value


READINGS = {
    "bool": (True, [1]),
    "whole scalar": (Scalar(2**53 + 1), [2**53 + 1]),
    "fraction": (Fraction(1, 2), [0.5]),
    "pairs": ([(Fraction(1, 2), {"gpu": "0"}), (Scalar(1), None)], [0.5, 1]),
    "generator": (((number, None) for number in (3,)), [3]),
    "largest": (2**63 - 1, [2**63 - 1]),
}
BROKEN = {
    "too large": 2**63,
    "far too large": 10**30,
    "too small": -(2**63) - 1,
    "no number yet": float("nan"),
    "endless": float("inf"),
    "beyond a float": Fraction(10**400),
    "text": "0.5",
    "nothing of the kind": object(),
    "no pairs": [0.5],
    "no attributes": [(0.5, "gpu")],
    "no value": [(None, {"gpu": "0"})],
}


@pytest.mark.parametrize(("reading", "values"), READINGS.values(), ids=READINGS)
def test_numbers_of_any_library_are_readings(
    otlp_http: HttpReceiver, caplog: pytest.LogCaptureFixture, reading: object, values: list[float]
) -> None:
    """They arrive as what they are, and nothing is said."""
    lifecycle.configure(endpoint=otlp_http.endpoint, resources={"cache_usage": lambda: reading})
    assert lifecycle.shutdown()
    found = sorted(point["value"] or 0 for point in otlp_http.points("inference.cache.usage"))
    assert (found, caplog.records) == (values, [])


@pytest.mark.parametrize("reading", BROKEN.values(), ids=BROKEN)
def test_reading_that_cannot_be_sent_costs_no_other_metric(
    otlp_http: HttpReceiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, reading: object
) -> None:
    """It is left out and said in one line, however often it is read."""
    monkeypatch.setattr("otel_lifecycle._log._last_said", {})
    resources = {"cache_usage": lambda: reading, "memory_used": lambda: 10}
    lifecycle.configure(endpoint=otlp_http.endpoint, resources=resources)
    serve()
    metrics.get_meter_provider().force_flush()  # type: ignore[attr-defined]  # what configure() set has it
    assert lifecycle.shutdown()
    assert otlp_http.points("inference.cache.usage") == []
    assert {point["value"] for point in otlp_http.points("inference.memory.used")} == {10}
    assert {point["value"] for point in otlp_http.points("inference.requests")} == {1}
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("resources['cache_usage'] gave ")


def test_second_call_changes_nothing(otlp_http: HttpReceiver, caplog: pytest.LogCaptureFixture) -> None:
    """It is said in one line, and requests are counted once."""
    lifecycle.configure(endpoint=otlp_http.endpoint)
    with caplog.at_level(logging.WARNING):
        lifecycle.configure(service_name="other")
    serve()
    assert lifecycle.shutdown()
    assert [record.getMessage() for record in caplog.records] == [
        "configure() was called before; this call changes nothing"
    ]
    assert [point["value"] for point in otlp_http.points("inference.requests")] == [1]


def test_configure_again_after_shutdown(otlp_http: HttpReceiver) -> None:
    """After shutdown() requests are no-ops, and a new configure() starts from zero as another instance."""
    lifecycle.configure(endpoint=otlp_http.endpoint)
    serve()
    assert lifecycle.shutdown()
    serve()
    lifecycle.configure(endpoint=otlp_http.endpoint)
    serve()
    assert lifecycle.shutdown()
    points = otlp_http.points("inference.requests")
    assert [point["value"] for point in points] == [1, 1]
    assert len({point["resource"]["service.instance.id"] for point in points}) == 2


def test_refused_setting_leaves_nothing_behind(otlp_http: HttpReceiver) -> None:
    """A configure() that was refused can be followed by one that is right."""
    with pytest.raises(ConfigurationError):
        lifecycle.configure(metric_interval=-1)
    lifecycle.configure(endpoint=otlp_http.endpoint)
    serve()
    assert lifecycle.shutdown()
    assert [point["value"] for point in otlp_http.points("inference.requests")] == [1]


def test_shutdown_ends_open_requests(otlp_http: HttpReceiver) -> None:
    """They are cancelled, reason shutdown, counted and exported; what their handles do later is ignored."""
    lifecycle.configure(endpoint=otlp_http.endpoint)
    request = lifecycle.request(model="tiny")
    request.admit()
    assert lifecycle.shutdown()
    request.token()
    request.complete()
    (span,) = otlp_http.spans("chat tiny")
    (requests,) = otlp_http.points("inference.requests")
    assert (span["attributes"]["inference.outcome"], span["attributes"]["inference.end.reason"]) == (
        "cancelled",
        "shutdown",
    )
    assert (requests["value"], requests["attributes"]["inference.outcome"]) == (1, "cancelled")
    assert otlp_http.points("inference.transition.violations") == []


def test_shutdown_keeps_to_its_time(
    otlp: OtlpReceiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exporter that hangs holds shutdown no longer than its timeout: this one would outlast the test."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
    lifecycle.configure(endpoint=otlp.endpoint, protocol=otlp.scheme)
    serve()
    otlp.hang()
    with caplog.at_level(logging.WARNING):
        done = lifecycle.shutdown(timeout=0.5)
    otlp.accept()
    # A receiver that stops before it has answered would leave an exporter that retries for half a minute.
    assert still_running(exporting(), seconds=60) == []
    assert not done
    assert "shutdown gave up on an exporter that does not answer; what it held is lost" in caplog.messages


def test_exceptions_leave_their_type_only(otlp_http: HttpReceiver) -> None:
    """The message and the stack of an exception stay out of the span."""
    lifecycle.configure(endpoint=otlp_http.endpoint)
    with pytest.raises(KeyError), lifecycle.request(model="tiny"):
        raise KeyError("a prompt")
    assert lifecycle.shutdown()
    (span,) = otlp_http.spans("chat tiny")
    assert (span["status"], span["status_description"], span["attributes"]["error.type"]) == ("ERROR", "", "KeyError")
    assert "a prompt" not in str(span)


def test_switch_adds_message_and_stack(otlp_grpc: GrpcReceiver) -> None:
    """record_exceptions puts them there as OpenTelemetry's own exception event."""
    lifecycle.configure(endpoint=otlp_grpc.endpoint, protocol="grpc", record_exceptions=True)
    with pytest.raises(KeyError), lifecycle.request(model="tiny"):
        raise KeyError("detail")
    assert lifecycle.shutdown()
    (span,) = otlp_grpc.spans("chat tiny")
    (event,) = [event for event in span["events"] if event["name"] == "exception"]
    assert (event["attributes"]["exception.type"], event["attributes"]["exception.message"]) == ("KeyError", "'detail'")
