"""Properties of every legal trace, and of every single mutation of one, drawn from the table itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_lifecycle import summarize_workload
from otel_lifecycle._core.lifecycle import EVENTS, SHAPES
from otel_lifecycle.errors import (
    DuplicateTerminal,
    EventAfterTerminal,
    IllegalTransition,
    InvalidValue,
    LifecycleError,
    MissingTerminal,
    NonMonotonicTime,
    TerminatedBeforeArrival,
)

from .builders import Event, metrics, outcome, replay, result
from .walks import (
    GENERATING,
    START,
    TERMINALS,
    Place,
    blurred,
    event_names,
    streamed,
    traces,
    walk,
)

every_shape = pytest.mark.parametrize("shape", SHAPES)
every_generating_shape = pytest.mark.parametrize("shape", GENERATING)
STAGES = ("queue_wait", "preprocessing", "prefill", "decode_time")


@every_shape
@given(data=st.data())
def test_every_legal_path_passes(shape: str, data: st.DataObject) -> None:
    """It ends in the state the table says, and an abnormal end keeps the state it came in."""
    events = data.draw(blurred(shape))
    names = [event["event"] for event in events]
    (before, _), _ = walk(shape, names[:-1])
    (end, _), _ = walk(shape, names)
    report = replay(events, shape)
    assert (report["status"], report["failure_stage"], report["shape"]) == (
        end,
        None if end == "completed" else before,
        shape,
    )


@every_shape
@given(data=st.data())
def test_events_are_not_changed(shape: str, data: st.DataObject) -> None:
    """What was given stays as it was."""
    events = data.draw(traces(shape))
    before = [dict(event) for event in events]
    replay(events, shape)
    assert events == before


@every_generating_shape
@given(data=st.data())
def test_stages_sum_to_ttft_and_e2e(shape: str, data: st.DataObject) -> None:
    """TTFT = queue + preprocessing + prefill, E2E = TTFT + decode, to the last nanosecond."""
    found = metrics(data.draw(streamed(shape)), shape)
    assert found["ttft"] == found["queue_wait"] + found["preprocessing"] + found["prefill"]
    assert found["e2e"] == found["ttft"] + found["decode_time"]


@every_shape
@given(data=st.data())
def test_nothing_is_negative(shape: str, data: st.DataObject) -> None:
    """No duration, gap, count or preempted time, however many times are unknown."""
    events = data.draw(blurred(shape))
    report = replay(events, shape)
    values = [*metrics(events, shape).values(), *report["itl"], *report["preempted"].values()]
    assert [value for value in values if value is not None and value < 0] == []


@every_shape
@given(data=st.data())
def test_preempted_time_fits_into_its_stage(shape: str, data: st.DataObject) -> None:
    """An interruption is inside the stage it interrupted."""
    events = data.draw(traces(shape))
    found, preempted = metrics(events, shape), replay(events, shape)["preempted"]
    for state, metric in (("prefill", "prefill"), ("decode", "decode_time")):
        assert found[metric] is None or preempted.get(state, 0) <= found[metric]


def net_shares(events: list[Event], shape: str) -> list[float] | None:
    """Return the shares worked out from the definition, None where their sum is not positive."""
    found, preempted = metrics(events, shape), replay(events, shape)["preempted"]
    names = STAGES[:3] if shape == "pooling" else STAGES
    lost = {"prefill": preempted.get("prefill", 0), "decode_time": preempted.get("decode", 0)}
    net = [found[name] - lost.get(name, 0) for name in names]
    return [part / sum(net) for part in net] if sum(net) > 0 else None


@every_shape
@given(data=st.data(), threshold=st.floats(0, 1, exclude_min=True))
def test_dominant_share_is_the_largest_of_shares_that_sum_to_1(
    shape: str, data: st.DataObject, threshold: float
) -> None:
    """The earliest of the largest, if it reaches the threshold; a refusal if there is nothing to share."""
    without = frozenset({"output", "cancel", "timeout", "fail"})
    events = data.draw(traces(shape, without))
    shares = net_shares(events, shape)
    if shares is None:
        with pytest.raises(LifecycleError):
            outcome(events, shape, dominance_threshold=threshold)
        return
    largest = max(shares)
    stage = ("queue", "preprocessing", "prefill", "decode")[shares.index(largest)]
    assert sum(shares) == pytest.approx(1)
    assert outcome(events, shape, dominance_threshold=threshold) == {
        "outcome": "completed",
        "stage": stage if largest >= threshold else "mixed",
        "dominant_share": largest,
    }


@every_shape
@given(data=st.data(), shift=st.integers(-(10**18), 2 * 10**18), scale=st.integers(1, 10**9))
def test_shifting_and_scaling_time_changes_nothing_else(
    shape: str, data: st.DataObject, shift: int, scale: int
) -> None:
    """Durations scale, exactly; the rest stays."""
    events = data.draw(blurred(shape))
    moved = [
        event if event["timestamp"] is None else {**event, "timestamp": event["timestamp"] * scale + shift}
        for event in events
    ]
    assert timeless(moved, shape) == timeless(events, shape)
    scaled = {name: scaled_by(value, 1 if name == "streamed_tokens" else scale) for name, value in whole(events, shape)}
    assert dict(whole(moved, shape)) == scaled
    tpot, expected = metrics(moved, shape)["tpot"], metrics(events, shape)["tpot"]
    assert tpot == (None if expected is None else pytest.approx(expected * scale, rel=1e-12))


def timeless(events: list[Event], shape: str) -> tuple[Any, ...]:
    """Return all that must not depend on the unit and the zero of time."""
    report = replay(events, shape)
    try:
        classified: Any = outcome(events, shape)
    except InvalidValue:
        classified = "no shares"
    return (
        classified,
        report["status"],
        report["failure_stage"],
        set(report["timestamps"]),
        report["output_tokens"],
        len(report["itl"]),
    )


def whole(events: list[Event], shape: str) -> list[tuple[str, Any]]:
    """Return every duration that must scale exactly."""
    report = replay(events, shape)
    found = [item for item in metrics(events, shape).items() if item[0] != "tpot"]
    gaps = [(f"itl {place}", gap) for place, gap in enumerate(report["itl"])]
    return [*found, *gaps, *((f"preempted {state}", time) for state, time in report["preempted"].items())]


def scaled_by(value: Any, scale: int) -> Any:
    """Return a duration in another unit."""
    return None if value is None else value * scale


@every_generating_shape
@given(data=st.data())
def test_tpot_is_the_mean_gap_within_choices(shape: str, data: st.DataObject) -> None:
    """The sum of the choices' spans over the sum of their gaps, from the definition."""
    events = data.draw(streamed(shape))
    spans, gaps = 0, 0
    for choice in range(3):
        tokens = [event for event in events if event.get("choice") == choice]
        if tokens:
            spans += tokens[-1]["timestamp"] - tokens[0]["timestamp"]
            gaps += sum(event["count"] for event in tokens) - 1
    tpot = metrics(events, shape)["tpot"]
    assert tpot == (pytest.approx(spans / gaps, rel=1e-12) if gaps else None)


