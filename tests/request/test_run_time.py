"""Bad input at run time: a counted violation, never an exception, and the request still ends normally."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from otel_lifecycle.errors import IllegalTransition, InvalidTimestamp, LifecycleError, MissingTerminal
from tests.request.manual_clock import opened_at
from tests.support.telemetry import Telemetry

NS = 10**9
NOW = 1_700_000_000 * NS


def kinds(telemetry: Telemetry) -> Counter[str]:
    """Violations by kind, as the metric counts them."""
    points = telemetry.points("inference.transition.violations")
    return Counter({point["attributes"]["inference.violation.kind"]: point["value"] for point in points})


TIMES = [
    (float("nan"), "invalid_timestamp"),
    (float("inf"), "invalid_timestamp"),
    ("noon", "invalid_timestamp"),
    (dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc), "invalid_timestamp"),
    (True, "invalid_timestamp"),
    (1.7e9, "foreign_clock"),
    (-1, "foreign_clock"),
    (2**70, "foreign_clock"),
    (0, "foreign_clock"),
]


@pytest.mark.parametrize(("time", "kind"), TIMES, ids=repr)
def test_time_that_cannot_be(telemetry: Telemetry, time: Any, kind: str) -> None:
    """The state moves, the time is lost, the rest stands."""
    with telemetry.request() as request:
        request.admit(at_ns=time)
        request.input_ready()
        request.token()
    attributes = telemetry.span("chat")["attributes"]
    assert (kinds(telemetry), attributes["inference.outcome"]) == ({kind: 1}, "completed")
    assert ("inference.queue_wait" in attributes, "inference.ttft" in attributes) == (False, True)


@pytest.mark.parametrize(("time", "kind"), TIMES, ids=repr)
def test_arrival_that_cannot_be(telemetry: Telemetry, time: Any, kind: str) -> None:
    """A lost arrival leaves ttft, queue_wait and e2e absent; the span starts at the call."""
    with telemetry.request(arrived_at_ns=time) as request:
        request.admit()
        request.input_ready()
        request.token()
    span = telemetry.span("chat")
    known = span["attributes"].keys()
    assert (kinds(telemetry), span["start_ns"] <= span["end_ns"]) == ({kind: 1}, True)
    assert known & {"inference.ttft", "inference.queue_wait", "inference.e2e"} == set()
    assert "inference.preprocessing" in known


@pytest.mark.parametrize("count", [-1, 1.5, "2", float("nan"), 2**63, True], ids=repr)
def test_count_that_cannot_be(telemetry: Telemetry, count: Any) -> None:
    """A token count that makes no sense leaves the count unknown."""
    with telemetry.request() as request:
        with request.stage("prefill"):
            pass
        request.token(count)
    attributes = telemetry.span("chat")["attributes"]
    assert (kinds(telemetry), attributes.get("inference.streamed_tokens")) == ({"invalid_value": 1}, None)


CONDITIONS: list[dict[str, Any]] = [
    {"model": 7},
    {"model": ""},
    {"model": "\x00\x1b"},
    {"max_tokens": -1},
    {"max_tokens": 2**63},
    {"max_tokens": 1.5},
    {"stream": "yes"},
    {"batch_size": True},
    {"input_tokens": -5},
    {"output_tokens": "many"},
    {"cached_tokens": float("nan")},
    {"deadline": 0},
    {"deadline": "soon"},
    {"request_id": b"x"},
    {"traffic": 5},
]


@pytest.mark.parametrize("condition", CONDITIONS, ids=repr)
@pytest.mark.parametrize("late", [False, True], ids=["request", "set"])
def test_condition_that_cannot_be(telemetry: Telemetry, condition: dict[str, Any], late: bool) -> None:
    """It is one invalid_value and not set; the request goes on."""
    with telemetry.request(**({} if late else condition)) as request:
        if late:
            request.set(**condition)
        for _ in request.stream([1]):
            pass
    (span,) = telemetry.spans("chat")
    assert (kinds(telemetry), span["attributes"]["inference.outcome"]) == ({"invalid_value": 1}, "completed")


def test_conditions_that_can_be(telemetry: Telemetry) -> None:
    """What set(), usage() and response() give is on the span, and a late model is in its name and labels."""
    with telemetry.request() as request:
        request.set(model="m", dtype="int4", attempt=2, stream=True, workload="chat", nonsense=1)
        request.usage(input_tokens=5, cached_tokens=3)
        request.usage(output_tokens=9)
        request.response(id="r", model="m-1", finish_reasons=["stop", "length"])
        request.response(finish_reasons="stop")
        list(request.stream([1]))
    attributes = telemetry.span("chat m")["attributes"]
    expected = {
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "inference.model.dtype": "int4",
        "inference.request.attempt": 2,
        "inference.request.workload": "chat",
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 9,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "inference.streamed_tokens": 1,
        "gen_ai.response.id": "r",
        "gen_ai.response.model": "m-1",
        "gen_ai.response.finish_reasons": ["stop", "length"],
        "inference.violations": 2,
    }
    assert {name: attributes.get(name) for name in expected} == expected
    assert telemetry.point("inference.requests")["attributes"]["gen_ai.request.model"] == "m"


def test_strings_are_cleaned_and_cut(telemetry: Telemetry) -> None:
    """Control characters, lone surrogates and a megabyte of text harm neither log nor batch."""
    with telemetry.request(model="a\nb\x1b[31m\ud800" + "x" * 10**6, request_id="\r\nid") as request:
        list(request.stream([1]))
    (span,) = [span for span in telemetry.spans() if span["name"].startswith("chat ")]
    model = span["attributes"]["gen_ai.request.model"]
    assert (model[:8], len(model), span["attributes"]["inference.request.id"]) == ("ab[31m?x", 254, "id")
    assert len(span["name"]) <= 256


MISUSES: list[tuple[str, Callable[[Any], Any], dict[str, int]]] = [
    ("ended twice", lambda request: (request.cancel(), request.cancel()), {"duplicate_terminal": 1}),
    ("token after", lambda request: (request.cancel(), request.token(), request.token()), {"event_after_terminal": 1}),
    ("mark after", lambda request: (request.cancel(), request.admit()), {"event_after_terminal": 1}),
    ("entered after", lambda request: (request.cancel(), request.__enter__()), {"event_after_terminal": 1}),
    ("usage after", lambda request: (request.cancel(), request.usage(input_tokens=1)), {"event_after_terminal": 1}),
    ("complete early", lambda request: (request.complete(), request.cancel()), {"illegal_transition": 1}),
    ("output early", lambda r: (r.admit(), r.output(3), r.cancel()), {"illegal_transition": 1}),
    ("token early", lambda r: (r.admit(), r.token(), r.token(), r.cancel()), {"illegal_transition": 1}),
    ("left early", lambda request: request.__exit__(None, None, None), {"missing_terminal": 1}),
    ("record nothing", lambda request: (request.record(None), request.cancel()), {"invalid_value": 1}),
    ("record junk", lambda request: (request.record([{}, 5, {"event": 3}]), request.cancel()), {"invalid_value": 3}),
    ("note nonsense", lambda request: (request.delivered(at_ns="x"), request.cancel()), {"invalid_timestamp": 1}),
    (
        "time back",
        lambda request: (request.admit(at_ns=opened_at(request) - NS), request.cancel()),
        {"non_monotonic_time": 1},
    ),
    (
        "time ahead",
        lambda request: (request.admit(at_ns=opened_at(request) + 60 * NS), request.cancel()),
        {"foreign_clock": 1},
    ),
]


@pytest.mark.parametrize(("name", "misuse", "expected"), MISUSES, ids=[name for name, _, _ in MISUSES])
def test_misuse_is_counted(
    telemetry: Telemetry, name: str, misuse: Callable[[Any], Any], expected: dict[str, int]
) -> None:
    """Each misuse is its violation, once, and there is one outcome."""
    request = telemetry.request()
    misuse(request)
    assert kinds(telemetry) == expected, name
    assert [point["value"] for point in telemetry.points("inference.requests")] == [1]


def test_strict_raises_at_the_call(make_telemetry: Callable[..., Telemetry]) -> None:
    """With strict=True each is raised where it was done, nothing has changed, and the request can go on."""
    telemetry = make_telemetry(strict=True)
    request = telemetry.request()
    with pytest.raises(InvalidTimestamp):
        request.admit(at_ns=float("nan"))
    request.admit()
    with pytest.raises(IllegalTransition):
        request.first_token()
    request.input_ready()
    request.token()
    with pytest.raises(LifecycleError):
        request.token(-1)
    request.token()
    request.complete()
    assert (request.report["output_tokens"], kinds(telemetry)) == (2, {})


def test_strict_block_left_early(make_telemetry: Callable[..., Telemetry]) -> None:
    """A block left without an end raises when nothing else does; the server's own exception always goes first."""
    telemetry = make_telemetry(strict=True)
    with pytest.raises(MissingTerminal), telemetry.request():
        pass
    with pytest.raises(KeyError), telemetry.request():
        raise KeyError
    outcomes = [span["attributes"]["inference.outcome"] for span in telemetry.spans("chat")]
    assert outcomes == ["incomplete", "failed"]


def test_another_processor_that_raises(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """What a third processor raises when spans start or end stays out of the server, and is said."""
    from opentelemetry.sdk.trace import SpanProcessor

    class Raises(SpanProcessor):
        def on_end(self, span: Any) -> None:
            raise RuntimeError("mine")

    telemetry.tracer_provider.add_span_processor(Raises())
    with telemetry.request() as request:
        list(request.stream([1]))
    assert telemetry.point("inference.requests")["value"] == 1
    assert telemetry.points("inference.active_requests") == []
    assert any("mine" in str(record.exc_info) for record in caplog.records)
