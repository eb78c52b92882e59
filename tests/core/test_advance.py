"""The short way of a timeline and the long one lead to the same place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_lifecycle._core.lifecycle import EVENTS, SHAPES
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle.errors import LifecycleError

steps = st.lists(
    st.tuples(
        st.sampled_from(sorted(EVENTS)),
        st.integers(0, 3),
        st.sampled_from(["live", "live", "live", "given", "remote", "unknown", "appended"]),
    ),
    max_size=14,
)


def fields(timeline: Timeline) -> dict[str, Any]:
    """Return everything a timeline holds but which way it came, interruptions by their own fields."""
    held = {name: getattr(timeline, name) for name in Timeline.__slots__ if name != "plain"}
    held["interruptions"] = [(one.state, one.start, one.end, one.across) for one in timeline.interruptions]
    held["_open"] = timeline._open is None
    return held


@pytest.mark.parametrize("shape", SHAPES)
@given(steps=steps)
def test_both_ways_leave_the_same(shape: str, steps: list[tuple[str, int, str]]) -> None:
    """Whatever came before, an event that the short way takes leaves what the long one would, and else nothing."""
    quick, plain = Timeline(SHAPES[shape]), Timeline(SHAPES[shape])
    now = 0
    for event, later, how in steps:
        now += later
        if how == "appended":
            for timeline in (quick, plain):
                timeline.tokens.setdefault(0, []).append(now)
            continue
        before = fields(quick)
        if how != "live" or not quick.advance(event, now):
            assert how != "live" or fields(quick) == before
            apply(quick, event, now, how)
        apply(plain, event, now, how)
        assert fields(quick) == fields(plain)


def apply(timeline: Timeline, event: str, now: int, how: str) -> None:
    """Apply an event the long way; an illegal one changes nothing."""
    try:
        timeline.apply(event, None if how == "unknown" else now, remote=how == "remote", given=how == "given")
    except LifecycleError:
        return


@pytest.mark.parametrize("shape", SHAPES)
def test_an_arrival_that_is_read_now_is_one_of_both_ways(shape: str) -> None:
    """What cannot go wrong is not judged, and leaves what the two ways leave."""
    quick, short, plain = (Timeline(SHAPES[shape]) for _ in range(3))
    quick.retrace([7], None)
    assert short.advance("arrive", 7)
    plain.apply("arrive", 7)
    assert fields(quick) == fields(short) == fields(plain)
    assert quick.plain


def test_the_short_way_is_taken_by_a_whole_request() -> None:
    """A request without anything unusual never takes the long way."""
    timeline = Timeline(SHAPES["default"])
    events = ("arrive", "admit", "input_ready", "first_token", "complete")
    assert [timeline.advance(event, time) for time, event in enumerate(events)] == [True] * 5
    assert (timeline.state, timeline.ended_in, timeline.tokens) == ("completed", "decode", {0: [3]})
    assert timeline.plain


def test_one_event_of_the_long_way_is_remembered() -> None:
    """What is said of a plain timeline holds for all of its events."""
    timeline = Timeline(SHAPES["default"])
    timeline.apply("arrive", 0)
    assert timeline.advance("admit", 1)
    assert not timeline.plain
