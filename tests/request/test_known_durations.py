"""Stages that an engine tells of by their durations alone, and the shape a request takes after it has arrived."""

from __future__ import annotations

import time
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle import driver
from tests.support.hostile import VALUES
from tests.support.telemetry import Telemetry

S = 10**9
STAGES = ("queue_wait", "preprocessing", "prefill", "decode_time")


def opened(telemetry: Telemetry, shape: str = "preprocess_first") -> tuple[Any, int]:
    """A request that arrived 20 s ago, and its arrival: times of a test lie in the past, where they may be given."""
    start = time.time_ns() - 20 * S
    return telemetry.request(shape=shape, arrived_at_ns=start), start


def seconds(telemetry: Telemetry) -> tuple[float | None, ...]:
    """The stages of the one request, rounded to the error of a nanosecond."""
    attributes = telemetry.span("chat")["attributes"]
    found = [attributes.get(f"inference.{name}") for name in STAGES]
    return tuple(None if one is None else round(one, 6) for one in found)


def streamed(request: Any, start: int) -> None:
    """Output at 7 and 9 s, the end at 10 s."""
    request.token(at_ns=start + 7 * S)
    request.token(at_ns=start + 9 * S)
    request.complete(at_ns=start + 10 * S)


def test_stages_of_a_stream_follow_from_durations(telemetry: Telemetry) -> None:
    """Prefill lies before the first token, preprocessing after arrival, and the queue is what remains."""
    request, start = opened(telemetry)
    request.durations({"preprocessing": 0.5, "prefill": 2.0, "decode": 2.9})
    streamed(request, start)
    attributes = telemetry.span("chat")["attributes"]
    assert seconds(telemetry) == (4.5, 0.5, 2.0, 3.0)
    assert attributes["inference.derived"] == ["preprocessing", "queue", "prefill"]
    assert (attributes["inference.ttft"], attributes["inference.tpot"]) == (7.0, 2.0)
    assert (attributes["inference.dominant_stage"], attributes["inference.legal"]) == ("queue", True)


def test_stages_of_a_whole_answer_follow_from_durations(telemetry: Telemetry) -> None:
    """Its decode ends when the answer appeared; TPOT stays unknown, because nobody saw a token."""
    request, start = opened(telemetry)
    request.output(30, at_ns=start + 9 * S)
    request.durations({"preprocessing": 1, "prefill": 2, "decode": 4})
    request.complete(at_ns=start + 10 * S)
    attributes = telemetry.span("chat")["attributes"]
    assert seconds(telemetry) == (2.0, 1.0, 2.0, 5.0)
    assert attributes["inference.derived"] == ["preprocessing", "queue", "prefill", "decode"]
    assert (attributes["inference.ttft"], attributes.get("inference.tpot")) == (5.0, None)


def test_what_is_not_given_before_prefill_is_queue(telemetry: Telemetry) -> None:
    """An engine that tells of prefill and decode alone: the rest of the time to the first token is the queue."""
    request, start = opened(telemetry, "default")
    request.token(at_ns=start + 7 * S)
    request.finish("stop", at_ns=start + 10 * S, durations={"prefill": 2.0, "decode": 3.0})
    assert seconds(telemetry) == (5.0, 0.0, 2.0, 3.0)


def test_stage_spans_are_written_at_derived_times(telemetry: Telemetry) -> None:
    """A derived stage has a span of its length, and all of them fill the request."""
    request, start = opened(telemetry)
    request.durations({"preprocessing": 0.5, "prefill": 2.0, "decode": 2.9})
    streamed(request, start)
    spans = {name: telemetry.span(name) for name in ("preprocessing", "queue", "prefill", "decode")}
    lengths = {name: (span["end_ns"] - span["start_ns"]) / S for name, span in spans.items()}
    assert lengths == {"preprocessing": 0.5, "queue": 4.5, "prefill": 2.0, "decode": 3.0}


