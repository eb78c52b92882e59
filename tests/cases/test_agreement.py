"""Whatever the trace, the request API, the replay and a foreign span tell the same story; and nothing gets out.

The cases of the table are single points; these properties are what they have in common.
"""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_lifecycle import compute_request_metrics, replay_request_events
from otel_lifecycle._core.lifecycle import EVENTS, SHAPES
from otel_lifecycle.errors import LifecycleError
from tests.core.walks import GENERATING, blurred, streamed, traces, walk
from tests.support.examples import scaled
from tests.support.telemetry import Telemetry

from .live import BASE, EPOCH, near
from .notation import METRICS, NOTES, NS

every_shape = pytest.mark.parametrize("shape", SHAPES)
few = settings(max_examples=scaled(40))


@contextmanager
def fresh(**arguments: Any) -> Iterator[Telemetry]:
    """Make providers for one example; a fixture would be shared by all of them."""
    telemetry = Telemetry(**arguments)
    try:
        yield telemetry
    finally:
        telemetry.shutdown()


def at(event: Mapping[str, Any]) -> int | None:
    """Return the time of an event in epoch nanoseconds."""
    time_ns: int | None = event["timestamp"]
    return None if time_ns is None else EPOCH + time_ns


def play(events: list[dict[str, Any]], shape: str, telemetry: Telemetry) -> Any:
    """Give recorded events to a request."""
    request = telemetry.request(model="tiny", operation="chat", shape=shape, arrived_at_ns=at(events[0]))
    for event in events[1:]:
        arguments: list[Any] = []
        if event["event"] in ("token", "first_token"):
            arguments = [event.get("count", 1), event.get("choice", 0)]
        elif event["event"] == "output":
            arguments = [event.get("count")]
        getattr(request, event["event"])(*arguments, at_ns=at(event))
    return request


def replayed(events: list[dict[str, Any]], shape: str) -> Mapping[str, Any]:
    """Return the report of the replay, in epoch nanoseconds."""
    return replay_request_events([{**event, "timestamp": at(event)} for event in events], shape)


