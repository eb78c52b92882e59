"""Cases of clocks: arrivals told late, clocks that go back, clocks of two hosts."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.telemetry import Telemetry

from .live import BOUNDS, EPOCH, near, play
from .notation import METRICS, NS, to_ns
from .table import BY_ID


def durations(telemetry: Telemetry) -> dict[str, Any]:
    """Return the metrics on the one request span."""
    attributes = telemetry.span("chat tiny")["attributes"]
    found = {name: attributes.get(f"inference.{name}") for name in METRICS}
    return {name: near(value) for name, value in found.items() if value is not None}


def violations(telemetry: Telemetry) -> dict[str, float | None]:
    """Return the violations counted, by kind."""
    points = telemetry.points("inference.transition.violations")
    return {point["attributes"]["inference.violation.kind"]: point["value"] for point in points}


def engine(*events: tuple[str, str]) -> list[dict[str, Any]]:
    """Return what an engine recorded, from its own seconds."""
    return [{"event": event, "timestamp": EPOCH + to_ns(seconds)} for event, seconds in events]


def test_c06_arrival_told_late(telemetry: Telemetry) -> None:
    """The request entered 0.8 s before the adapter heard of it: those count in TTFT and E2E, and in the queue."""
    request = telemetry.request(model="tiny", arrived_at_ns=time.time_ns() - 800 * NS // 1000)
    request.admit()
    request.input_ready()
    request.first_token()
    request.complete()
    found = telemetry.span("chat tiny")["attributes"]
    assert found["inference.queue_wait"] >= 0.8
    assert found["inference.ttft"] >= found["inference.queue_wait"]
    assert found["inference.prefill"] < 0.8
    assert violations(telemetry) == {}


def test_c07_replayed_later_is_in_the_right_bucket(telemetry: Telemetry) -> None:
    """All times are given after the end: the TTFT of 1.5 s is in the bucket up to 2.5, not in the lowest."""
    play(BY_ID["C07"], telemetry)
    point = telemetry.point("inference.time_to_first_token")
    assert point["bounds"] is not None
    assert point["buckets"] is not None
    upper = [bound for bound, count in zip(point["bounds"], point["buckets"], strict=False) if count]
    assert (upper, point["sum"]) == ([2.5], 1.5)


@pytest.mark.parametrize("name", ["C56", "C59"])
def test_c56_nothing_ends_before_it_starts(telemetry: Telemetry, name: str) -> None:
    """No span ends before its start, and no event lies outside its span, whatever the clock did."""
    play(BY_ID[name], telemetry)
    spans = telemetry.spans()
    assert [span["name"] for span in spans if span["end_ns"] < span["start_ns"]] == []
    request = telemetry.span("chat tiny")
    times = [event["time_ns"] for event in request["events"]]
    assert [time_ns for time_ns in times if not request["start_ns"] <= time_ns <= request["end_ns"]] == []


def test_c56_time_before_a_live_token(telemetry: Telemetry) -> None:
    """An end that is told to lie before a token that was marked live goes back; E2E is not made up of it."""
    arrival = time.time_ns() - 20 * NS
    request = telemetry.request(model="tiny", arrived_at_ns=arrival)
    request.admit(at_ns=arrival)
    request.input_ready(at_ns=arrival)
    request.first_token(at_ns=arrival + NS)
    request.token()
    request.complete(at_ns=arrival + 10 * NS)
    attributes = telemetry.span("chat tiny")["attributes"]
    absent = [name for name in ("e2e", "decode_time") if f"inference.{name}" not in attributes]
    assert (absent, attributes["inference.ttft"], violations(telemetry)) == (
        ["e2e", "decode_time"],
        1.0,
        {"non_monotonic_time": 1},
    )


def test_c58_clocks_proven_apart(telemetry: Telemetry) -> None:
    """The engine's clock is 40 ms behind: what both clocks bound is None, what one bounds is kept."""
    request = telemetry.request(model="tiny", provider="tests", arrived_at_ns=EPOCH)
    request.record(engine(("admit", "-0.030"), ("input_ready", "-0.020"), ("first_token", "0.470")))
    request.record(engine(("complete", "0.970")))
    assert durations(telemetry) == {
        "preprocessing": 0.01,
        "prefill": 0.49,
        "decode_time": 0.5,
        "token_span": 0,
        "streamed_tokens": 1,
    }
    attributes = telemetry.span("chat tiny")["attributes"]
    assert (attributes["inference.outcome"], "inference.bottleneck" in attributes) == ("completed", False)
    assert violations(telemetry) == {"foreign_clock": 1}
    stages = {
        point["attributes"]["inference.stage"]: (point["count"], point["sum"])
        for point in telemetry.points("inference.stage.duration")
    }
    assert stages == {
        "preprocessing": (1, near(0.01)),
        "prefill": (1, near(0.49)),
        "decode": (1, near(0.5)),
    }
    for metric in ("inference.time_to_first_token", "inference.request.duration"):
        assert telemetry.points(metric) == []


