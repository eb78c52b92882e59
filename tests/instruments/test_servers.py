"""The process in its own metrics: that it serves, that it ended in order, and since when it runs."""

from __future__ import annotations

import os
import time

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

import otel_lifecycle as lifecycle
from otel_lifecycle.processor import LifecycleSpanProcessor
from tests.support.patient_reader import PatientReader
from tests.support.plain import plain_points
from tests.support.telemetry import Telemetry


def value(telemetry: Telemetry, metric: str) -> float | None:
    """Return the one value of a metric about the process."""
    (point,) = telemetry.points(metric)
    return point["value"]


def test_a_process_that_serves_is_one_server(telemetry: Telemetry) -> None:
    """It is there from the first request on, and stays 1 however many requests there are."""
    assert telemetry.points("inference.servers") == []
    request = telemetry.request(model="tiny")
    first = value(telemetry, "inference.servers")
    request.cancel()
    telemetry.request(model="tiny").cancel()
    assert (first, value(telemetry, "inference.servers")) == (1, 1)


def test_the_last_word_of_an_orderly_end_is_zero(telemetry: Telemetry) -> None:
    """After the shutdown of the tracer provider the metrics that are still sent say 0."""
    telemetry.request(model="tiny").cancel()
    telemetry.tracer_provider.shutdown()
    assert value(telemetry, "inference.servers") == 0


def test_a_process_serves_while_any_of_its_processors_does() -> None:
    """Of two processors on one meter provider, one is shut down: the process goes on."""
    reader = PatientReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    tracers = TracerProvider(shutdown_on_exit=False)
    first, second = (LifecycleSpanProcessor(meter_provider=meters) for _ in range(2))
    tracers.add_span_processor(first)
    lifecycle.request(model="tiny", tracer_provider=tracers).cancel()

    def servers() -> list[float | None]:
        return [p["value"] for p in plain_points(reader.get_metrics_data()) if p["metric"] == "inference.servers"]

    first.shutdown()
    one_left = servers()
    second.shutdown()
    assert (one_left, servers()) == ([1], [0])


def test_the_start_time_does_not_change(telemetry: Telemetry) -> None:
    """It is the time at which the instruments were made, in seconds since 1970, at every collection."""
    telemetry.request(model="tiny").cancel()
    first = value(telemetry, "inference.server.start_time")
    assert first is not None
    assert first <= time.time()
    assert value(telemetry, "inference.server.start_time") == first


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_with_inherited_providers_has_a_start_time_of_its_own(telemetry: Telemetry) -> None:
    """Under the instance id of its parent it can be told from it."""
    telemetry.request(model="tiny").cancel()
    first = value(telemetry, "inference.server.start_time")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, repr(value(telemetry, "inference.server.start_time")).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    child = float(os.read(read, 100))
    assert first is not None
    assert child > first
