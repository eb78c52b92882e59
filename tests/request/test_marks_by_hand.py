"""Marks by hand: boundaries that lie ahead, recorded events, ends that two sides mark, clocks of engines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle import driver
from otel_lifecycle._runtime import runtime
from otel_lifecycle.errors import IllegalTransition
from tests.support.telemetry import Telemetry

NS = 10**9


def legal(telemetry: Telemetry) -> tuple[Any, Any, Any]:
    """Outcome, tokens and legality of the one request span."""
    attributes = telemetry.span("chat")["attributes"]
    return tuple(attributes.get(f"inference.{name}") for name in ("outcome", "streamed_tokens", "legal"))  # type: ignore[return-value]


def test_c113_tokens_without_boundaries_are_legal(telemetry: Telemetry) -> None:
    """A server that marks no boundary shows none: TTFT, TPOT and E2E stand, stages and shares are absent."""
    with telemetry.request() as request:
        request.token()
        request.token()
        request.token()
    attributes = telemetry.span("chat")["attributes"]
    assert legal(telemetry) == ("completed", 3, True)
    assert {"inference.ttft", "inference.tpot", "inference.e2e"} <= attributes.keys()
    assert {"inference.queue_wait", "inference.prefill", "inference.bottleneck"} & attributes.keys() == set()


@pytest.mark.parametrize(
    "mark",
    [
        lambda request: request.first_token(),
        lambda request: request.token(2),
        lambda request: request.output(2),
        lambda request: lifecycle.step([request]),
        lambda request: request.record([{"event": "token", "timestamp": time.time_ns(), "count": 2}]),
    ],
    ids=["first_token", "token", "output", "step", "record"],
)
@pytest.mark.parametrize("admitted", [False, True])
def test_c113_an_event_ahead_is_applied(telemetry: Telemetry, mark: Callable[[Any], Any], admitted: bool) -> None:
    """Whatever lies ahead is applied; where some boundaries were marked, those skipped are one violation."""
    request = telemetry.request()
    if admitted:
        request.admit()
    mark(request)
    request.complete()
    assert (request.outcome, telemetry.span("chat")["attributes"]["inference.legal"]) == ("completed", not admitted)
    violations = [point["value"] for point in telemetry.points("inference.transition.violations")]
    assert violations == ([1] if admitted else [])


def test_c113_pooling_completes_from_the_queue(telemetry: Telemetry) -> None:
    """A pooling request has no tokens: its completion passes what nobody marked."""
    request = telemetry.request(operation="chat", shape="pooling")
    request.complete()
    assert legal(telemetry) == ("completed", None, True)


def test_c113_strict_raises(make_telemetry: Callable[..., Telemetry]) -> None:
    """In strict mode a skipped boundary raises and changes nothing."""
    request = make_telemetry(strict=True).request()
    request.admit()
    with pytest.raises(IllegalTransition):
        request.token()
    assert request.state == "preprocessing"
    request.cancel()


def test_backward_events_are_not_applied(telemetry: Telemetry) -> None:
    """What was passed cannot come again."""
    request = telemetry.request()
    request.token()
    request.admit()
    request.complete()
    assert legal(telemetry) == ("completed", 1, False)


EVENTS: list[dict[str, Any]] = [
    {"event": "admit"},
    {"event": "input_ready"},
    {"event": "token", "count": 2},
    {"event": "token"},
    {"event": "usage", "input_tokens": 7, "output_tokens": 3},
    {"event": "response", "id": "r1", "model": "tiny-2", "finish_reasons": ["stop"]},
]
ENDS: list[dict[str, Any]] = [
    {"event": "complete"},
    {"event": "fail", "error": "out_of_memory"},
    {"event": "timeout", "reason": "deadline"},
    {"event": "cancel", "reason": "client_disconnected"},
]


def by_methods(request: Any, events: list[dict[str, Any]]) -> None:
    """Mark the events by the methods of their names."""
    for item in events:
        arguments = {name: value for name, value in item.items() if name not in {"event", "timestamp"}}
        count = arguments.pop("count", None)
        positional = [] if count is None else [count]
        at = {"at_ns": item["timestamp"]} if "timestamp" in item else {}
        getattr(request, item["event"])(*positional, **arguments, **at)


@pytest.mark.parametrize("skip", [0, 1, 2])
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end["event"])
def test_c116_recorded_events_equal_live_marks(
    make_telemetry: Callable[..., Telemetry], end: dict[str, Any], skip: int
) -> None:
    """The same events by record() and by the methods give the same report and the same attributes."""
    start = time.time_ns() - NS
    events = [
        item if item["event"] in {"usage", "response"} else {**item, "timestamp": start + number * 1000}
        for number, item in enumerate([*EVENTS[skip:], end])
    ]
    told = []
    for way in (by_methods, lambda request, items: request.record(items)):
        telemetry = make_telemetry()
        # Both run at the same times: without an engine of its own, the second is a neighbour of the first.
        runtime().engines = runtime().engines.fresh()
        request = telemetry.request(arrived_at_ns=start)
        way(request, events)
        report = {key: value for key, value in request.report.items() if key != "foreign"}
        told.append((report, telemetry.span("chat")["attributes"]))
    assert told[0] == told[1]
    assert told[0][1]["gen_ai.usage.input_tokens"] == 7


def test_c118_the_second_end_loses_quietly(telemetry: Telemetry) -> None:
    """Where two sides end a request, ``if_open`` lets the later one lose; without it that is a duplicate_terminal."""
    request = telemetry.request()
    request.timeout("deadline")
    for end in (request.cancel, request.fail, request.timeout, request.complete):
        end(if_open=True)
    assert telemetry.points("inference.transition.violations") == []
    request.cancel()
    kind = telemetry.point("inference.transition.violations")["attributes"]["inference.violation.kind"]
    assert (request.outcome, kind) == ("timed_out", "duplicate_terminal")


def test_state_ended_and_outcome(telemetry: Telemetry) -> None:
    """The handle says where it is; the one of no request is falsy and has not ended."""
    nobody = lifecycle.current()
    assert (bool(nobody), nobody.state, nobody.ended, nobody.outcome) == (False, "not_arrived", False, None)
    request = telemetry.request()
    seen = [(bool(request), request.state, request.ended, request.outcome)]
    request.admit()
    seen.append((bool(request), request.state, request.ended, request.outcome))
    request.cancel()
    seen.append((bool(request), request.state, request.ended, request.outcome))
    assert seen == [
        (True, "queued", False, None),
        (True, "preprocessing", False, None),
        (True, "cancelled", True, "cancelled"),
    ]


@pytest.mark.parametrize(
    ("word", "outcome"),
    [
        ("stop", "completed"),
        ("length", "completed"),
        ("tool_calls", "completed"),
        ("a word nobody knows", "completed"),
        (None, "completed"),
        ("abort", "cancelled"),
        ("error", "failed"),
    ],
)
@pytest.mark.parametrize("tokens", [0, 2])
def test_finish_by_an_engines_word(telemetry: Telemetry, word: str | None, outcome: str, tokens: int) -> None:
    """Every word leads to a legal end, without a token too, and is the finish reason if none was given."""
    request = telemetry.request()
    for _ in range(tokens):
        request.token()
    request.finish(word)
    attributes = telemetry.span("chat")["attributes"]
    reasons = None if word is None else [word]
    assert (request.outcome, attributes["inference.legal"]) == (outcome, True)
    assert list(attributes.get("gen_ai.response.finish_reasons") or []) == (reasons or [])
    request.finish("stop")
    assert telemetry.points("inference.transition.violations") == []


def test_times_of_an_engines_monotonic_clock(telemetry: Telemetry) -> None:
    """Readings of time.monotonic() lie on the request's own anchor, whatever the wall clock says."""
    arrived = time.monotonic_ns()
    request = telemetry.request(arrived_at_ns=lifecycle.monotonic(ns=arrived))
    later = [arrived + 1000 * number for number in range(5)]
    request.admit(at_ns=lifecycle.monotonic(later[0] / 1e9))
    request.input_ready(at_ns=lifecycle.monotonic(ns=later[1]))
    drive = driver.adopt(request, owned=True)
    drive.item(at_monotonic_ns=later[2])
    lifecycle.step([request], at_ns=lifecycle.monotonic(ns=later[3]))
    drive.end(None, at_monotonic_ns=later[4])
    metrics = lifecycle.compute_request_metrics(request.report)
    assert {name: metrics[name] for name in ("preprocessing", "ttft", "token_span", "e2e")} == {
        "preprocessing": pytest.approx(1000, abs=200),
        "ttft": 2000,
        "token_span": 1000,
        "e2e": 4000,
    }


