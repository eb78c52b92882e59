"""A time may be unknown: the state moves, and what needs the time is None."""

from __future__ import annotations

from typing import Any

import pytest

from .builders import WORKED, Event, metrics, outcome, replay

KNOWN = metrics(WORKED)


def hidden(*places: int) -> list[Event]:
    """Return the worked example with the times at these places unknown."""
    return [{**event, "timestamp": None} if index in places else event for index, event in enumerate(WORKED)]


@pytest.mark.parametrize(
    ("places", "lost"),
    [
        pytest.param((0,), {"queue_wait", "ttft", "e2e"}, id="arrive"),
        pytest.param((1,), {"queue_wait", "preprocessing"}, id="admit"),
        pytest.param((2,), {"preprocessing", "prefill"}, id="input_ready"),
        pytest.param((3,), {"prefill", "ttft", "tpot", "decode_time", "token_span"}, id="first_token"),
        pytest.param((4,), set(), id="a token between"),
        pytest.param((5,), {"tpot", "token_span"}, id="the last token"),
        pytest.param((6,), {"decode_time", "e2e"}, id="complete"),
        pytest.param((1, 2), {"queue_wait", "preprocessing", "prefill"}, id="admit and input_ready"),
        pytest.param(range(7), set(KNOWN) - {"streamed_tokens"}, id="all"),
    ],
)
def test_durations_that_need_it_are_none(places: tuple[int, ...], lost: set[str]) -> None:
    """Only those that the unknown time bounds; tokens still count."""
    expected: dict[str, Any] = {name: None if name in lost else value for name, value in KNOWN.items()}
    assert metrics(hidden(*places)) == expected


@pytest.mark.parametrize(
    ("place", "key"), [(0, "arrival"), (1, "admitted"), (2, "input_ready"), (3, "first_token"), (6, "terminal")]
)
def test_unknown_boundary_is_absent(place: int, key: str) -> None:
    """The report has the boundaries that are known, and no others."""
    times = replay(WORKED)["timestamps"]
    assert replay(hidden(place))["timestamps"] == {name: time for name, time in times.items() if name != key}


@pytest.mark.parametrize("place", [0, 1, 2, 3, 6])
def test_no_guess_of_a_bottleneck(place: int) -> None:
    """Completed with a boundary missing: no stage and no share."""
    assert outcome(hidden(place)) == {"outcome": "completed", "stage": None, "dominant_share": None}


@pytest.mark.parametrize("place", [4, 5])
def test_bottleneck_needs_no_token_time(place: int) -> None:
    """An unknown token time after the first takes nothing from the shares."""
    assert outcome(hidden(place)) == outcome(WORKED)


@pytest.mark.parametrize(("place", "gaps"), [(3, [2]), (4, []), (5, [2])])
def test_gap_beside_an_unknown_time_is_no_sample(place: int, gaps: list[int]) -> None:
    """A gap is sampled between known times of adjacent tokens only, never across an unknown one."""
    assert replay(hidden(place))["itl"] == gaps


def test_state_moves_all_the_same() -> None:
    """Nothing is violated by not knowing when."""
    report = replay(hidden(*range(7)))
    assert (report["status"], report["timestamps"], report["output_tokens"]) == ("completed", {}, 3)


def test_end_of_an_unknown_time_keeps_its_stage() -> None:
    """The outcome needs no time."""
    events = [{**event, "timestamp": None} for event in [*WORKED[:2], {"event": "fail"}]]
    assert outcome(events) == {"outcome": "failed", "stage": "preprocessing", "dominant_share": None}
