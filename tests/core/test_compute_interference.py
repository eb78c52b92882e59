"""The public function over finished reports, against the simulated engine, and against the live log."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_lifecycle import compute_interference, replay_request_events
from otel_lifecycle.errors import InvalidValue

from .builders import Event, trace
from .schedules import Scheduled, expected, schedules

MS = 1_000_000


def finished(request: Scheduled) -> dict[str, Any]:
    """Return what the function takes of a scheduled request."""
    return {"id": request.name, "report": replay_request_events(request.events, request.shape)}


@given(requests=schedules(), data=st.data())
def test_split_is_the_schedule(requests: list[Scheduled], data: st.DataObject) -> None:
    """Parts, sums and culprits are what was counted, in whatever order the requests are given."""
    given_order = data.draw(st.permutations(requests))
    found = compute_interference(finished(request) for request in given_order)
    for request, told in zip(given_order, found, strict=True):
        wanted = expected(request, requests)
        assert (told["complete"], told["ahead"], told["running"]) == (True, wanted.ahead, wanted.running)
        if wanted.queue is None:
            assert told["queue"] is None
            continue
        parts = {stage: told["queue"][stage] for stage in wanted.queue}
        wait = sum(wanted.queue.values(), Fraction(0))
        assert told["queue"]["wait"] == sum(parts.values()) == wait
        assert [stage for stage, exact in wanted.queue.items() if abs(parts[stage] - exact) >= 4] == []
        fair = sorted(-int(time) for time in wanted.holders.values() if time * 10 >= wait and time >= MS)[:3]
        assert [-one["time"] for one in told["culprits"] if one["reason"] == "queue"] == fair


def streaming(arrival: int, admitted: int, prefilled: int, gaps: list[int]) -> list[Event]:
    """Return the events of a request in milliseconds; ``gaps`` between its tokens."""
    times = [prefilled]
    for gap in gaps:
        times.append(times[-1] + gap)
    names = ["first_token", *["token"] * len(gaps)]
    steps = [("arrive", arrival), ("admit", admitted), ("input_ready", admitted)]
    steps += list(zip(names, times, strict=True))
    return trace(*[(event, time * MS) for event, time in [*steps, ("complete", times[-1])]])


def test_neighbour_with_a_long_prompt() -> None:
    """The measured case: 23 ms a token, and eight gaps as long as a piece of the neighbour's prefill."""
    victim = streaming(0, 0, 100, [23] * 10 + [323] * 8 + [23] * 10)
    # Its prefill begins right after the victim's tenth gap and ends in the eighth long one.
    neighbour = streaming(320, 330, 2900, [23] * 20)
    found = compute_interference(
        [
            {"id": "victim", "report": replay_request_events(victim)},
            {"id": "neighbour", "report": replay_request_events(neighbour)},
            {"id": "elsewhere", "engine": "other", "report": replay_request_events(neighbour)},
        ]
    )
    assert found[0] == {
        "queue": {"wait": 0, "preprocessing": 0, "prefill": 0, "decode": 0, "idle": 0},
        "stalls": {
            "count": 8,
            "time": 2400 * MS,
            "max": 300 * MS,
            # The last piece of its prefill ends 14 ms before the victim's gap.
            "prefill": 2386 * MS,
            "preemption": 0,
            "unexplained": 14 * MS,
        },
        "ahead": 0,
        "running": 0,
        "company": {"prefill": 0.0, "decode": pytest.approx((3144 - 330) / 3044)},
        "culprits": [{"id": "neighbour", "reason": "stall", "time": 2386 * MS}],
        "cause": "prefill",
        "complete": True,
    }
    assert found[1]["stalls"] == {
        "count": 0,
        "time": 0,
        "max": None,
        "prefill": 0,
        "preemption": 0,
        "unexplained": 0,
    }
    assert (found[2]["running"], found[2]["queue"]["idle"]) == (0, 10 * MS)


def test_own_preemption_explains_a_stall() -> None:
    """A gap in which the request itself was preempted is its preemption's, whatever ran beside it."""
    tokens = [("first_token", 10), *[("token", 20 + 10 * n) for n in range(8)]]
    events = trace(
        *[(event, time * MS) for event, time in [("arrive", 0), ("admit", 0), ("input_ready", 0), *tokens]],
        ("preempt", 95 * MS),
        ("resume", 195 * MS),
        ("token", 200 * MS),
        ("complete", 200 * MS),
    )
    neighbour = streaming(90, 90, 300, [10])
    found = compute_interference(
        [{"report": replay_request_events(events)}, {"report": replay_request_events(neighbour)}]
    )
    assert found[0]["stalls"] == {
        "count": 1,
        "time": 100 * MS,
        "max": 100 * MS,
        "prefill": 5 * MS,
        "preemption": 95 * MS,
        "unexplained": 0,
    }
    assert found[0]["culprits"] == [{"id": 1, "reason": "stall", "time": 5 * MS}]


def test_whole_answers_prefill_until_they_appear() -> None:
    """A request that is not streamed is in prefill until its answer comes; that is what its neighbours see."""
    whole = trace(("arrive", 0), ("admit", 0), ("input_ready", 0), ("output", 80 * MS), ("complete", 90 * MS))
    waits = streaming(10, 90, 95, [])
    found = compute_interference([{"report": replay_request_events(events)} for events in (whole, waits)])
    assert found[1]["queue"] == {
        "wait": 80 * MS,
        "preprocessing": 0,
        "prefill": 70 * MS,
        "decode": 10 * MS,
        "idle": 0,
    }
    assert (found[1]["cause"], found[0]["company"]) == ("prefill", {"prefill": None, "decode": None})


def test_unknown_boundaries_of_a_neighbour() -> None:
    """They leave the split of those that overlap it incomplete, and its own absent."""
    hidden = trace(
        ("arrive", 0), ("admit", None), ("input_ready", None), ("first_token", 80 * MS), ("complete", 90 * MS)
    )
    waits = streaming(10, 50, 95, [])
    later = streaming(100, 110, 120, [])
    found = compute_interference([{"report": replay_request_events(events)} for events in (hidden, waits, later)])
    assert [(told["complete"], told["queue"] and told["queue"]["idle"]) for told in found] == [
        (True, None),
        (False, 40 * MS),
        (True, 10 * MS),
    ]


def test_times_that_are_no_nanoseconds() -> None:
    """Floats would lose what must add up: refused."""
    with pytest.raises(InvalidValue, match="integer nanoseconds"):
        compute_interference([{"report": replay_request_events(trace(("arrive", 0.5), ("cancel", 1.0)))}])


def test_nothing_is_asked_of_nobody() -> None:
    """No request, no answer."""
    assert compute_interference([]) == []