def assert_same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compare two reports."""
    keys = ("status", "failure_stage", "shape", "timestamps", "token_times", "preempted", "output_tokens", "choices")
    assert {key: found[key] for key in keys} == {key: expected[key] for key in keys}
    assert sorted(found["itl"]) == sorted(expected["itl"])
    assert dict(compute_request_metrics(found)) == dict(compute_request_metrics(expected))


@every_shape
@few
@given(data=st.data())
def test_legal_traces_of_unknown_times(shape: str, data: st.DataObject) -> None:
    """The report of the handle is that of the replay, and the span has its figures in seconds."""
    events = data.draw(blurred(shape))
    with fresh() as telemetry:
        report = play(events, shape, telemetry).report
        assert_same(report, replayed(events, shape))
        attributes = telemetry.span("chat tiny")["attributes"]
        assert telemetry.points("inference.transition.violations") == []
    metrics = compute_request_metrics(report)
    found = {name: attributes.get(f"inference.{name}") for name in METRICS}
    assert found == {name: in_seconds(name, metrics[name]) for name in METRICS}
    assert attributes["inference.legal"] is True
    lost = list(report["preempted"].values())
    known = lost and None not in lost
    assert attributes.get("inference.preempted") == (near(sum(lost) / NS) if known else None)


def in_seconds(name: str, value: Any) -> Any:
    """Return a metric as the span has it."""
    return value if value is None or name == "streamed_tokens" else near(value / NS)


@pytest.mark.parametrize("shape", GENERATING)
@few
@given(data=st.data())
def test_chunks_and_choices(shape: str, data: st.DataObject) -> None:
    """The same with several tokens a chunk and several choices."""
    events = data.draw(streamed(shape))
    with fresh() as telemetry:
        assert_same(play(events, shape, telemetry).report, replayed(events, shape))


@every_shape
@few
@given(data=st.data())
def test_shares_on_the_span_sum_to_1(shape: str, data: st.DataObject) -> None:
    """And the dominant share is the largest of them."""
    events = data.draw(traces(shape, frozenset({"output", "cancel", "timeout", "fail"})))
    with fresh() as telemetry:
        play(events, shape, telemetry)
        attributes = telemetry.span("chat tiny")["attributes"]
    shares = [value for name, value in attributes.items() if name.startswith("inference.share.")]
    if shares:
        assert sum(shares) == pytest.approx(1)
        assert (len(shares), attributes["inference.dominant_share"]) == (3 if shape == "pooling" else 4, max(shares))
    else:
        assert "inference.bottleneck" not in attributes


@few
@given(events=traces("default"))
def test_foreign_spans(events: list[dict[str, Any]]) -> None:
    """A span of another library with the same events gives the same figures."""
    report = replayed(events, "default")
    with fresh(wrap=True) as telemetry:
        span = telemetry.tracer().start_span("generate", start_time=at(events[0]), attributes=BASE)
        for event in events:
            span.add_event(event["event"], timestamp=at(event))
        span.end(end_time=at(events[-1]))
        attributes = telemetry.span("generate")["attributes"]
        assert telemetry.points("inference.transition.violations") == []
    metrics = compute_request_metrics(report)
    names = [name for name in METRICS if name != "streamed_tokens"]
    found = {name: attributes.get(f"inference.{name}") for name in names}
    assert found == {name: in_seconds(name, metrics[name]) for name in names}
    assert attributes["inference.outcome"] == report["status"]


# ------------------------------------------------------------------------------------------------- single mutations


@st.composite
def with_an_illegal_event(draw: st.DrawFn, shape: str) -> tuple[list[dict[str, Any]], int]:
    """Draw a legal trace with one event in it that is illegal where it stands; return its place too."""
    events = draw(traces(shape))
    names = [event["event"] for event in events]
    place = draw(st.integers(1, len(events)))
    (state, _), _ = walk(shape, names[:place])
    legal = set(SHAPES[shape].table[state])
    before_output = [stage.state for stage in SHAPES[shape].stages[:3]]
    if state in before_output:
        # The request API takes what lies ahead, and any token for the first one (C113).
        ahead = before_output[before_output.index(state) + 1 :]
        passing = {"admit", "input_ready", "first_token", "output", "complete"}
        legal |= {event for one in ahead for event in SHAPES[shape].table[one] if event in passing}
        legal |= {"token"} if shape in GENERATING else set()
    name = draw(st.sampled_from(sorted(EVENTS - legal - {"arrive"})))
    event = {"event": name, "timestamp": events[place - 1]["timestamp"]}
    return [*events[:place], event, *events[place:]], place


@every_shape
@few
@given(data=st.data())
def test_illegal_event_is_reported_once_and_changes_nothing(shape: str, data: st.DataObject) -> None:
    """One violation, of the kind, state and event that the replay's refusal has; the rest as if it had not come."""
    events, place = data.draw(with_an_illegal_event(shape))
    error = refusal(events, shape)
    assert (error.event, error.timestamp) == (events[place]["event"], at(events[place]))
    with fresh() as telemetry:
        report = play(events, shape, telemetry).report
        points = telemetry.points("inference.transition.violations")
        span_events = telemetry.span("chat tiny")["events"]
    assert_same(report, replayed(events[:place] + events[place + 1 :], shape))
    assert [(point["attributes"]["inference.violation.kind"], point["value"]) for point in points] == [(error.kind, 1)]
    said = [event["attributes"] for event in span_events if event["name"] == "inference.violation"]
    expected = {
        "inference.violation.kind": error.kind,
        "inference.violation.state": error.state,
        "inference.violation.event": error.event,
    }
    assert said == ([] if place == len(events) - 1 else [expected])


