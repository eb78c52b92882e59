"""A usual request that is judged at collection leaves the samples that judging it at its end would have left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import SpanContext, TraceFlags

from otel_lifecycle import Slo, semconv
from otel_lifecycle._core.attributes import end_attributes
from otel_lifecycle._core.engine_log import EngineLog
from otel_lifecycle._core.interference import Interference
from otel_lifecycle._core.labels import RequestLabels
from otel_lifecycle._core.lifecycle import SHAPES
from otel_lifecycle._core.report import Report, build_report
from otel_lifecycle._core.stalls import find_stalls
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.usual import (
    Rules,
    UsualEnd,
    is_usual,
    judge_usual,
    met_objectives,
    usual_gaps,
    usual_log,
    usual_report,
)
from otel_lifecycle._core.usual_attributes import UsualNotes, usual_attributes
from otel_lifecycle._core.verdict import Finished, assess
from otel_lifecycle._instruments.columns import Columns
from otel_lifecycle._instruments.label_sets import AttributeSets, LabelSets, MetricColumns
from otel_lifecycle._instruments.moment import Moment
from otel_lifecycle._instruments.recording import FinishedRequest
from otel_lifecycle._instruments.samples import Parts, gathered
from otel_lifecycle._instruments.usual import fold_usual
from otel_lifecycle._request import ending
from tests.support.telemetry import Telemetry

MS = 1_000_000
SPAN = SpanContext(1, 1, is_remote=False)
EVENTS = {
    "default": ("arrive", "admit", "input_ready", "first_token"),
    "preprocess_first": ("arrive", "input_ready", "admit", "first_token"),
    "pooling": ("arrive", "admit", "input_ready"),
}

lengths = st.sampled_from([0, 1, 3 * MS, 40 * MS, 7_000_000_001])
gaps = st.lists(st.sampled_from([0, 2 * MS, 2 * MS, 3 * MS + 1, 50 * MS]), max_size=14)
slos = st.sampled_from([None, Slo(ttft=0.02), Slo(ttft=0.001, tpot=0.004, e2e=1)])


class Kept:
    """Instruments that keep the samples they are given."""

    def __init__(self) -> None:
        self.samples: dict[tuple[str, Any], list[Any]] = {}
        # The same with the trace and the time of each.
        self.taken: dict[tuple[str, Any], list[Any]] = {}
        columns = Columns()
        takes = {row.name: self._take(row.name) for row in semconv.METRICS}
        self.sets = LabelSets(MetricColumns(AttributeSets(), columns, takes))
        self.flush = columns.flush

    def _take(self, name: str) -> Any:
        def take(attributes: Mapping[str, Any], samples: Parts) -> None:
            key = name, tuple(sorted(attributes.items()))
            pairs: list[tuple[Any, Any]] = list(gathered(samples))
            self.samples.setdefault(key, []).extend(value for value, _ in pairs)
            self.taken.setdefault(key, []).extend(
                (value, moment.span_context.trace_id, moment.time_unix_nano, moment.sampled) for value, moment in pairs
            )

        return take


def lived(shape: str, stages: list[int], between: list[int]) -> Timeline:
    """Return the timeline of a request whose stages and gaps have these lengths."""
    timeline, now = Timeline(SHAPES[shape]), 1000
    for event, spent in zip(EVENTS[shape], [0, *stages], strict=False):
        now += spent
        assert timeline.advance(event, now)
    for gap in between if shape != "pooling" else ():
        now += gap
        timeline.tokens[0].append(now)
    assert timeline.advance("complete", now + stages[-1])
    return timeline


def usual_end(
    timeline: Timeline, labels: RequestLabels, usage: dict[str, int], alone: bool, held: Interference | None
) -> UsualEnd:
    """Return what the end of a request hands over."""
    times = tuple(timeline.times.values())
    log, rules = usual_log(timeline), Rules(0.45, None, True)
    return UsualEnd(timeline.shape.name, times, log, labels, usage or None, alone, held, None, SPAN, 1, rules)


def entered(log: EngineLog, timeline: Timeline, neighbours: list[tuple[int, int]]) -> tuple[Any, Report, Any]:
    """Enter a request and its neighbours in a log; return its slot, its report and its stalls."""
    times = timeline.times
    slot = log.open("me", timeline.shape.name, times["arrival"])
    for stage in timeline.shape.stages[1:]:
        log.move(slot, stage.state, times[stage.entered])
    for start, end in neighbours:
        other = log.open("other", "default", start)
        for state in ("preprocessing", "prefill", "decode"):
            log.move(other, state, start)
        log.end(other, start + end, by=start + end)
    log.end(slot, times["terminal"], by=times["terminal"])
    report = build_report(timeline, "completed", token_times=False)
    return slot, report, find_stalls(timeline, sorted(report["itl"]))


@given(
    shape=st.sampled_from(sorted(SHAPES)),
    stages=st.lists(lengths, min_size=4, max_size=4),
    between=gaps,
    neighbours=st.lists(st.tuples(st.sampled_from([0, 500, 1001, 30 * MS]), lengths), max_size=2),
    usage=st.sampled_from([{}, {"input_tokens": 9}, {"input_tokens": 0, "output_tokens": 5}]),
    labels=st.sampled_from([RequestLabels(), RequestLabels(model="m", provider="p", traffic="warmup")]),
    slo=slos,
    logged=st.booleans(),
    convention=st.booleans(),
)
def test_both_ways_leave_the_same_samples(
    shape: str,
    stages: list[int],
    between: list[int],
    neighbours: list[tuple[int, int]],
    usage: dict[str, int],
    labels: RequestLabels,
    slo: Slo | None,
    logged: bool,
    convention: bool,
) -> None:
    """Every metric, every attribute, every value; alone on its engine, beside others, and without a log."""
    timeline = lived(shape, stages, between)
    assert is_usual(timeline)
    log, held, alone = EngineLog(), None, False
    report = build_report(timeline, "completed", token_times=False, usage=usage.get("output_tokens"))
    if logged:
        slot, told, stalls = entered(log, timeline, neighbours)
        alone = log.alone(slot)
        assert alone or neighbours
        held = log.interference(slot, told, stalls, full=False)
        assert alone or log.interference(slot, usual_report(shape, timeline.times), stalls, full=False) == held
    finished = Finished(report=report, usage=usage, labels=labels, interference=held)
    slow, fast = Kept(), Kept()
    FinishedRequest(finished, assess(finished, slo=slo), Moment(SPAN, 1), convention).fold(slow.sets)
    end = usual_end(timeline, labels, usage, alone, None if alone else held)
    fold_usual([end._replace(rules=Rules(0.45, slo, convention))], fast.sets)
    slow.flush()
    fast.flush()
    assert fast.samples == slow.samples


@given(
    lives=st.lists(
        st.tuples(
            st.sampled_from(sorted(SHAPES)),
            st.lists(lengths, min_size=4, max_size=4),
            gaps,
            st.sampled_from([RequestLabels(), RequestLabels(model="m", provider="p", traffic="warmup")]),
            st.sampled_from([{}, {"input_tokens": 9}, {"output_tokens": 5}]),
            st.booleans(),
            st.booleans(),
        ),
        min_size=2,
        max_size=6,
    ),
    judged=st.booleans(),
)
def test_requests_that_are_folded_together_leave_what_each_leaves(
    lives: list[tuple[str, list[int], list[int], RequestLabels, dict[str, int], bool, bool]], judged: bool
) -> None:
    """Of any shapes and labels, some of them judged before, whose tokens are gone; each sample has its own trace."""
    slow, fast = Kept(), Kept()
    rules, slo = Rules(0.45, Slo(ttft=0.02), True), Slo(ttft=0.02)
    ends: list[UsualEnd] = []
    for number, (shape, stages, between, labels, usage, sampled, alone) in enumerate(lives):
        span = SpanContext(1 + number, 1, is_remote=False, trace_flags=TraceFlags(int(sampled)))
        timeline = lived(shape, stages, between)
        report = build_report(timeline, "completed", token_times=False, usage=usage.get("output_tokens"))
        held = None
        if alone:
            log = EngineLog()
            slot, told, stalls = entered(log, timeline, [])
            held = log.interference(slot, told, stalls, full=False)
        finished = Finished(report=report, usage=usage, labels=labels, interference=held)
        FinishedRequest(finished, assess(finished, slo=slo), Moment(span, number)).fold(slow.sets)
        end = usual_end(timeline, labels, usage, alone, None)
        if judged and len(ends) % 2:
            end = end._replace(log=None, verdict=judge_usual(end, rules.threshold))
        ends.append(end._replace(span=span, offset=number - end.times[-1], rules=rules))
    fold_usual(ends, fast.sets)
    slow.flush()
    fast.flush()
    assert {key: sorted(taken) for key, taken in fast.taken.items()} == {
        key: sorted(taken) for key, taken in slow.taken.items()
    }


def test_a_request_that_cannot_be_judged_costs_no_other_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is wrong with one is logged; the others have their samples."""
    monkeypatch.setattr("otel_lifecycle._log._last_said", {})
    good = usual_end(lived("default", [1, 2, 3, 4], []), RequestLabels(), {}, False, None)
    bad = good._replace(times=())
    kept = Kept()
    fold_usual([good, bad, good], kept.sets)
    kept.flush()
    (counted,) = [samples for (name, _), samples in kept.samples.items() if name == semconv.REQUESTS.name]
    assert (counted, [record.levelname for record in caplog.records]) == ([1, 1], ["ERROR"])