def test_a_boundary_that_was_marked_is_not_moved(telemetry: Telemetry) -> None:
    """What an event said stands, whatever the durations are."""
    request, start = opened(telemetry)
    request.input_ready(at_ns=start + 1 * S)
    request.admit(at_ns=start + 4 * S)
    request.durations({"preprocessing": 0.5, "prefill": 1.0, "decode": 2.9})
    streamed(request, start)
    assert seconds(telemetry) == (3.0, 1.0, 3.0, 3.0)
    assert "inference.derived" not in telemetry.span("chat")["attributes"]


@pytest.mark.parametrize(
    "given",
    [{}, {"decode": 3.0}, {"prefill": 9.0, "decode": 1.0}, {"preprocessing": 8.0, "prefill": 2.0, "decode": 3.0}],
    ids=["none", "no prefill", "prefill too long", "sum too long"],
)
def test_durations_that_do_not_fit_place_nothing(telemetry: Telemetry, given: dict[str, float]) -> None:
    """Missing evidence is absent: no stage is guessed, and TTFT and E2E stand."""
    request, start = opened(telemetry)
    request.durations(given)
    streamed(request, start)
    attributes = telemetry.span("chat")["attributes"]
    assert seconds(telemetry)[:3] == (None, None, None)
    assert (attributes["inference.ttft"], attributes["inference.e2e"]) == (7.0, 10.0)
    assert "inference.derived" not in attributes


def test_a_small_excess_is_the_difference_of_two_clocks(telemetry: Telemetry) -> None:
    """Stages that are longer than the time to the first token by 1 % of the request leave a queue of 0."""
    request, start = opened(telemetry)
    request.durations({"preprocessing": 5.05, "prefill": 2.0, "decode": 3.0})
    streamed(request, start)
    assert seconds(telemetry) == (0.0, 5.0, 2.0, 3.0)


def test_a_cancelled_request_gets_no_derived_stage(telemetry: Telemetry) -> None:
    """Durations describe an answer that came to its end."""
    request, start = opened(telemetry)
    request.token(at_ns=start + 7 * S)
    request.durations({"prefill": 2.0, "decode": 3.0})
    request.cancel(at_ns=start + 10 * S)
    assert seconds(telemetry)[:3] == (None, None, None)


def test_the_report_names_derived_times(telemetry: Telemetry) -> None:
    """The report has every timestamp, in order, and says which of them nobody marked."""
    request, start = opened(telemetry)
    request.durations({"preprocessing": 0.5, "prefill": 2.0, "decode": 2.9})
    streamed(request, start)
    report = request.report
    moments = {key: round((at - start) / S, 6) for key, at in report["timestamps"].items()}
    assert moments == {"arrival": 0, "input_ready": 0.5, "admitted": 5.0, "first_token": 7.0, "terminal": 10.0}
    assert report["derived"] == ["input_ready", "admitted"]
    assert lifecycle.classify_request_outcome(report, lifecycle.compute_request_metrics(report))["stage"] == "queue"


@pytest.mark.parametrize("wrong", [{"warmup": 1.0}, {"prefill": -1.0}, {"prefill": float("nan")}, {"prefill": "1"}, 7])
def test_impossible_durations_are_a_violation(telemetry: Telemetry, wrong: Any) -> None:
    """What is no stage, or no length, is counted and places nothing."""
    request, start = opened(telemetry)
    request.durations(wrong)
    streamed(request, start)
    attributes = telemetry.span("chat")["attributes"]
    assert (attributes["inference.violations"], attributes["inference.legal"]) == (1, False)


@pytest.mark.parametrize("name", VALUES)
def test_hostile_durations_raise_nothing(telemetry: Telemetry, name: str) -> None:
    """Whatever their own methods do, neither the mapping nor what is in it reaches the server as an exception."""
    value = VALUES[name]
    request = telemetry.request()
    request.durations(value)
    request.durations({"prefill": value})
    request.finish("stop", durations=value)
    assert request.outcome == "completed"