@every_shape
@few
@given(data=st.data())
def test_strict_raises_what_the_replay_refuses(shape: str, data: st.DataObject) -> None:
    """The same error at the call, with the same attributes."""
    events, place = data.draw(with_an_illegal_event(shape))
    error = refusal(events, shape)
    with fresh(strict=True) as telemetry:
        request = play(events[:place], shape, telemetry)
        with pytest.raises(LifecycleError) as caught:
            getattr(request, events[place]["event"])(at_ns=at(events[place]))
        if request.report is None:
            request.cancel(at_ns=None)
    found = caught.value
    assert (type(found), found.state, found.event, found.allowed) == (
        type(error),
        error.state,
        error.event,
        error.allowed,
    )


def refusal(events: list[dict[str, Any]], shape: str) -> LifecycleError:
    """Return what the replay refuses a trace for."""
    with pytest.raises(LifecycleError) as caught:
        replayed(events, shape)
    return caught.value


# ------------------------------------------------------------------------------------------------------ any nonsense

NOW = time.time_ns()
A_DATE = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
TIMES = st.one_of(
    st.just("live"),
    st.none(),
    st.integers(EPOCH, EPOCH + 100),
    st.integers(NOW - NS, NOW + NS),
    st.integers(-(2**70), 2**70),
    st.sampled_from(
        [math.nan, math.inf, 1.5, "12", b"", dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc), True, [], 10**400]
    ),
)
COUNTS = st.one_of(st.integers(-2, 3), st.none(), st.sampled_from([math.nan, "3", 2**70, [], 1.5, True]))
CALLS = st.lists(st.tuples(st.sampled_from(sorted((EVENTS | NOTES) - {"arrive"})), TIMES, COUNTS, COUNTS), max_size=25)


def call(request: Any, name: str, at_ns: Any, count: Any, choice: Any) -> None:
    """Call one method of the handle, with arguments of any kind."""
    keywords = {} if at_ns == "live" else {"at_ns": at_ns}
    if name in ("token", "first_token"):
        getattr(request, name)(count, choice, **keywords)
    elif name in ("output", "cancel", "timeout", "fail"):
        getattr(request, name)(count, **keywords)
    else:
        getattr(request, name)(**keywords)


@every_shape
@settings(max_examples=scaled(80))
@given(calls=CALLS, arrival=TIMES)
def test_nothing_raises_and_every_request_ends_once(shape: str, calls: list[Any], arrival: Any) -> None:
    """Misuse of any kind is counted; the request ends once, its spans are sound and nothing is negative."""
    arrived = {} if arrival == "live" else {"arrived_at_ns": arrival}
    with fresh() as telemetry:
        with telemetry.request(model="tiny", operation="chat", shape=shape, **arrived) as request:
            for arguments in calls:
                call(request, *arguments)
        assert request.report is not None
        del request
        points, spans = telemetry.points(), telemetry.spans()
        root = telemetry.span("chat tiny")
    assert sum(point["value"] or 0 for point in points if point["metric"] == "inference.requests") == 1
    assert [point for point in points if point["metric"] == "inference.active_requests" and point["value"]] == []
    assert [span["name"] for span in spans if span["end_ns"] < span["start_ns"]] == []
    numbers = [value for value in root["attributes"].values() if type(value) in (int, float)]
    assert [value for value in numbers if not 0 <= value < math.inf] == []
    assert [point["metric"] for point in points if point["min"] is not None and point["min"] < 0] == []
    kinds = sum(point["value"] or 0 for point in points if point["metric"] == "inference.transition.violations")
    assert root["attributes"]["inference.violations"] <= kinds
    assert root["attributes"]["inference.legal"] is (root["attributes"]["inference.violations"] == 0)


@settings(max_examples=scaled(80))
@given(calls=CALLS)
def test_one_ttft_sample_at_most(calls: list[Any]) -> None:
    """TTFT samples never outnumber requests, whatever is marked twice."""
    with fresh() as telemetry:
        with telemetry.request(model="tiny") as request:
            for arguments in calls:
                call(request, *arguments)
        points = telemetry.points()
    for metric in ("inference.time_to_first_token", "inference.request.duration", "gen_ai.server.request.duration"):
        assert sum(point["count"] or 0 for point in points if point["metric"] == metric) <= 1
