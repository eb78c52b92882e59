"""A request that ends looks at its neighbours while their threads are in the middle of moving them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from threading import Thread
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from otel_lifecycle._core import engine_log
from otel_lifecycle._core.course_slot import CourseSlot
from otel_lifecycle._core.engine_log import EngineLog
from otel_lifecycle._core.engine_slot import MAX_SLOT_PIECES, EngineSlot
from otel_lifecycle._core.interference import Interference, QueueSplit
from otel_lifecycle._core.lifecycle import SHAPES
from otel_lifecycle._core.report import Report, build_report
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.who_held import who_held, windows_of

Change = Callable[[EngineLog, EngineSlot], None]

SLOT_CODE = frozenset(
    function.__code__
    for slot in (EngineSlot, CourseSlot)
    for function in vars(slot).values()
    if isinstance(function, FunctionType)
)
"""What changes a slot: a switch of threads inside it shows the slot in the middle of a change."""

OWNER_CODE = SLOT_CODE | {EngineLog.move.__code__, EngineLog.end.__code__, EngineLog.leave.__code__}
"""What the owner of a request runs, in part without the lock of the log."""


def waiter(arrival: int, admitted: int, end: int) -> Report:
    """Return the report of a request that waited, and decoded until its end."""
    timeline = Timeline(SHAPES["default"])
    for event, at in (("arrive", arrival), ("admit", admitted), ("input_ready", admitted), ("first_token", admitted)):
        timeline.apply(event, at)
    timeline.apply("complete", end)
    return build_report(timeline, "completed")


def look(log: EngineLog, report: Report) -> Interference:
    """Return what a request finds that has just ended."""
    return log.interference(EngineSlot("me", "default", report["timestamps"]["arrival"]), report, None)


def at_every_bytecode(code: frozenset[CodeType], look_around: Callable[[], None], work: Callable[[], None]) -> None:
    """Run ``work``; before each bytecode of the given functions, and after the last, look around."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code not in code:
            return None
        frame.f_trace_opcodes = True
        if event in ("opcode", "return"):
            look_around()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)


def moved(*moves: tuple[str, int | None]) -> Change:
    """Return a change that moves a slot through states."""

    def change(log: EngineLog, slot: EngineSlot) -> None:
        for state, at in moves:
            log.move(slot, state, at)

    return change


def ended(at: int | None, by: int, *, apart: bool = False) -> Change:
    """Return a change that ends a slot."""
    return lambda log, slot: log.end(slot, at, by=by, apart=apart)


RUN = moved(("preprocessing", 10), ("prefill", 20), ("decode", 30))
CHANGES: dict[str, tuple[Change, Change]] = {
    "admitted": (moved(), moved(("preprocessing", 60))),
    "to prefill": (moved(("preprocessing", 10)), moved(("prefill", 60))),
    "preempted": (RUN, moved(("preempted", 60))),
    "preempted before the wait": (RUN, moved(("preempted", 45))),
    "resumed": (
        moved(("preprocessing", 10), ("prefill", 20), ("decode", 30), ("preempted", 45)),
        moved(("decode", 60)),
    ),
    "terminal event": (RUN, moved(("completed", 70))),
    "terminal event before the wait": (RUN, moved(("completed", 40))),
    "terminal event, then the end": (moved(("prefill", 10), ("completed", 70)), ended(70, 75)),
    "end without a terminal event": (RUN, ended(70, 75)),
    "unknown end": (RUN, ended(None, 75)),
    "into doubt": (moved(("preprocessing", 10)), moved(("prefill", None))),
    "out of doubt": (moved(("preprocessing", 10), ("prefill", None)), moved(("decode", 60))),
    "on in doubt": (moved(("preprocessing", None)), moved(("prefill", None))),
    "in the past": (RUN, moved(("completed", 25))),
    "another clock": (RUN, ended(70, 75, apart=True)),
    "too many stays": (
        moved(("decode", 0), *((("preempted", "decode")[at % 2], at) for at in range(MAX_SLOT_PIECES))),
        moved(("preempted", 300)),
    ),
}
WAITS = [(5, 15, 20), (15, 25, 100), (41, 80, 100), (50, 59, 65), (65, 90, 120)]