def test_marks_of_racing_threads_are_sorted() -> None:
    """Tokens that two threads appended out of order have the gaps of the sorted times."""
    timeline = lived("default", [1, 1, 1, 50], [])
    timeline.tokens[0][1:] = [1033, 1013, 1023]
    finished = Finished(report=build_report(timeline, "completed", token_times=False))
    slow, fast = Kept(), Kept()
    FinishedRequest(finished, assess(finished), Moment(SPAN, 1)).fold(slow.sets)
    end = usual_end(timeline, RequestLabels(), {}, False, None)
    fold_usual([end], fast.sets)
    slow.flush()
    fast.flush()
    assert (fast.samples, usual_gaps(timeline.tokens[0])) == (slow.samples, ([10, 10, 10], 30))


@pytest.mark.parametrize("event", ["preempt", "token", "cancel"])
def test_what_is_not_usual(event: str) -> None:
    """A preemption, a mark of the long way, and any other end are judged at once."""
    timeline = Timeline(SHAPES["default"])
    for at, name in enumerate(EVENTS["default"]):
        timeline.advance(name, at)
    timeline.apply(event, 10)
    if event == "preempt":
        timeline.apply("resume", 11)
    if event != "cancel":
        timeline.advance("complete", 12)
    assert not is_usual(timeline)


