"""Every refusal of a replay: its type, and what it says of where it happened."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from otel_lifecycle import replay_request_events
from otel_lifecycle.errors import (
    ConfigurationError,
    DuplicateTerminal,
    EventAfterTerminal,
    IllegalTransition,
    InvalidTimestamp,
    InvalidValue,
    LifecycleError,
    MissingTerminal,
    NonMonotonicTime,
    TerminatedBeforeArrival,
    UnknownEvent,
)

from .builders import WORKED, Event, replay, to_prefill, trace

ABNORMAL = {"cancel", "timeout", "fail"}


def refused(events: list[Event], shape: str = "default") -> LifecycleError:
    """Return the error a replay ends in; fail if there is none."""
    with pytest.raises(LifecycleError) as caught:
        replay_request_events(events, shape)
    return caught.value


@pytest.mark.parametrize(
    ("events", "kind", "state", "event", "timestamp", "allowed"),
    [
        pytest.param(
            trace(("arrive", 0), ("first_token", 1)),
            IllegalTransition,
            "queued",
            "first_token",
            1,
            {"admit"} | ABNORMAL,
            id="first token while queued",
        ),
        pytest.param(
            trace(("arrive", 0), ("arrive", 4)),
            IllegalTransition,
            "queued",
            "arrive",
            4,
            {"admit"} | ABNORMAL,
            id="second arrival",
        ),
        pytest.param(
            trace(("admit", 3)), IllegalTransition, "not_arrived", "admit", 3, {"arrive"}, id="admit before arrival"
        ),
        pytest.param(
            [*to_prefill(), *trace(("token", 5))],
            IllegalTransition,
            "prefill",
            "token",
            5,
            {"first_token", "output", "preempt"} | ABNORMAL,
            id="token in prefill",
        ),
        pytest.param(
            [*to_prefill(), *trace(("complete", 5))],
            IllegalTransition,
            "prefill",
            "complete",
            5,
            {"first_token", "output", "preempt"} | ABNORMAL,
            id="complete in prefill",
        ),
        pytest.param(
            [*to_prefill(), *trace(("first_token", 5), ("first_token", 6))],
            IllegalTransition,
            "decode",
            "first_token",
            6,
            {"token", "complete", "preempt"} | ABNORMAL,
            id="second first token",
        ),
        pytest.param(
            [*to_prefill(), *trace(("preempt", 5), ("first_token", 6))],
            IllegalTransition,
            "preempted",
            "first_token",
            6,
            {"resume"} | ABNORMAL,
            id="first token while preempted",
        ),
        pytest.param(
            [*to_prefill(), *trace(("resume", 5))],
            IllegalTransition,
            "prefill",
            "resume",
            5,
            {"first_token", "output", "preempt"} | ABNORMAL,
            id="resume of what runs",
        ),
        pytest.param(
            [*WORKED, *trace(("token", 13))], EventAfterTerminal, "completed", "token", 13, set(), id="token after end"
        ),
        pytest.param(
            [*WORKED, *trace(("arrive", 13))],
            EventAfterTerminal,
            "completed",
            "arrive",
            13,
            set(),
            id="arrival after end",
        ),
        pytest.param(
            [*WORKED, *trace(("cancel", 13))],
            DuplicateTerminal,
            "completed",
            "cancel",
            13,
            set(),
            id="cancel after complete",
        ),
        pytest.param(
            trace(("arrive", 0), ("fail", 1), ("fail", 1)),
            DuplicateTerminal,
            "failed",
            "fail",
            1,
            set(),
            id="fail twice",
        ),
        *(
            pytest.param(
                trace((event, 2)), TerminatedBeforeArrival, "not_arrived", event, 2, {"arrive"}, id=f"{event} first"
            )
            for event in ("complete", "cancel", "timeout", "fail")
        ),
        pytest.param(
            trace(("arrive", 0), ("teleport", 1)),
            UnknownEvent,
            "queued",
            "teleport",
            1,
            {"admit"} | ABNORMAL,
            id="unknown event",
        ),
    ],
)
def test_wrong_event(
    events: list[Event], kind: type[LifecycleError], state: str, event: str, timestamp: int, allowed: set[str]
) -> None:
    """The error has the type of the fault and says state, event, time and what was allowed."""
    error = refused(events)
    assert (type(error), error.state, error.event, error.timestamp, set(error.allowed)) == (
        kind,
        state,
        event,
        timestamp,
        allowed,
    )


@pytest.mark.parametrize(
    ("events", "state"),
    [
        (trace(("arrive", 0)), "queued"),
        (trace(("arrive", 0), ("admit", 1)), "preprocessing"),
        (to_prefill(), "prefill"),
        (WORKED[:-1], "decode"),
        ([*to_prefill(), *trace(("preempt", 5))], "preempted"),
    ],
)
def test_trace_without_an_end(events: list[Event], state: str) -> None:
    """A trace that stops is refused, in whatever state it stops."""
    error = refused(events)
    assert (type(error), error.state) == (MissingTerminal, state)


def test_no_events() -> None:
    """An empty trace is refused as one that has no end, and the message says why it has none."""
    error = refused([])
    assert (type(error), error.state, error.allowed) == (MissingTerminal, "not_arrived", ("arrive",))
    assert "no events" in str(error)


@pytest.mark.parametrize(
    ("events", "event", "timestamp"),
    [
        (trace(("arrive", 5), ("admit", 4)), "admit", 4),
        (trace(("arrive", 5), ("admit", None), ("input_ready", 4)), "input_ready", 4),
        ([*WORKED[:5], *trace(("token", 8.999), ("complete", 12))], "token", 8.999),
        ([*WORKED[:6], *trace(("complete", 10))], "complete", 10),
        (trace(("arrive", 1_700_000_000_000_000_001), ("cancel", 1_700_000_000_000_000_000)), "cancel", 17 * 10**17),
    ],
)
def test_time_that_goes_back(events: list[Event], event: str, timestamp: float) -> None:
    """A time before the last known one is refused, unknown ones between them or not, by one nanosecond or by many."""
    error = refused(events)
    assert (type(error), error.event, error.timestamp) == (NonMonotonicTime, event, timestamp)


def test_equal_times_are_legal() -> None:
    """Everything may happen at once."""
    events = [{**event, "timestamp": 7} for event in WORKED]
    assert replay(events)["timestamps"] == dict.fromkeys(
        ("arrival", "admitted", "input_ready", "first_token", "terminal"), 7
    )


@pytest.mark.parametrize("place", range(len(WORKED)))
@pytest.mark.parametrize(
    "time",
    [
        float("nan"),
        float("inf"),
        float("-inf"),
        "12",
        "",
        b"1",
        [],
        {},
        1j,
        dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc),
        dt.timedelta(seconds=3),
    ],
    ids=repr,
)
def test_time_that_is_no_number(time: Any, place: int) -> None:
    """A time that is neither None nor a finite number is refused, at whichever event."""
    events = [dict(event) for event in WORKED]
    events[place]["timestamp"] = time
    error = refused(events)
    assert (type(error), error.event, error.timestamp is time) == (InvalidTimestamp, events[place]["event"], True)


def test_integer_beyond_every_float_is_a_finite_number() -> None:
    """Integers stay integers, however large."""
    start = 10**400
    report = replay(trace(("arrive", start), ("cancel", start + 5)))
    assert report["timestamps"] == {"arrival": start, "terminal": start + 5}


def test_negative_times_are_times() -> None:
    """Zero is wherever the clock puts it."""
    assert replay(trace(("arrive", -5), ("cancel", -3.5)))["timestamps"] == {"arrival": -5, "terminal": -3.5}


@pytest.mark.parametrize("event", ["first_token", "token"])
@pytest.mark.parametrize("count", [-1, -(10**30), 1.5, float("nan"), "2", [1]], ids=repr)
def test_count_that_cannot_be(event: str, count: Any) -> None:
    """A count is a non-negative integer or None."""
    events = [dict(item) for item in WORKED]
    place = next(index for index, item in enumerate(events) if item["event"] == event)
    events[place]["count"] = count
    error = refused(events)
    assert (type(error), error.event, error.timestamp) == (InvalidValue, event, events[place]["timestamp"])


def test_choice_that_cannot_be() -> None:
    """A choice that no mapping could hold is a value error like any other."""
    assert type(refused([*to_prefill(), *trace(("first_token", 7, {"choice": [0]}), ("complete", 8))])) is InvalidValue


@pytest.mark.parametrize("event", [{"timestamp": 0}, {"event": "arrive"}, {}, None, "arrive", 3], ids=repr)
def test_event_that_is_no_event(event: Any) -> None:
    """What lacks a name or a time, or is not a mapping, is refused as a value that cannot be."""
    assert type(refused([event])) is InvalidValue


@pytest.mark.parametrize("name", [None, 3, ["arrive"], b"arrive"], ids=repr)
def test_name_that_is_no_string(name: Any) -> None:
    """What cannot be a name is refused as a value that cannot be."""
    assert type(refused(trace((name, 0)))) is InvalidValue


@pytest.mark.parametrize("name", ["Arrive", "", "queued", "complete "])
def test_name_that_is_no_event(name: str) -> None:
    """Any other string is an unknown event."""
    assert type(refused(trace((name, 0)))) is UnknownEvent


@pytest.mark.parametrize("shape", ["", "Default", "encoder", None, 3, []], ids=repr)
def test_shape_that_is_none(shape: Any) -> None:
    """A shape that does not exist is refused, and the message names those that do."""
    with pytest.raises(ConfigurationError, match=r"default.*preprocess_first.*pooling"):
        replay_request_events(WORKED, shape)


def test_every_refusal_is_a_value_error() -> None:
    """A caller needs to know only the standard type."""
    with pytest.raises(ValueError, match="first_token"):
        replay_request_events(trace(("arrive", 0), ("first_token", 1)))


def test_message_is_one_line_with_what_was_seen_and_allowed() -> None:
    """The message names the event, the state and the legal events."""
    message = str(refused(trace(("arrive", 0), ("first_token", 1))))
    assert "\n" not in message
    assert all(word in message for word in ("first_token", "queued", "admit", "cancel", "timeout", "fail"))
