"""Who held a request, on its span and in the metrics, through all four ways in: as the engine's schedule has it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.core.schedules import TICK, Expected, Scheduled, expected, schedules
from tests.request.manual_clock import Clock, clock
from tests.support.plain import Span
from tests.support.telemetry import Telemetry

MS = 1_000_000
EPOCH = 1_700_000_000_000_000_000
__all__ = ["clock"]
Make = Callable[..., Telemetry]
engines = itertools.count()
"""Each example has an engine of its own: requests of others are not neighbours."""


def found_of(span: Span) -> dict[str, Any]:
    """Return what the span of a request says of others, times in nanoseconds."""
    told = {name.removeprefix("inference."): value for name, value in span["attributes"].items()}
    times = ["queue.beside.preprocessing", "queue.beside.prefill", "queue.beside.decode", "queue.idle", "queue_wait"]
    times += ["stall.time", "stall.prefill", "stall.preemption", "stall.unexplained"]
    plain = ["queue.ahead", "queue.running", "company.prefill", "company.decode", "stall.count"]
    return {
        **{name: round(told[name] * 1e9) for name in times if name in told},
        **{name: told[name] for name in plain if name in told},
        "complete": told.get("interference.complete", True),
        "links": [
            (
                link["attributes"]["inference.link.reason"],
                round(link["attributes"]["inference.link.time"] * 1e9),
                link["attributes"]["inference.request.id"],
            )
            for link in span.get("links", [])
        ],
    }


def assert_told(span: Span, wanted: Expected) -> None:
    """Compare a span with what was counted, to the nanosecond."""
    found = found_of(span)
    assert (found["complete"], found["queue.ahead"], found["queue.running"]) == (True, wanted.ahead, wanted.running)
    if wanted.queue is not None:
        parts = {stage: found["queue.idle" if stage == "idle" else f"queue.beside.{stage}"] for stage in wanted.queue}
        assert sum(parts.values()) == found["queue_wait"] == sum(wanted.queue.values())
        assert {stage: part for stage, part in parts.items() if abs(part - wanted.queue[stage]) >= 4} == {}
    if wanted.stall is not None and found["stall.count"]:
        assert {part: found[f"stall.{part}"] for part in wanted.stall} == wanted.stall
        assert found["stall.time"] == sum(wanted.stall.values())
    for reason, times, whole in (
        ("queue", wanted.holders, sum((wanted.queue or {}).values(), Fraction(0))),
        ("stall", wanted.stallers, Fraction((wanted.stall or {}).get("prefill", 0))),
    ):
        fair = sorted(-int(time) for time in times.values() if time * 10 >= whole and time >= MS)[:3]
        linked = [(time, name) for why, time, name in found["links"] if why == reason]
        assert [-time for time, _ in linked] == fair
        assert all(int(times[name]) == time for time, name in linked)


def by_time(requests: Sequence[Scheduled]) -> list[tuple[int, Scheduled, dict[str, Any]]]:
    """Return every event of every request, in the order of their times; a request's own stay in order."""
    events = [(event["timestamp"], request, event) for request in requests for event in request.events]
    return sorted(events, key=lambda item: item[0])


def mark(handle: Any, event: str, **at: Any) -> None:
    """Mark an event by the method of its name."""
    getattr(handle, event)(**at)


def spans_of(telemetry: Telemetry, requests: Sequence[Scheduled]) -> dict[str, Span]:
    """Return the request spans by the name of the request."""
    spans = [span for span in telemetry.spans() if "inference.request.id" in span["attributes"]]
    assert len(spans) == len(requests)
    return {str(span["attributes"]["inference.request.id"]): span for span in spans}


def gave_up(name: str, arrived: int, ended: int) -> Scheduled:
    """Return a request that only waited, its times in ticks."""
    moves = (("queued", arrived * TICK), ("cancelled", ended * TICK))
    events = [{"event": event, "timestamp": at} for event, (_, at) in zip(("arrive", "cancel"), moves, strict=True)]
    return Scheduled(name=name, shape="default", moves=moves, events=tuple(events))


together = [
    [gave_up("r0", 1, 1), gave_up("r1", 0, 1)],
    [gave_up("r0", 0, 1), gave_up("r1", 1, 1)],
    [gave_up("r0", 1, 1), gave_up("r1", 1, 1), gave_up("r2", 0, 2)],
]
"""Requests that arrive and give up at one instant: only what others did at that instant before them is known then."""

