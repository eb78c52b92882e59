"""Metrics that can be switched: tenants as a label, the convention's duplicates, exponential histograms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from otel_lifecycle import semconv
from otel_lifecycle._configuration.pipeline import Pipeline
from otel_lifecycle._configuration.settings import read_settings
from otel_lifecycle._core.labels import RequestLabels
from tests.support.patient_reader import PatientReader
from tests.support.telemetry import Telemetry

TENANT = semconv.TENANT


def serve(telemetry: Telemetry, tenants: Iterable[str | None], **conditions: Any) -> None:
    """Complete one request of each tenant."""
    for tenant in tenants:
        with telemetry.request(model="tiny", tenant=tenant, **conditions) as request:
            for mark in (request.admit, request.input_ready, request.first_token, request.token):
                mark()


def by_tenant(telemetry: Telemetry) -> dict[Any, Any]:
    """Return the requests of each tenant."""
    counts: dict[Any, Any] = {}
    for point in telemetry.points("inference.requests"):
        tenant = point["attributes"].get(TENANT)
        counts[tenant] = counts.get(tenant, 0) + point["value"]
    return counts


def test_a_tenant_is_on_the_span_and_on_no_metric() -> None:
    """That is the default: a server may have any number of tenants."""
    telemetry = Telemetry()
    serve(telemetry, ["acme"])
    assert [TENANT in point["attributes"] for point in telemetry.points()].count(True) == 0
    (span,) = (span for span in telemetry.spans() if semconv.OUTCOME in span["attributes"])
    assert span["attributes"][TENANT] == "acme"


def test_switched_on_every_request_metric_has_the_tenant() -> None:
    """Metrics of the process, which belongs to no request, have none; a request without a tenant has none either."""
    telemetry = Telemetry(tenant_metrics=True)
    serve(telemetry, ["acme", None])
    of_the_process = {"inference.servers", "inference.server.start_time"}
    without = {point["metric"] for point in telemetry.points() if point["attributes"].get(TENANT) is None}
    with_it = {point["metric"] for point in telemetry.points() if point["attributes"].get(TENANT) == "acme"}
    assert (with_it | of_the_process, by_tenant(telemetry)) == (without, {"acme": 1, None: 1})


def test_the_65th_tenant_is_other() -> None:
    """64 tenants keep their names, in order of appearance, and the sum is right."""
    telemetry = Telemetry(tenant_metrics=True)
    serve(telemetry, [f"tenant-{number}" for number in range(70)])
    counts = by_tenant(telemetry)
    assert counts == {**{f"tenant-{number}": 1 for number in range(64)}, semconv.OTHER: 6}


@pytest.mark.long
def test_many_tenants_cost_tenants_their_names_before_models() -> None:
    """Where tenants times models exceed the combinations of an instrument, tenants are merged and models stay."""
    telemetry = Telemetry(tenant_metrics=True)
    for tenant in range(64):
        for model in range(16):
            telemetry.request(model=f"model-{model}", tenant=f"tenant-{tenant}").cancel()
    points = [point["attributes"] for point in telemetry.points("inference.requests")]
    models = {attributes[semconv.GEN_AI_REQUEST_MODEL] for attributes in points}
    assert models == {f"model-{model}" for model in range(16)}
    assert len(points) <= 1000
    assert sum(by_tenant(telemetry).values()) == 64 * 16


def test_a_foreign_span_has_its_tenant_too() -> None:
    """The attribute of a span that another library made is read like that of a request."""
    telemetry = Telemetry(tenant_metrics=True)
    tracer = telemetry.tracer_provider.get_tracer("other")
    with tracer.start_as_current_span("chat", attributes={TENANT: "acme"}) as span:
        for event in ("arrive", "admit", "input_ready", "first_token", "complete"):
            span.add_event(event)
    assert by_tenant(telemetry) == {"acme": 1}


@pytest.mark.parametrize("wanted", [True, False])
def test_the_convention_metrics_can_be_left_out(wanted: bool) -> None:
    """Without them every figure of ours is the same as with them."""
    telemetry = Telemetry(gen_ai_metrics=wanted)
    serve(telemetry, [None, None])
    names = {point["metric"] for point in telemetry.points()}
    ours = {name for name in names if name.startswith("inference.")}
    assert (names - ours == CONVENTION, by_tenant(telemetry)) == (wanted, {None: 2})
    assert {"inference.time_to_first_token", "inference.request.duration"} <= ours


CONVENTION = {
    "gen_ai.server.request.duration",
    "gen_ai.server.time_to_first_token",
    "gen_ai.server.time_per_output_token",
}


@pytest.mark.parametrize(("native", "kind"), [(True, "ExponentialHistogram"), (False, "Histogram")])
def test_histograms_are_exponential_when_asked_for(monkeypatch: pytest.MonkeyPatch, native: bool, kind: str) -> None:
    """All of ours and none of the app's; counts and sums are those of buckets."""
    reader = PatientReader()
    monkeypatch.setattr("otel_lifecycle._configuration.pipeline.metric_readers", lambda *_, **__: [reader])
    pipeline = Pipeline(read_settings({"native_histograms": native}, {"OTEL_TRACES_EXPORTER": "none"}))
    pipeline.meter_provider.get_meter("app").create_histogram("theirs").record(1)
    pipeline.processor.record_step("decode", 0.25, 3, RequestLabels(model="tiny"), None)
    try:
        found = {
            (scope.scope.name, metric.name): (
                type(metric.data).__name__,
                getattr(metric.data.data_points[0], "sum", None),
            )
            for resource in reader.get_metrics_data().resource_metrics  # type: ignore[union-attr]
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
    finally:
        pipeline.shutdown(5)
    assert found == {
        ("app", "theirs"): ("Histogram", 1),
        (semconv.SCOPE, "inference.step.duration"): (kind, 0.25),
        (semconv.SCOPE, "inference.step.requests"): (kind, 3),
    }