@every_generating_shape
@given(data=st.data())
def test_one_ttft_sample_a_request_at_most(shape: str, data: st.DataObject) -> None:
    """Samples never outnumber requests, and terminated requests are the requests."""
    requests = [result(events, shape) for events in data.draw(st.lists(traces(shape), max_size=5))]
    summary = summarize_workload(requests)
    assert summary["ttft_sample_count"] <= summary["total_requests"] == len(requests)
    assert sum(summary["status_counts"].values()) == len(requests)


# ------------------------------------------------------------------------------------------------- single mutations


def fault(place: Place, event: str) -> type[LifecycleError]:
    """Return the error that an event without a row amounts to."""
    state = place[0]
    if state in ("completed", "cancelled", "timed_out", "failed"):
        return DuplicateTerminal if event in TERMINALS else EventAfterTerminal
    return TerminatedBeforeArrival if place == START and event in TERMINALS else IllegalTransition


def assert_reported_at_its_place(events: list[Event], shape: str) -> None:
    """The first event without a row is the one reported; a trace that stays legal passes."""
    names = [event["event"] for event in events]
    place, legal = walk(shape, names)
    if legal == len(names) and not SHAPES[shape].table[place[0]]:
        assert replay(events, shape)["status"] == place[0]
        return
    with pytest.raises(LifecycleError) as caught:
        replay(events, shape)
    error = caught.value
    seen = (type(error), error.state, error.event, error.timestamp)
    if legal == len(names):
        assert seen[:2] == (MissingTerminal, place[0])
        return
    expected = (fault(place, names[legal]), place[0], names[legal], events[legal]["timestamp"])
    assert (*seen, set(error.allowed)) == (*expected, set(SHAPES[shape].table[place[0]]))