def test_c58_spans_of_clocks_apart_are_sound(telemetry: Telemetry) -> None:
    """No exported span of such a request ends before it starts."""
    request = telemetry.request(model="tiny", arrived_at_ns=EPOCH)
    request.record(engine(("admit", "-0.030"), ("input_ready", "-0.020"), ("first_token", "0.470")))
    request.record(engine(("complete", "0.970")))
    spans = telemetry.spans()
    assert [span["name"] for span in spans if span["end_ns"] < span["start_ns"]] == []
    assert {span["name"] for span in spans} == {"chat tiny", "preprocessing", "prefill", "decode"}


@pytest.mark.parametrize(("resumed_by", "preempted"), [("engine", 0.1), ("gateway", None)])
def test_c58_interruption_between_two_clocks(telemetry: Telemetry, resumed_by: str, preempted: float | None) -> None:
    """Preempted time that one clock bounds is kept; between two that are apart it is unknown."""
    request = telemetry.request(model="tiny", arrived_at_ns=EPOCH)
    request.record(engine(("admit", "-0.030"), ("input_ready", "-0.020"), ("first_token", "0.470"), ("preempt", "0.5")))
    if resumed_by == "engine":
        request.record(engine(("resume", "0.6")))
    else:
        request.resume(at_ns=EPOCH + to_ns("0.7"))
    request.record(engine(("complete", "0.970")))
    attributes = telemetry.span("chat tiny")["attributes"]
    assert attributes.get("inference.preempted") == (None if preempted is None else near(preempted))
    assert attributes["inference.decode_time"] == near(0.5)


def test_c58_clocks_that_agree(telemetry: Telemetry) -> None:
    """Without a contradiction the two clocks are one: every duration stands."""
    request = telemetry.request(model="tiny", arrived_at_ns=EPOCH)
    request.record(engine(("admit", "0.010"), ("input_ready", "0.020"), ("first_token", "0.510"), ("token", "0.760")))
    request.complete(at_ns=EPOCH + to_ns("1.010"))
    assert durations(telemetry) == {
        "queue_wait": 0.01,
        "preprocessing": 0.01,
        "prefill": 0.49,
        "ttft": 0.51,
        "tpot": 0.25,
        "decode_time": 0.5,
        "token_span": 0.25,
        "e2e": 1.01,
        "streamed_tokens": 2,
    }
    assert violations(telemetry) == {}
    assert {span["name"] for span in telemetry.spans()} == {"chat tiny", *BOUNDS["default"]}


def test_c58_engine_that_ends_after_the_request(telemetry: Telemetry) -> None:
    """The contradiction may be at the other end: the engine's last token lies after the gateway's end."""
    request = telemetry.request(model="tiny", arrived_at_ns=EPOCH)
    request.record(engine(("admit", "0.010"), ("input_ready", "0.020"), ("first_token", "0.510"), ("token", "1.110")))
    request.complete(at_ns=EPOCH + to_ns("1.010"))
    assert durations(telemetry) == {
        "preprocessing": 0.01,
        "prefill": 0.49,
        "tpot": 0.6,
        "token_span": 0.6,
        "e2e": 1.01,
        "streamed_tokens": 2,
    }
    assert violations(telemetry) == {"foreign_clock": 1}


def test_c58_a_clock_goes_back_within_itself(telemetry: Telemetry) -> None:
    """The engine's times are judged among themselves: one that goes back is non-monotonic, not foreign."""
    request = telemetry.request(model="tiny", arrived_at_ns=EPOCH)
    request.record(engine(("admit", "0.020"), ("input_ready", "0.010"), ("first_token", "0.510"), ("complete", "1.0")))
    assert durations(telemetry) == {
        "queue_wait": 0.02,
        "ttft": 0.51,
        "decode_time": 0.49,
        "token_span": 0,
        "e2e": 1.0,
        "streamed_tokens": 1,
    }
    assert violations(telemetry) == {"non_monotonic_time": 1}