def test_a_shape_is_set_before_the_first_boundary_that_differs(telemetry: Telemetry) -> None:
    """After arrival any shape will do: the request goes on in it as if it had been opened so."""
    request, start = opened(telemetry, "default")
    request.set(shape="preprocess_first")
    request.input_ready(at_ns=start + 1 * S)
    request.admit(at_ns=start + 4 * S)
    streamed(request, start)
    attributes = telemetry.span("chat")["attributes"]
    assert seconds(telemetry) == (3.0, 1.0, 3.0, 3.0)
    assert (attributes["inference.shape"], attributes["inference.legal"]) == ("preprocess_first", True)


def test_shapes_that_begin_alike_may_follow_later(telemetry: Telemetry) -> None:
    """A pooling request differs from the default only when it is out of prefill."""
    request, start = opened(telemetry, "default")
    request.admit(at_ns=start + 1 * S)
    request.input_ready(at_ns=start + 2 * S)
    request.set(shape="pooling", operation="embeddings")
    request.complete(at_ns=start + 5 * S)
    attributes = telemetry.span("embeddings")["attributes"]
    assert (attributes["inference.prefill"], attributes["inference.legal"]) == (3.0, True)


@pytest.mark.parametrize(
    ("shape", "events", "wanted"),
    [
        ("default", ("admit",), "preprocess_first"),
        ("preprocess_first", ("input_ready",), "default"),
        ("preprocess_first", ("input_ready",), "pooling"),
        ("default", ("admit", "input_ready", "preempt"), "pooling"),
        ("default", ("admit", "input_ready", "first_token"), "pooling"),
        ("default", (), "no such shape"),
        ("default", (), 7),
    ],
)
def test_a_shape_that_comes_too_late_is_a_violation(
    telemetry: Telemetry, shape: str, events: tuple[str, ...], wanted: Any
) -> None:
    """The request stays in its shape, and nothing else of it changes."""
    request = telemetry.request(shape=shape)
    for event in events:
        getattr(request, event)()
    request.set(shape=wanted)
    request.cancel()
    attributes = telemetry.span("chat")["attributes"]
    assert (attributes.get("inference.shape", "default"), attributes["inference.violations"]) == (shape, 1)


def test_the_shape_it_has_may_be_set_at_any_time(telemetry: Telemetry) -> None:
    """Saying again what is so is no fault."""
    request = telemetry.request()
    request.admit()
    request.set(shape="default")
    request.cancel()
    assert telemetry.span("chat")["attributes"]["inference.legal"] is True


def test_the_log_of_the_engine_follows_the_shape(telemetry: Telemetry) -> None:
    """In this shape a request that preprocesses does not wait: one that arrives meanwhile has nobody ahead of it."""
    first = telemetry.request(engine="e")
    first.set(shape="preprocess_first")
    second = telemetry.request(engine="e", operation="second")
    second.admit()
    second.input_ready()
    second.token()
    second.complete()
    first.cancel()
    assert telemetry.span("second")["attributes"]["inference.queue.ahead"] == 0


def test_a_drop_in_takes_the_shape_of_its_engine(telemetry: Telemetry) -> None:
    """A request that a server opened and did not mark goes on in the engine's shape; one it marked stays."""
    for mark, expected in ((False, "preprocess_first"), (True, "default")):
        request = telemetry.request(operation=f"marked {mark}")
        with request.active():
            if mark:
                request.admit()
            joined = driver.begin({}, shape="preprocess_first")
            joined.follow_shape("preprocess_first")
        request.cancel()
        attributes = telemetry.span(f"marked {mark}")["attributes"]
        assert (attributes.get("inference.shape", "default"), attributes["inference.legal"]) == (expected, True)


def test_a_block_of_a_stage_keeps_the_shape(telemetry: Telemetry) -> None:
    """A server that spends a block in the queue marks its stages itself."""
    request = telemetry.request()
    with request.active(), request.stage("queue"):
        driver.begin({}).follow_shape("preprocess_first")
    request.cancel()
    attributes = telemetry.span("chat")["attributes"]
    assert ("inference.shape" in attributes, attributes["inference.failure.stage"]) == (False, "preprocessing")
