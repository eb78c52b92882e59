"""Cases of buckets, and of labels that must not grow with the traffic."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.trace import TracerProvider

import otel_lifecycle as lifecycle
from otel_lifecycle import semconv
from otel_lifecycle.processor import LifecycleSpanProcessor
from tests.support.patient_reader import PatientReader
from tests.support.plain import Point, plain_points
from tests.support.telemetry import Telemetry

from .live import EPOCH, play
from .notation import Case, std, to_ns

TTFTS = ("0.02", "0.3", "1.2", "4.9")


def with_ttft(ttft: str) -> Case:
    """Return a case whose first token comes then."""
    return Case(id="C79", script=std("0", "0", ttft) + f", complete {ttft}", metrics={}, stage="prefill")


def test_c79_seconds_fall_into_buckets_of_their_own(telemetry: Telemetry) -> None:
    """Four TTFTs in four buckets, by edges that the instrument itself asks for."""
    for ttft in TTFTS:
        play(with_ttft(ttft), telemetry)
    point = telemetry.point("inference.time_to_first_token")
    assert (point["unit"], point["bounds"]) == ("s", list(semconv.TTFT_BUCKETS))
    assert [count for count in point["buckets"] or [] if count] == [1, 1, 1, 1]


def test_c79_every_histogram_has_the_edges_of_the_contract(telemetry: Telemetry) -> None:
    """No histogram of ours is left with the default edges, which are meant for milliseconds."""
    play(Case(id="C79", script=std("1", "1", "1") + ", token 3.5, complete 4", metrics={}, stage=None), telemetry)
    found = {
        point["metric"]: (point["unit"], tuple(point["bounds"] or ()))
        for point in telemetry.points()
        if point["type"] == "histogram"
    }
    assert found == {row.name: (row.unit, row.buckets) for row in semconv.METRICS if row.name in found}
    assert len(found) == 8


def test_c79_view_of_the_app_has_the_last_word() -> None:
    """A user who sets other edges gets them."""
    reader = PatientReader()
    edges = (0.1, 1.0, 10.0)
    view = View(
        instrument_name="inference.time_to_first_token",
        aggregation=ExplicitBucketHistogramAggregation(boundaries=edges),
    )
    meters = MeterProvider([reader], views=[view], shutdown_on_exit=False)
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(LifecycleSpanProcessor(meter_provider=meters))
    for ttft in TTFTS:
        request = lifecycle.request(model="tiny", arrived_at_ns=EPOCH, tracer_provider=tracers)
        request.admit(at_ns=EPOCH)
        request.input_ready(at_ns=EPOCH)
        request.first_token(at_ns=EPOCH + to_ns(ttft))
        request.complete(at_ns=EPOCH + to_ns(ttft))
    points = [point for point in plain_points(reader.get_metrics_data()) if point["metric"] == view._instrument_name]
    tracers.shutdown()
    meters.shutdown()
    assert [(point["bounds"], point["buckets"]) for point in points] == [(list(edges), [1, 1, 2, 0])]


def label_values(points: list[Point], name: str) -> set[str]:
    """Return every value of one label."""
    return {point["attributes"][name] for point in points if name in point["attributes"]}


@pytest.mark.parametrize("requests", [500, pytest.param(5000, marks=pytest.mark.slow)])
def test_c82_series_do_not_grow_with_requests(make_telemetry: Callable[..., Telemetry], requests: int) -> None:
    """Requests with ids and failure messages of their own: as many series as one of them has."""
    telemetry = make_telemetry()

    def fail(number: int) -> None:
        request = telemetry.request(model="tiny", request_id=f"id-{number}", workload=f"w-{number}")
        request.fail(f"disk {number} is full: no space left")

    fail(0)
    first = [(point["metric"], point["attributes"]) for point in telemetry.points()]
    for number in range(1, requests):
        fail(number)
    points = telemetry.points()
    assert [(point["metric"], point["attributes"]) for point in points] == first
    assert label_values(points, "error.type") == {"_OTHER"}
    (counted,) = (point for point in points if point["metric"] == "inference.requests")
    assert counted["value"] == requests
    ids = {span["attributes"]["inference.request.id"] for span in telemetry.spans("chat tiny")}
    assert len(ids) == requests


def test_c82_names_from_outside_are_bounded(telemetry: Telemetry) -> None:
    """The 33rd model and the 17th error type are _OTHER, in labels and in span names; nothing is lost."""
    for number in range(100):
        telemetry.request(model=f"model-{number}").fail(f"Error{number}")
    points = telemetry.points()
    models = label_values(points, "gen_ai.request.model")
    errors = label_values(points, "error.type")
    assert (len(models), len(errors), models & {"_OTHER"}, errors & {"_OTHER"}) == (33, 17, {"_OTHER"}, {"_OTHER"})
    total = sum(point["value"] or 0 for point in points if point["metric"] == "inference.requests")
    assert total == 100
    assert len({span["name"] for span in telemetry.spans() if span["parent_id"] is None}) == 33


@pytest.mark.long
def test_c82_combinations_are_bounded(telemetry: Telemetry) -> None:
    """Names that are few each and many together: no instrument has more than about 1000 series, and all is counted."""
    for model in range(32):
        for provider in range(40):
            telemetry.request(model=f"model-{model}", provider=f"provider-{provider}").cancel()
    points = telemetry.points("inference.requests")
    assert sum(point["value"] or 0 for point in points) == 32 * 40
    assert 32 < len(points) <= 1001


def test_c82_kinds_of_traffic_are_bounded(telemetry: Telemetry) -> None:
    """A server that puts user names there does not get a series for each."""
    for number in range(100):
        telemetry.request(model="tiny", traffic=f"user-{number}").cancel()
    points = telemetry.points("inference.requests")
    assert "_OTHER" in label_values(points, "inference.traffic")
    assert (len(points) <= 33, sum(point["value"] or 0 for point in points)) == (True, 100)


@pytest.mark.parametrize("message", ["no space left", "42 is not the answer!", "x" * 65, "über", ""])
def test_c82_free_text_is_no_label(telemetry: Telemetry, message: str) -> None:
    """What is neither a reason nor an identifier is _OTHER, as error type and as reason."""
    telemetry.request(model="tiny").fail(message)
    found = telemetry.span("chat tiny")["attributes"]
    assert (found["error.type"], found.get("inference.end.reason", "_OTHER")) == ("_OTHER", "_OTHER")
    assert label_values(telemetry.points(), "error.type") == {"_OTHER"}
