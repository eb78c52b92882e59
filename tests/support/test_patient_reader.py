"""A collection in a test outlives a machine that gives the process no time."""

from __future__ import annotations

from itertools import count

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Metric

from tests.support.patient_reader import PatientReader


def test_a_clock_that_jumps_ends_no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eleven seconds pass at each look at the clock: more than the SDK allows a collection."""
    seconds = count(0, 11)
    monkeypatch.setattr(
        "opentelemetry.sdk.metrics._internal.measurement_consumer.time_ns", lambda: next(seconds) * 10**9
    )
    reader = PatientReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    provider.get_meter("test").create_observable_gauge("level", [lambda options: []])
    provider.get_meter("test").create_counter("counted").add(1)
    assert [metric.name for metric in named(reader)] == ["counted"]
    provider.shutdown()


def named(reader: PatientReader) -> list[Metric]:
    """Return the metrics of a collection."""
    data = reader.get_metrics_data()
    assert data is not None
    return [metric for one in data.resource_metrics for scope in one.scope_metrics for metric in scope.metrics]