quietly = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@quietly
@given(requests=schedules(most=5))
@example(requests=together[0])
@example(requests=together[1])
@example(requests=together[2])
def test_live_marks(make_telemetry: Make, clock: Clock, requests: list[Scheduled]) -> None:
    """Events are marked as they happen, of all requests in turn."""
    telemetry, engine = make_telemetry(), f"engine {next(engines)}"
    start, handles, moves, wanted = clock.now, {}, dict.fromkeys((one.name for one in requests), 0), {}
    for at, request, event in by_time(requests):
        clock.now = start + at
        moves[request.name] += event["event"] != "token"
        if event is request.events[-1]:
            # Others may do something at this very instant that is marked after this end: it cannot be used.
            wanted[request.name] = expected_then(request, requests, moves)
        if event["event"] == "arrive":
            handles[request.name] = telemetry.request(request_id=request.name, shape=request.shape, engine=engine)
        else:
            mark(handles[request.name], event["event"])
    spans = spans_of(telemetry, requests)
    for request in requests:
        assert_told(spans[request.name], wanted[request.name])


def expected_then(request: Scheduled, requests: Sequence[Scheduled], moves: Mapping[str, int]) -> Expected:
    """Work out what a request suffered by what was known at its end: the first moves of each of the others."""
    seen = [one if one is request else one.known(moves[one.name]) for one in requests if moves[one.name]]
    return expected(request, seen)


def assert_fed(
    telemetry: Telemetry, requests: Sequence[Scheduled], order: Sequence[int], *, recorded: bool = False
) -> None:
    """Tell of the requests afterwards: all but the ends in the order given, then the ends as they came; and compare."""
    engine = f"engine {next(engines)}"
    handles = {
        request.name: telemetry.request(
            request_id=request.name, shape=request.shape, engine=engine, arrived_at_ns=EPOCH + request.arrival
        )
        for request in requests
    }
    left = {request.name: list(request.events[1:-1]) for request in requests}

    def tell(request: Scheduled, event: dict[str, Any]) -> None:
        at_ns = EPOCH + event["timestamp"]
        if recorded:
            handles[request.name].record([{**event, "timestamp": at_ns}])
        else:
            mark(handles[request.name], event["event"], at_ns=at_ns)

    for place in order:
        tell(requests[place], left[requests[place].name].pop(0))
    moves, wanted = {one.name: len(one.moves) - 1 for one in requests}, {}
    for request in sorted(requests, key=lambda one: one.end):
        moves[request.name] += 1
        wanted[request.name] = expected_then(request, requests, moves)
        tell(request, request.events[-1])
    spans = spans_of(telemetry, requests)
    for request in requests:
        assert_told(spans[request.name], wanted[request.name])


@st.composite
def shuffled(draw: st.DrawFn) -> tuple[list[Scheduled], list[int]]:
    """Draw requests, and in which order one hears of what lies between their arrivals and ends."""
    requests = draw(schedules(most=5))
    return requests, draw(st.permutations([place for place, one in enumerate(requests) for _ in one.events[2:]]))


@quietly
@given(told=shuffled())
@example(told=(together[0], []))
@example(told=(together[1], []))
@example(told=(together[2], []))
def test_times_given_afterwards(make_telemetry: Make, told: tuple[list[Scheduled], list[int]]) -> None:
    """Every mark has ``at_ns``; requests are told of in any order."""
    assert_fed(make_telemetry(), *told)


@pytest.mark.long
@quietly
@given(told=shuffled())
@example(told=(together[0], []))
@example(told=(together[1], []))
@example(told=(together[2], []))
def test_events_recorded_elsewhere(make_telemetry: Make, told: tuple[list[Scheduled], list[int]]) -> None:
    """An engine in another process marked them; its batches come in any order."""
    assert_fed(make_telemetry(), *told, recorded=True)


@quietly
@given(requests=schedules(most=5), data=st.data())
def test_foreign_spans(make_telemetry: Make, requests: list[Scheduled], data: st.DataObject) -> None:
    """Spans of another library end in any order; each is compared with those that ended before it."""
    telemetry, number = make_telemetry(wrap=True), next(engines)
    engine = f"engine {number}"
    # Hypothesis seeds each example alike, which gives the spans of all of them the same ids: they would be known.
    random.seed(number)
    ended: list[Scheduled] = []
    for request in data.draw(st.permutations(requests)):
        attributes = {
            "inference.request.id": request.name,
            "inference.engine": engine,
        }
        if request.shape != "default":
            # Absent for the default shape, as the registry has it.
            attributes["inference.shape"] = request.shape
        span = telemetry.tracer().start_span("generate", attributes=attributes, start_time=EPOCH + request.arrival)
        for event in request.events:
            span.add_event(event["event"], timestamp=EPOCH + event["timestamp"])
        span.end(EPOCH + request.end)
        ended.append(request)
        assert_told(spans_of(telemetry, ended)[request.name], expected(request, ended))