@pytest.mark.parametrize("wait", WAITS, ids=str)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_neighbour_in_the_middle_of_a_move(change: tuple[Change, Change], wait: tuple[int, int, int]) -> None:
    """Between any two bytecodes of the move, one finds what was before it, what is after it, or doubt already."""
    first, then = change
    log, report = EngineLog(), waiter(*wait)
    slot = log.open("neighbour", "default", 0)
    first(log, slot)
    found = [look(log, report)]

    def look_from_another_thread() -> None:
        # While the lists are changed it waits for the lock.
        if not log._changing:
            found.append(look(log, report))

    at_every_bytecode(OWNER_CODE, look_from_another_thread, lambda: then(log, slot))
    after = look(log, report)
    assert len(found) > 20
    allowed = (found[0], replace(found[0], complete=after.complete), after)
    assert [seen for seen in found if seen not in allowed] == []


@pytest.mark.parametrize("wait", WAITS, ids=str)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_neighbour_that_another_thread_enters(change: tuple[Change, Change], wait: tuple[int, int, int]) -> None:
    """Who has the slots already reads them while a third thread enters a move: before it, after it, or in doubt."""
    first, then = change
    log, report = EngineLog(), waiter(*wait)
    slot = log.open("neighbour", "default", 0)
    first(log, slot)
    before = look(log, report)
    me, windows = EngineSlot("me", "default", wait[0]), windows_of(report)
    assert windows is not None
    others, waiting = log._others(me, windows.first), log._still_ahead(wait[0])
    found: list[Interference] = []

    def read_on() -> None:
        found.append(who_held(me, others, windows, None, waiting=waiting))

    then(log, slot)
    at_every_bytecode(SLOT_CODE, read_on, lambda: log._change(log._settle, slot))
    read_on()
    after = found[-1]
    allowed = (before, replace(before, complete=after.complete), after)
    assert [seen for seen in found if seen not in allowed] == []


def in_course(log: EngineLog, times: list[int]) -> CourseSlot:
    """Put a request that goes its course into the log."""
    return log.open_in_course("neighbour", SHAPES["default"], times)


COURSES: dict[str, tuple[list[int], int]] = {
    "admitted": ([0], 60),
    "to prefill": ([0, 10], 60),
    "to decode": ([0, 10, 20], 60),
    "completed": ([0, 10, 20, 30], 70),
    "completed before the wait": ([0, 10, 20, 30], 40),
}


@pytest.mark.parametrize("looked", [False, True], ids=["first look", "looked at before"])
@pytest.mark.parametrize("wait", WAITS, ids=str)
@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)
def test_neighbour_in_the_middle_of_a_step(
    course: tuple[list[int], int], wait: tuple[int, int, int], looked: bool
) -> None:
    """Between any two bytecodes of a step of its course, one finds what was before it or what is after it."""
    times, now = course
    log, report = EngineLog(), waiter(*wait)
    untouched = EngineLog()
    in_course(untouched, [*times])
    before = look(untouched, report)
    times = [*times]
    slot = in_course(log, times)
    found = [look(log, report)] if looked else []

    def step() -> None:
        times.append(now)
        if len(times) < len(SHAPES["default"].course) - 1:
            log.moved[slot] = None
        else:
            log.leave(slot, now)

    def look_from_another_thread() -> None:
        if not log._changing:
            found.append(look(log, report))

    at_every_bytecode(OWNER_CODE | {step.__code__}, look_from_another_thread, step)
    after = look(log, report)
    assert len(found) > 10
    assert [seen for seen in found if seen not in (before, after)] == []


@pytest.mark.parametrize("wait", WAITS, ids=str)
def test_neighbour_in_course_that_another_thread_reads(wait: tuple[int, int, int]) -> None:
    """Who has the slots already reads them while a third thread reads a further time of one."""
    log, report, times = EngineLog(), waiter(*wait), [0, 10]
    slot = in_course(log, times)
    before = look(log, report)
    windows = windows_of(report)
    assert windows is not None
    me = EngineSlot("me", "default", wait[0])
    others, waiting = log._others(me, windows.first), log._still_ahead(wait[0])
    found: list[Interference] = []

    def read_on() -> None:
        found.append(who_held(me, others, windows, None, waiting=waiting))

    times.extend((60, 65))
    at_every_bytecode(SLOT_CODE, read_on, lambda: log._change(log._settle, slot))
    read_on()
    between = EngineLog()
    in_course(between, [0, 10, 60])
    assert [seen for seen in found if seen not in (before, look(between, report), found[-1])] == []


