"""The providers that the suite is built on, and the fixtures around them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

from tests.support.otlp_receiver import OtlpReceiver
from tests.support.plain import plain_points
from tests.support.telemetry import Telemetry, forget_global_providers
from tests.support.test_otlp_receiver import metric_exporter, span_exporter

T0 = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


def serve_one(telemetry: Telemetry) -> None:
    """One request with explicit times: queue 1 s, preprocessing 1 s, prefill 2 s, decode 1 s."""
    request = telemetry.request(model="m", arrived_at_ns=T0)
    request.admit(at_ns=T0 + SECOND)
    request.input_ready(at_ns=T0 + 2 * SECOND)
    request.first_token(at_ns=T0 + 4 * SECOND)
    request.complete(at_ns=T0 + 5 * SECOND)


def test_spans_of_a_request(telemetry: Telemetry) -> None:
    """The exported spans come back as plain values: the request with its four stages below it."""
    serve_one(telemetry)
    request = telemetry.span("chat m")
    stages = {
        span["name"]: ((span["start_ns"] - T0) // SECOND, (span["end_ns"] - T0) // SECOND)
        for span in telemetry.spans()
        if span["parent_id"] == request["span_id"]
    }
    assert stages == {"queue": (0, 1), "preprocessing": (1, 2), "prefill": (2, 4), "decode": (4, 5)}


def test_points_of_a_request(telemetry: Telemetry) -> None:
    """The metrics come back as plain values; ``match`` picks a point by its attributes."""
    serve_one(telemetry)
    assert [point["sum"] for point in telemetry.points("inference.time_to_first_token")] == [4.0]
    assert telemetry.point("inference.stage.duration", inference__stage="prefill")["sum"] == 2.0
    assert telemetry.points("no.such.metric") == []


def test_one_means_one(telemetry: Telemetry) -> None:
    """Asked for the one span or point where there is none, or several, the helpers say what there is."""
    serve_one(telemetry)
    with pytest.raises(AssertionError, match="0 spans 'absent' among"):
        telemetry.span("absent")
    with pytest.raises(AssertionError, match=r"4 points of inference\.stage\.duration with {}"):
        telemetry.point("inference.stage.duration")


@pytest.mark.parametrize(
    "arguments", [{"order": "processor_first"}, {"order": "exporter_first"}, {"wrap": True}], ids=str
)
def test_ways_to_register(make_telemetry: Callable[..., Telemetry], arguments: dict[str, Any]) -> None:
    """However exporter and processor are put together, both see the request."""
    telemetry = make_telemetry(**arguments)
    serve_one(telemetry)
    assert telemetry.span("chat m")["attributes"]["inference.ttft"] == 4.0
    assert telemetry.point("inference.requests")["value"] == 1


def test_nothing_is_shared(make_telemetry: Callable[..., Telemetry]) -> None:
    """Two sets of providers in one process know nothing of each other's requests."""
    one, other = make_telemetry(), make_telemetry()
    serve_one(one)
    assert (len(one.spans("chat m")), other.spans(), other.points("inference.requests")) == (1, [], [])


def test_the_wire_says_what_memory_says(telemetry: Telemetry, otlp: OtlpReceiver) -> None:
    """A request's spans and points, sent by the real exporters, are received as they were."""
    serve_one(telemetry)
    span_exporter(otlp).export(telemetry.exporter.get_finished_spans())
    data = telemetry.reader.get_metrics_data()
    metric_exporter(otlp).export(data)
    assert otlp.spans() == telemetry.spans()
    assert otlp.points() == plain_points(data)


def test_no_settings_of_the_caller() -> None:
    """Whatever the shell that started the tests had set, a test sees no OpenTelemetry variable."""
    assert [name for name in os.environ if name.startswith("OTEL_")] == []


def test_fresh_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The global providers can be set, set anew in another test, and are afterwards what they were before."""
    before = (trace.get_tracer_provider(), metrics.get_meter_provider())
    for _ in range(2):
        with monkeypatch.context() as scope:
            forget_global_providers(scope)
            mine = (TracerProvider(shutdown_on_exit=False), MeterProvider(shutdown_on_exit=False))
            trace.set_tracer_provider(mine[0])
            metrics.set_meter_provider(mine[1])
            assert (trace.get_tracer_provider(), metrics.get_meter_provider()) == mine
    assert (trace.get_tracer_provider(), metrics.get_meter_provider()) == before