def test_step_with_counts_at_a_time(telemetry: Telemetry) -> None:
    """One stamp serves the batch; each request gets its count, 0 nothing and None a chunk of unknown size."""
    requests = [telemetry.request() for _ in range(4)]
    lifecycle.step(requests)
    lifecycle.step(requests, counts=[1, 3, 0, None], at_ns=time.time_ns())
    for request in requests:
        request.complete()
    assert [request.report["output_tokens"] for request in requests] == [2, 4, 1, None]


def test_driver_ignores_what_was_passed_and_passes_what_was_not(telemetry: Telemetry) -> None:
    """Two sources may report one event; what only one of them knows is not held against the other."""
    request = telemetry.request()
    request.admit()
    drive = driver.adopt(request, owned=False)
    assert [drive.mark(name) for name in ("admit", "first_token", "input_ready")] == [False, True, False]
    drive.leave(None)
    drive.finish("stop")
    assert not request.ended
    request.complete()
    assert legal(telemetry) == ("completed", 1, True)


def test_c111_names_of_the_conventions(telemetry: Telemetry) -> None:
    """The provider is the engine or absent, never _OTHER; pooling is embeddings; stream is said only when streaming."""
    telemetry.request(model="a", stream=False).cancel()
    telemetry.request(model="b", backend="vllm", stream=True).cancel()
    telemetry.request(model="c", shape="pooling", backend="vllm", provider="me").cancel()
    names = ("gen_ai.provider.name", "gen_ai.operation.name", "gen_ai.request.stream")
    told = [
        tuple(span["attributes"].get(name) for name in names)
        for span in telemetry.spans()
        if "inference.outcome" in span["attributes"]
    ]
    assert told == [(None, "chat", None), ("vllm", "chat", True), ("me", "embeddings", None)]
    labels = [point["attributes"].get("gen_ai.provider.name") for point in telemetry.points("inference.requests")]
    assert sorted(map(str, labels)) == ["None", "me", "vllm"]