def in_the_middle(number: int, code: frozenset[CodeType], call: Callable[[], object], work: Callable[[], None]) -> bool:
    """Run ``work`` with the call at that bytecode of the given functions; return whether it has so many."""
    places = count(1)

    def reach() -> None:
        if next(places) == number:
            call()

    at_every_bytecode(code, reach, work)
    return next(places) > number


def complete(log: EngineLog, slot: CourseSlot) -> None:
    """Go the last step of the course."""
    slot.times.append(85)
    log.leave(slot, 85)


def look_and_complete(log: EngineLog, slot: CourseSlot) -> None:
    """Let a third request look at both before."""
    look(log, waiter(41, 82, 84))
    complete(log, slot)


ENDS: dict[str, Callable[[EngineLog, CourseSlot], None]] = {
    "completed": complete,
    "looked": look_and_complete,
    "unknown": lambda log, slot: log.end(slot, None, by=85),
    "another clock": lambda log, slot: log.end(slot, 85, by=85, apart=True),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_end_of_a_neighbour_in_the_middle_of_an_end(end: Callable[[EngineLog, CourseSlot], None]) -> None:
    """A signal handler ends a neighbour at any bytecode of an end: neither was alone, and both are noted."""

    def ended_by_both(number: int) -> tuple[bool, EngineLog]:
        log, mine = EngineLog(), [40, 50, 60, 70]
        neighbour, slot = in_course(log, [0, 10, 20, 30]), in_course(log, mine)
        alone: list[bool] = []

        def leave() -> None:
            mine.append(80)
            alone.append(log.leave(slot, 80))

        inside = in_the_middle(number, frozenset({EngineLog.leave.__code__}), lambda: end(log, neighbour), leave)
        if not inside:
            end(log, neighbour)
        assert alone == [False]
        assert (log.idle, log._ran, [kept.stopped for kept in log._ended]) == (True, {}, [80, 85])
        return inside, log

    number, wait = 1, waiter(41, 82, 100)
    expected = look(ended_by_both(10_000)[1], wait)
    while (found := ended_by_both(number))[0]:
        assert look(found[1], wait) == expected
        number += 1
    assert number > 50


class BrokenOff(Exception):
    """What a signal handler raises."""


class BrokenOffList(list[EngineSlot]):
    """A list after whose next append a signal handler raises."""

    def append(self, slot: EngineSlot) -> None:
        """Append it, and raise."""
        super().append(slot)
        raise BrokenOff


@pytest.mark.parametrize("looked", [False, True], ids=["never looked at", "looked at"])
def test_an_end_that_is_broken_off_costs_no_later_one(monkeypatch: pytest.MonkeyPatch, looked: bool) -> None:
    """What it left among those that have ended is dropped like all others."""
    monkeypatch.setattr(engine_log, "MAX_PIECES", 64)
    log = EngineLog()
    slot = in_course(log, [0, 10, 20, 30, 40])
    if looked:
        look(log, waiter(5, 15, 20))
    log._ended = BrokenOffList()
    with pytest.raises(BrokenOff):
        log.leave(slot, 40)
    log._ended = [*log._ended]
    for at in range(100, 130):
        log.leave(in_course(log, [at, at, at, at, at]), at)
    assert (log.dropped > 0, log._ended[-1].stopped) == (True, 129)


def test_neighbour_that_is_done_and_not_yet_judged() -> None:
    """Its terminal event is marked and its thread has not come to its end: it runs no longer."""
    log = EngineLog()
    RUN(log, neighbour := log.open("neighbour", "default", 0))
    log.move(neighbour, "completed", 40)
    found = look(log, waiter(41, 80, 100))
    assert found == Interference(ahead=0, running=0, queue=QueueSplit(idle=39), company_decode=0.0)
    log.end(neighbour, 40, by=90)
    assert look(log, waiter(41, 80, 100)) == found


def test_waiting_and_running_are_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour that another thread admits while one looks counts as waiting or as running, and not as neither."""
    log = EngineLog()
    neighbour = log.open("neighbour", "default", 0)
    others = EngineLog._others
    admission = Thread(target=log.move, args=(neighbour, "preprocessing", 60))

    def meanwhile(self: EngineLog, own: EngineSlot, since: int) -> list[EngineSlot]:
        found = others(self, own, since)
        admission.start()
        # It gets as far as it can: to the lock, or to its end.
        admission.join(0.2)
        return found

    monkeypatch.setattr(EngineLog, "_others", meanwhile)
    found = look(log, waiter(50, 80, 100))
    admission.join()
    assert (found.ahead, found.running) == (1, 0)
