"""What the span and the metrics of a request say about its neighbours, case by case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, Sampler, SamplingResult

import otel_lifecycle as lifecycle
from otel_lifecycle._core.engines import EngineLogs
from otel_lifecycle._runtime import runtime
from tests.core.schedules import TICK
from tests.request.test_interference import EPOCH, MS, Make, engines, found_of, mark
from tests.support.plain import Span
from tests.support.telemetry import Telemetry


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
