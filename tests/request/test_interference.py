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
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, Sampler, SamplingResult

import otel_lifecycle as lifecycle
from otel_lifecycle._core.engines import EngineLogs
from otel_lifecycle._runtime import runtime
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


def at(telemetry: Telemetry, name: str, *times: int | None, tokens: Sequence[int] = (), **given: Any) -> Any:
    """Open a request and give the times of its boundaries in milliseconds: arrival, admit, input_ready, first_token."""
    arrived, *rest = [None if time is None else EPOCH + time * MS for time in times]
    handle = telemetry.request(model="tiny", request_id=name, arrived_at_ns=arrived, **given)
    for event, time in zip(("admit", "input_ready", "first_token"), rest, strict=False):
        mark(handle, event, at_ns=time)
    for token in tokens:
        handle.token(at_ns=EPOCH + token * MS)
    return handle


@pytest.fixture
def engine() -> str:
    """Return the name of an engine that no other test uses."""
    return f"engine {next(engines)}"


STREAM = [120 + 20 * number for number in range(10)] + [700]
"""Tokens every 20 ms, then one after 400 ms."""


def victim_and_neighbour(telemetry: Telemetry, engine: str, **given: Any) -> dict[str, Span]:
    """Let a request wait for another, and another stall it by its prefill."""
    first = at(telemetry, "first", 0, 0, 0, 10, engine=engine)
    victim = at(telemetry, "victim", 10, 90, 90, 100, tokens=STREAM, engine=engine, **given)
    second = at(telemetry, "second", 310, 330, 330, 680, engine=engine)
    first.complete(at_ns=EPOCH + 90 * MS)
    victim.complete(at_ns=EPOCH + 700 * MS)
    second.complete(at_ns=EPOCH + 800 * MS)
    return {str(span["attributes"]["inference.request.id"]): span for span in telemetry.spans("chat tiny")}


def test_attributes_links_and_metrics(telemetry: Telemetry, engine: str) -> None:
    """Everything the contract names, of one request that waited for one neighbour and was stalled by another."""
    spans = victim_and_neighbour(telemetry, engine)
    told = spans["victim"]["attributes"]
    names = ["inference.queue.", "inference.stall.", "inference.company.", "inference.bottleneck.cause"]
    names += ["inference.engine", "inference.interference"]
    assert {name: value for name, value in told.items() if name.startswith(tuple(names))} == {
        "inference.engine": engine,
        "inference.queue.ahead": 0,
        "inference.queue.running": 1,
        "inference.queue.beside.preprocessing": 0.0,
        "inference.queue.beside.prefill": 0.0,
        "inference.queue.beside.decode": 0.08,
        "inference.queue.idle": 0.0,
        "inference.stall.count": 1,
        "inference.stall.time": 0.38,
        "inference.stall.max": 0.38,
        "inference.stall.prefill": 0.35,
        "inference.stall.preemption": 0.0,
        "inference.stall.unexplained": 0.03,
        "inference.company.prefill": 0.0,
        "inference.company.decode": pytest.approx(370 / 600),
        "inference.bottleneck.cause": "prefill",
    }
    contexts = {name: (span["trace_id"], span["span_id"]) for name, span in spans.items()}
    links = [(link["trace_id"], link["span_id"], link["attributes"]) for link in spans["victim"]["links"]]
    assert links == [
        (*contexts["first"], link_of("queue", 0.08, "first")),
        (*contexts["second"], link_of("stall", 0.35, "second")),
    ]
    counted = {
        (point["metric"], point["attributes"].get(f"inference.{kind}.cause")): point["value"]
        for kind in ("queue", "stall")
        for point in telemetry.points(f"inference.{kind}.time")
    }
    # The second one waited for 20 ms beside the victim.
    assert counted == {
        ("inference.queue.time", "decode"): pytest.approx(0.1),
        ("inference.stall.time", "prefill"): 0.35,
        ("inference.stall.time", "unexplained"): 0.03,
    }
    caused = telemetry.point("inference.requests", inference__bottleneck__cause="prefill")
    assert (caused["attributes"]["inference.bottleneck"], caused["value"]) == ("decode", 1)


def link_of(reason: str, time: float, name: str) -> dict[str, Any]:
    """Return the attributes of a link."""
    return {"inference.link.reason": reason, "inference.link.time": time, "inference.request.id": name}


def test_another_engine_is_blamed_for_nothing(telemetry: Telemetry, engine: str) -> None:
    """The same neighbour beside another model: the wait is idle, the stall unexplained, and there is no link."""
    neighbour = at(telemetry, "neighbour", 0, 0, 0, 680, engine=f"{engine} of another model")
    victim = at(telemetry, "victim", 10, 90, 90, 100, tokens=STREAM, engine=engine)
    victim.complete(at_ns=EPOCH + 700 * MS)
    neighbour.complete(at_ns=EPOCH + 700 * MS)
    found = found_of(telemetry.spans("chat tiny")[0])
    assert (found["queue.idle"], found["stall.unexplained"], found["links"]) == (80 * MS, 380 * MS, [])


def test_model_that_is_known_later(telemetry: Telemetry, engine: str) -> None:
    """A middleware learns the model from the body: the request competes for that engine from its arrival on."""
    neighbour = at(telemetry, "neighbour", 0, 0, 0, 10, engine=engine)
    victim = telemetry.request(request_id="victim", arrived_at_ns=EPOCH + 10 * MS)
    victim.set(engine=engine)
    victim.admit(at_ns=EPOCH + 50 * MS)
    victim.cancel(at_ns=EPOCH + 50 * MS)
    neighbour.complete(at_ns=EPOCH + 60 * MS)
    assert found_of(telemetry.spans("chat")[0])["links"] == [("queue", 40 * MS, "neighbour")]


