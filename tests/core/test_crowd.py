"""A wait divided by stage is what its requests have one by one."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_lifecycle._core.crowd import ONE_IN, add_changes, divide_by_stage
from otel_lifecycle._core.engine_slot import EngineSlot
from otel_lifecycle._core.overlap import Piece, divide, longest_share

START: Final = 100
END: Final = 200

RUNNING: Final = ("preprocessing", "prefill", "decode")

times = st.integers(80, 220)
stays = st.lists(times, min_size=2, max_size=5, unique=True).flatmap(
    lambda at: st.lists(st.sampled_from(["queue", *RUNNING]), min_size=len(at) - 1, max_size=len(at) - 1).map(
        lambda stages: [
            (began, stopped, stage) for began, stopped, stage in zip(sorted(at), sorted(at)[1:], stages, strict=False)
        ]
    )
)
crowds = st.lists(stays, max_size=6)


def by_stage(crowd: list[list[Piece[str]]]) -> tuple[dict[str, Fraction], int]:
    """Return the time of each stage, by the division among the requests, and the idle time."""
    pieces = [
        (began, stopped, (number, stage))
        for number, of_one in enumerate(crowd)
        for began, stopped, stage in of_one
        if stage in RUNNING
    ]
    shares = divide(pieces, [(START, END)])
    found = dict.fromkeys(RUNNING, Fraction(0))
    for (_, stage), time in shares.scaled.items():
        found[stage] += Fraction(time, shares.scale)
    return found, shares.idle


@given(crowd=crowds)
def test_stages_have_what_their_requests_have(crowd: list[list[Piece[str]]]) -> None:
    """Exact to a fraction of a nanosecond, for requests that came before, stayed on, or changed at one instant."""
    changes: list[tuple[int, int]] = []
    before = sum(add_changes(of_one, START, END, changes) for of_one in crowd)
    shares = divide_by_stage(before, changes, START, END)
    wanted, idle = by_stage(crowd)
    assert shares.idle == idle
    assert {stage: Fraction(getattr(shares, stage), shares.scale) for stage in RUNNING} == wanted


@given(crowd=crowds)
def test_nobody_has_more_than_one_that_ran_throughout(crowd: list[list[Piece[str]]]) -> None:
    """That is why a crowd is not divided among its requests: no share reaches that of a culprit."""
    changes: list[tuple[int, int]] = []
    before = sum(add_changes(of_one, START, END, changes) for of_one in crowd)
    shares = divide_by_stage(before, changes, START, END)
    pieces = [
        (began, stopped, number)
        for number, of_one in enumerate(crowd)
        for began, stopped, stage in of_one
        if stage in RUNNING
    ]
    exact = divide(pieces, [(START, END)])
    largest = max((Fraction(time, exact.scale) for time in exact.scaled.values()), default=Fraction(0))
    assert largest <= Fraction(shares.throughout, shares.scale)


@given(moves=st.lists(st.tuples(st.sampled_from(RUNNING), times), min_size=1, max_size=4), end=times)
def test_a_slot_shifts_the_crowd_as_its_stays_do(moves: list[tuple[str, int]], end: int) -> None:
    """The changes that a slot keeps are all there are, those before the stretch and after it included."""
    slot = EngineSlot("one", "default", 0)
    for (stage, _), at in zip(moves, sorted(at for _, at in moves), strict=True):
        slot.enter(stage, at)
    slot.end(max(end, *(at for _, at in moves)), by=0)
    assert slot.steady
    changes: list[tuple[int, int]] = []
    before = add_changes(slot.stays(), START, END, changes)
    assert divide_by_stage(0, list(slot.shifts), START, END) == divide_by_stage(before, changes, START, END)
    assert sum(change for _, change in slot.shifts) == 0


@given(crowd=crowds, windows=st.lists(st.tuples(times, times).map(lambda two: (min(two), max(two))), max_size=3))
def test_the_longest_share_is_that_of_the_exact_division(
    crowd: list[list[Piece[str]]], windows: list[tuple[int, int]]
) -> None:
    """What is covered to the nanosecond, the share nearly: windows may overlap, and one request may come twice."""
    pieces = [(began, stopped, number) for number, of_one in enumerate(crowd) for began, stopped, _ in of_one]
    exact = divide(pieces, windows)
    covered, largest = longest_share(pieces, windows)
    assert covered == exact.covered
    assert largest == pytest.approx(max((time / exact.scale for time in exact.scaled.values()), default=0.0))


@given(crowd=crowds, cuts=st.lists(times, min_size=8, max_size=16), throughout=st.integers(0, 2))
def test_many_windows_are_divided_as_each_of_them_is(
    crowd: list[list[Piece[str]]], cuts: list[int], throughout: int
) -> None:
    """One after another, some of them empty or next to each other: pieces are looked up among them."""
    cuts.sort()
    windows = list(zip(cuts[::2], cuts[1::2], strict=False))
    pieces = [(began, stopped, number) for number, of_one in enumerate(crowd) for began, stopped, _ in of_one]
    exact = divide(pieces, windows, throughout)
    found: dict[int, Fraction] = {}
    for window in windows:
        alone = divide(pieces, [window], throughout)
        for key, time in alone.scaled.items():
            found[key] = found.get(key, Fraction(0)) + Fraction(time, alone.scale)
    assert {key: Fraction(time, exact.scale) for key, time in exact.scaled.items()} == found
    if not throughout:
        covered, largest = longest_share(pieces, windows)
        assert covered == exact.covered
        assert largest == pytest.approx(float(max(found.values(), default=Fraction(0))))


def test_a_crowd_holds_more_requests_than_any_log() -> None:
    """A hundred thousand in each stage do not run over into one another."""
    many = 100_000
    crowd = sum(many * one for one in ONE_IN.values())
    shares = divide_by_stage(crowd, [], START, END)
    third = Fraction(END - START, 3)
    assert [Fraction(getattr(shares, stage), shares.scale) for stage in RUNNING] == [third] * 3