@every_shape
@given(data=st.data())
def test_dropped_event(shape: str, data: st.DataObject) -> None:
    """Reported where the event that followed it comes too early."""
    events = data.draw(traces(shape, smallest_gap=1))
    events.pop(data.draw(st.integers(0, len(events) - 1)))
    if events:
        assert_reported_at_its_place(events, shape)


@every_shape
@given(data=st.data())
def test_duplicated_event(shape: str, data: st.DataObject) -> None:
    """Reported at the second of the two."""
    events = data.draw(traces(shape, smallest_gap=1))
    place = data.draw(st.integers(0, len(events) - 1))
    assert_reported_at_its_place([*events[: place + 1], *events[place:]], shape)


@every_shape
@given(data=st.data())
def test_inserted_event(shape: str, data: st.DataObject) -> None:
    """Any event at any place, at the time of the one before."""
    events = data.draw(traces(shape, smallest_gap=1))
    place = data.draw(st.integers(0, len(events)))
    time = events[place - 1]["timestamp"] if place else events[0]["timestamp"]
    event = {"event": data.draw(st.sampled_from(sorted(EVENTS))), "timestamp": time}
    assert_reported_at_its_place([*events[:place], event, *events[place:]], shape)


@every_shape
@given(data=st.data())
def test_swapped_names(shape: str, data: st.DataObject) -> None:
    """Two neighbours that change their names and keep their times."""
    events = data.draw(traces(shape, smallest_gap=1))
    place = data.draw(st.integers(0, len(events) - 2))
    first, second = events[place], events[place + 1]
    swapped = [{**first, "event": second["event"]}, {**second, "event": first["event"]}]
    assert_reported_at_its_place([*events[:place], *swapped, *events[place + 2 :]], shape)


@every_shape
@given(data=st.data())
def test_swapped_events(shape: str, data: st.DataObject) -> None:
    """Two neighbours that change places, times and all: one of the two is reported, as early as it can be."""
    events = data.draw(traces(shape, smallest_gap=1))
    place = data.draw(st.integers(0, len(events) - 2))
    events[place], events[place + 1] = events[place + 1], events[place]
    _, legal = walk(shape, [event["event"] for event in events])
    if legal <= place:
        assert_reported_at_its_place(events, shape)
        return
    with pytest.raises(LifecycleError) as caught:
        replay(events, shape)
    error = caught.value
    assert (error.event, error.timestamp) == (events[place + 1]["event"], events[place + 1]["timestamp"])
    assert type(error) is NonMonotonicTime or legal == place + 1


@every_shape
@given(data=st.data())
def test_time_that_goes_back(shape: str, data: st.DataObject) -> None:
    """One time before its forerunner's is reported at that event, whatever follows."""
    events = data.draw(traces(shape, smallest_gap=1))
    place = data.draw(st.integers(1, len(events) - 1))
    events[place]["timestamp"] = events[place - 1]["timestamp"] - data.draw(st.integers(1, 10**12))
    with pytest.raises(LifecycleError) as caught:
        replay(events, shape)
    error = caught.value
    assert (type(error), error.event, error.timestamp) == (
        NonMonotonicTime,
        events[place]["event"],
        events[place]["timestamp"],
    )


@every_shape
@given(data=st.data())
def test_walks_reach_every_event(shape: str, data: st.DataObject) -> None:
    """The strategy itself: what it draws is legal and has an end."""
    names = data.draw(event_names(shape))
    place, legal = walk(shape, names)
    assert (legal, dict(SHAPES[shape].table[place[0]])) == (len(names), {})