@pytest.mark.parametrize("hidden", [(0, None, None, 60), (None, None, None, 60), (0, 5, None, 60)])
def test_neighbour_that_shows_no_boundaries(telemetry: Telemetry, engine: str, hidden: tuple[int | None, ...]) -> None:
    """Its time is nobody's; the request that waited beside it says that its split is a part."""
    neighbour = at(telemetry, "neighbour", *hidden, engine=engine)
    victim = at(telemetry, "victim", 10, 50, 50, 70, engine=engine)
    victim.complete(at_ns=EPOCH + 80 * MS)
    neighbour.complete(at_ns=EPOCH + 90 * MS)
    told, hid = telemetry.spans("chat tiny")
    assert told["attributes"]["inference.interference.complete"] is False
    assert ("inference.queue.idle" in hid["attributes"]) == (hidden[:2] == (0, 5))


def test_culprits_without_their_ids(telemetry: Telemetry, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch leaves the request ids of others out of the links, and nothing else."""
    monkeypatch.setattr(runtime(), "engines", EngineLogs(name_culprits=False))
    links = victim_and_neighbour(telemetry, engine)["victim"]["links"]
    assert [sorted(link["attributes"]) for link in links] == [["inference.link.reason", "inference.link.time"]] * 2


def test_switched_off(make_telemetry: Make, engine: str) -> None:
    """A processor that was told so works out nothing of others; the SLO's stage and all durations stay."""
    telemetry = make_telemetry(interference=False)
    victim = victim_and_neighbour(telemetry, engine)["victim"]
    assert [name for name in victim["attributes"] if name.startswith(("inference.queue.", "inference.stall."))] == []
    assert (victim["links"], telemetry.points("inference.queue.time")) == ([], [])


def test_engine_that_other_processes_feed(telemetry: Telemetry, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a request waited for cannot be known: no split of the wait, and stalls are a part."""
    monkeypatch.setattr(runtime(), "engines", EngineLogs(shared=True))
    victim = victim_and_neighbour(telemetry, engine)["victim"]
    told = [name for name in victim["attributes"] if name.startswith(("inference.queue.", "inference.company."))]
    assert (told, victim["attributes"]["inference.interference.complete"]) == ([], False)
    assert victim["attributes"]["inference.stall.prefill"] == 0.35


class ByName(Sampler):
    """Keeps the traces of one request only."""

    def __init__(self, kept: str) -> None:
        self.kept = kept

    def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
        """Decide by the request id."""
        attributes = kwargs.get("attributes") or (args[4] if len(args) > 4 else {})
        kept = attributes.get("inference.request.id") == self.kept
        return SamplingResult(Decision.RECORD_AND_SAMPLE if kept else Decision.DROP, attributes)

    def get_description(self) -> str:
        """Return its name."""
        return "by name"


def test_culprit_that_is_not_sampled(make_telemetry: Make, engine: str) -> None:
    """There is no trace to link to; its time counts all the same."""
    victim = victim_and_neighbour(make_telemetry(sampler=ByName("victim")), engine)["victim"]
    assert (victim["links"], victim["attributes"]["inference.queue.beside.decode"]) == ([], 0.08)


def test_metrics_of_unsampled_requests(make_telemetry: Make, engine: str) -> None:
    """No span shows anything; the metrics count the same."""
    telemetry = make_telemetry(sampler=ALWAYS_OFF)
    victim_and_neighbour(telemetry, engine)
    assert telemetry.point("inference.stall.time", inference__stall__cause="prefill")["value"] == 0.35


@pytest.mark.parametrize(
    ("limits", "stages"),
    [
        ({"ttft": 0.05, "e2e": 0.5}, {"ttft": "queue", "e2e": "decode"}),
        ({"tpot": 0.01, "e2e": 5.0}, {"tpot": "decode"}),
        ({"ttft": 1.0}, {}),
    ],
)
def test_stage_of_a_missed_objective(
    make_telemetry: Make, engine: str, limits: dict[str, float], stages: dict[str, str]
) -> None:
    """The stage that took most of the time that the objective covers; none of one that was met, and none of all."""
    telemetry = make_telemetry(slo=lifecycle.Slo(**limits))
    victim = at(telemetry, "victim", 10, 90, 90, 100, tokens=STREAM, engine=engine)
    victim.complete(at_ns=EPOCH + 700 * MS)
    points = telemetry.points("inference.slo.results")
    told = {str(point["attributes"]["inference.slo.objective"]): point["attributes"] for point in points}
    missed = {name: found.get("inference.slo.stage") for name, found in told.items() if name != "all"}
    assert {name: stage for name, stage in missed.items() if stage is not None} == stages
    assert "inference.slo.stage" not in told["all"]


def test_seats_are_left(telemetry: Telemetry, engine: str) -> None:
    """However a request ends, it does not stay in the log as one that runs; a tick later nobody is beside the next."""
    for end in ("complete", "cancel", "timeout", "fail"):
        mark(at(telemetry, end, 0, 0, 0, 10, engine=engine), end, at_ns=EPOCH + 20 * MS)
    with telemetry.request(engine=engine):
        pass
    at(telemetry, "dropped", 0, 0, 0, 10, engine=engine)
    runtime().housekeep(now=True)
    log = runtime().engines.log(engine)
    assert log is not None
    assert log.idle
    assert TICK