@given(
    shape=st.sampled_from(sorted(SHAPES)),
    stages=st.lists(lengths, min_size=4, max_size=4),
    between=gaps,
    neighbours=st.lists(st.tuples(st.sampled_from([0, 500, 1001, 30 * MS]), lengths), max_size=2),
    usage=st.sampled_from([{}, {"input_tokens": 9}, {"input_tokens": 0, "output_tokens": 5, "cached_tokens": 0}]),
    notes=st.builds(UsualNotes, st.integers(0, 2), st.booleans(), st.sampled_from([None, 0, 7 * MS])),
    slo=slos,
    logged=st.booleans(),
    told_usage=st.booleans(),
)
def test_both_ways_write_the_same_attributes(
    shape: str,
    stages: list[int],
    between: list[int],
    neighbours: list[tuple[int, int]],
    usage: dict[str, int],
    notes: UsualNotes,
    slo: Slo | None,
    logged: bool,
    told_usage: bool,
) -> None:
    """Every attribute of the request span, with and without neighbours, objectives, usage and notes."""
    timeline = lived(shape, stages, between)
    held = None
    report = build_report(timeline, "completed", token_times=False, usage=usage.get("output_tokens"))
    if logged:
        log = EngineLog()
        slot, told, stalls = entered(log, timeline, neighbours)
        held = log.interference(slot, told, stalls, full=True)
        assert held == log.interference(slot, usual_report(shape, timeline.times), stalls, full=True)
    finished = Finished(
        report=report,
        usage=usage,
        interference=held,
        events_dropped=notes.events_dropped,
        client_disconnected=notes.client_disconnected,
        delivered=notes.delivered,
    )
    slow = end_attributes(finished, assess(finished, slo=slo), usage=told_usage)
    end = usual_end(timeline, RequestLabels(), usage, False, held)
    verdict = judge_usual(end, 0.45)
    met = None if slo is None else met_objectives(slo, verdict)
    assert usual_attributes(end, verdict, notes, met, usage=told_usage) == slow


@pytest.mark.parametrize("given", [{}, {"slo": Slo(ttft=1e-9, e2e=100)}, {"token_times": True}], ids=str)
@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_both_ways_end_a_recorded_request_alike(
    make_telemetry: Callable[..., Telemetry], monkeypatch: pytest.MonkeyPatch, shape: str, given: dict[str, Any]
) -> None:
    """Spans, events and metric points have the same names and attributes, whichever way the request was judged."""

    def names(attributes: dict[str, Any]) -> list[str]:
        # Only a queue has a cause, and which stage is the longest differs from run to run.
        return sorted(attributes.keys() - {semconv.BOTTLENECK_CAUSE})

    def ended(usual: bool) -> tuple[bool, Any]:
        telemetry = make_telemetry(**given)
        with monkeypatch.context() as patched, telemetry.request(model="m", shape=shape) as request:
            if not usual:
                patched.setattr(ending, "is_usual", lambda timeline: False)
            for event in EVENTS[shape][1:]:
                getattr(request, event)()
            for _ in range(12 if shape != "pooling" else 0):
                request.token()
            request.usage(input_tokens=3)
            request.client_disconnected()
            request.complete()
        spans = [
            (span["name"], names(span["attributes"]), [event["name"] for event in span["events"]], span["status"])
            for span in telemetry.spans()
        ]
        points = {
            metric.name: [(names(point["attributes"]), point.get("count")) for point in telemetry.points(metric.name)]
            for metric in semconv.METRICS
            if metric.kind in ("counter", "histogram")
        }
        (told,) = [span["attributes"] for span in telemetry.spans() if semconv.OUTCOME in span["attributes"]]
        return bool(told.get(semconv.STALL_COUNT) or told.get(semconv.QUEUE_LONG)), (spans, points)

    def undisturbed(usual: bool) -> Any:
        """Leave out a run that the machine held up: its stall or long wait is a fact of its own."""
        for _ in range(50):
            held_up, found = ended(usual)
            if not held_up:
                return found
        pytest.fail("every run was held up")

    assert undisturbed(usual=True) == undisturbed(usual=False)
