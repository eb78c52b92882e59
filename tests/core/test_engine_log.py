"""The interval log against a simulated engine with a known schedule: to the nanosecond, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from otel_lifecycle._core import engine_log
from otel_lifecycle._core.engine_log import EngineLog
from otel_lifecycle._core.engine_slot import NEVER, EngineSlot
from otel_lifecycle._core.interference import Culprit, Interference, QueueSplit, StallSplit
from otel_lifecycle._core.lifecycle import SHAPES
from otel_lifecycle._core.report import Report, build_report
from otel_lifecycle._core.stalls import Stalls
from otel_lifecycle._core.timeline import Timeline

from .schedules import Expected, Scheduled, expected, schedules

MS = 1_000_000


def report_of(request: Scheduled) -> Report:
    """Return the report of a scheduled request."""
    timeline = Timeline(SHAPES[request.shape])
    for event in request.events:
        timeline.apply(event["event"], event["timestamp"])
    return build_report(timeline, timeline.state)


def feed(log: EngineLog, requests: Sequence[Scheduled], order: Sequence[int]) -> dict[str, EngineSlot]:
    """Feed the transitions; ``order`` names whose next one comes.  Each request's own stay in order."""
    slots: dict[str, EngineSlot] = {}
    left = {request.name: list(request.moves) for request in requests}
    for place in order:
        request = requests[place]
        state, at = left[request.name].pop(0)
        if request.name not in slots:
            slots[request.name] = log.open(request.name, request.shape, at)
        elif left[request.name]:
            log.move(slots[request.name], state, at)
        else:
            log.end(slots[request.name], at, by=at)
    return slots


def assert_as_expected(found: Interference, wanted: Expected, request: Scheduled) -> None:
    """Compare everything that was found with what was counted."""
    assert (found.ahead, found.running) == (wanted.ahead, wanted.running)
    if wanted.queue is None:
        assert found.queue is None
    else:
        assert found.queue is not None
        wait = sum(wanted.queue.values(), Fraction(0))
        assert found.queue.wait == wait
        for stage, exact in wanted.queue.items():
            # Rounded down, and what remains of the whole goes to the largest.
            assert abs(getattr(found.queue, stage) - exact) < len(wanted.queue)
            assert exact or getattr(found.queue, stage) == 0
        assert_culprits(found, "queue", wanted.holders, wait)
    if wanted.stall is None:
        assert found.stall_split is None
    else:
        assert found.stall_split == StallSplit(**wanted.stall)
        assert found.stalls is not None
        assert sum(wanted.stall.values()) == found.stalls.time
        assert_culprits(found, "stall", wanted.stallers, Fraction(wanted.stall["prefill"]))
    company = {"prefill": found.company_prefill, "decode": found.company_decode}
    cut_off = request.shape == "pooling" and request.moves[-1][0] != "completed"
    for stage, exact_mean in wanted.company.items():
        finished = request.stay(stage) is not None and not (
            stage == "prefill" and (cut_off or request.moves[-1][0] == "cancelled")
        )
        mean = float(exact_mean) if exact_mean is not None and finished else None
        assert company[stage] == pytest.approx(mean)


def assert_culprits(found: Interference, reason: str, times: dict[str, Fraction], whole: Fraction) -> None:
    """The three largest, each with a tenth of the whole and a millisecond."""
    fair = sorted(-int(time) for time in times.values() if time * 10 >= whole and time >= MS)[:3]
    named = [culprit for culprit in found.culprits if culprit.reason == reason]
    assert [-culprit.time for culprit in named] == fair
    assert all(int(times[str(culprit.who)]) == culprit.time for culprit in named)


@given(requests=schedules(), data=st.data())
def test_split_is_the_schedule(requests: list[Scheduled], data: st.DataObject) -> None:
    """Every part is what was counted, whatever the order in which the requests were told of."""
    order = [place for place, request in enumerate(requests) for _ in request.moves]
    if data.draw(st.booleans()):
        order = data.draw(st.permutations(order))
    log = EngineLog()
    slots = feed(log, requests, order)
    for request in requests:
        stalls = None if request.stalls is None else Stalls(intervals=request.stalls)
        found = log.interference(slots[request.name], report_of(request), stalls)
        assert found.complete
        assert_as_expected(found, expected(request, requests), request)


class InCourse:
    """Tells a log of a request as that does itself: by its times as long as it goes its course, then by moves."""

    def __init__(self, log: EngineLog, request: Scheduled) -> None:
        self.log = log
        self.shape = SHAPES[request.shape]
        self.times = [request.arrival]
        self.slot = log.open_in_course(request.name, self.shape, self.times)
        self.gone = False
        self.alone: bool | None = None

    def move(self, state: str, at: int) -> None:
        """Enter a state."""
        if not self.gone and self.shape.course[len(self.times)].state == state:
            self.times.append(at)
            self.log.moved[self.slot] = None
        else:
            self.leave_course()
            self.log.move(self.slot, state, at)

    def end(self, state: str, at: int) -> None:
        """End it."""
        if not self.gone and self.shape.course[len(self.times)].state == state:
            self.times.append(at)
            self.alone = self.log.leave(self.slot, at)
        else:
            self.leave_course()
            self.log.end(self.slot, at, by=at)

    def leave_course(self) -> None:
        """Append no more times."""
        self.gone = True
        self.slot.leave_course()


@example(
    requests=[
        Scheduled(
            name="r0",
            shape="preprocess_first",
            moves=(("preprocessing", 0), ("cancelled", 10)),
            events=({"event": "arrive", "timestamp": 0}, {"event": "cancel", "timestamp": 10}),
        ),
        Scheduled(
            name="r1",
            shape="default",
            moves=(("queued", 0), ("preprocessing", 0), ("prefill", 0), ("decode", 10), ("completed", 10)),
            events=tuple(
                {"event": event, "timestamp": at}
                for event, at in (
                    ("arrive", 0),
                    ("admit", 0),
                    ("input_ready", 0),
                    ("first_token", 10),
                    ("complete", 10),
                )
            ),
        ),
    ],
    looks=set(),
)
@given(requests=schedules(), looks=st.sets(st.integers(0, 30)))
def test_split_of_requests_that_go_their_course(requests: list[Scheduled], looks: set[int]) -> None:
    """A log that reads the times of requests finds the same as one that is told of each move."""
    log = EngineLog()
    owners: dict[str, InCourse] = {}
    told = sorted((at, place, number) for place, one in enumerate(requests) for number, (_, at) in enumerate(one.moves))
    for count, (_, place, number) in enumerate(told):
        request = requests[place]
        state, at = request.moves[number]
        if not number:
            owners[request.name] = InCourse(log, request)
        elif number < len(request.moves) - 1:
            owners[request.name].move(state, at)
        else:
            owners[request.name].end(state, at)
        if count in looks:
            # Somebody looks in between.
            log._others(EngineSlot(None, "default", 0), 0)
    for request in requests:
        owner, wanted = owners[request.name], expected(request, requests)
        stalls = None if request.stalls is None else Stalls(intervals=request.stalls)
        found = log.interference(owner.slot, report_of(request), stalls)
        assert found.complete
        assert_as_expected(found, wanted, request)
        if owner.alone:
            since = [(one, held_from(one)) for one in requests if one is not request]
            assert all(one.end <= request.arrival or began is None or began >= request.end for one, began in since)


def held_from(request: Scheduled) -> int | None:
    """Return from when on a request held a place of the engine, in its queue or running; None if it never did."""
    # What it prepares before it queues is its own affair.
    held = request.moves[:-1] if SHAPES[request.shape].queues_first else request.moves[1:-1]
    return held[0][1] if held else None


def test_nobody_looks_at_requests_that_come_one_after_the_other() -> None:
    """Each was alone, and of none of them a stay is ever made."""
    log, owners = EngineLog(), []
    for number in range(3):
        owners.append(
            one := InCourse(log, Scheduled(name=str(number), shape="pooling", moves=(("queued", number * 10),)))
        )
        one.move("preprocessing", number * 10 + 1)
        one.move("prefill", number * 10 + 2)
        one.end("completed", number * 10 + 9)
    assert [one.alone for one in owners] == [True] * 3
    assert not any(hasattr(one.slot, "view") for one in owners)
    assert all(one.slot.unread for one in owners)


def running(log: EngineLog, who: str, *times: int | None) -> EngineSlot:
    """Put a request in decode into the log: arrival, admit, input_ready, first_token."""
    slot = log.open(who, "default", times[0])
    for state, at in zip(("preprocessing", "prefill", "decode"), times[1:], strict=True):
        log.move(slot, state, at)
    return slot


def waited(log: EngineLog, arrival: int, admitted: int, end: int) -> Interference:
    """Return what was found of a request that waited, and decoded until its end."""
    slot = running(log, "me", arrival, admitted, admitted, admitted)
    log.end(slot, end, by=end)
    timeline = Timeline(SHAPES["default"])
    for event, at in (("arrive", arrival), ("admit", admitted), ("input_ready", admitted), ("first_token", admitted)):
        timeline.apply(event, at)
    timeline.apply("complete", end)
    return log.interference(slot, build_report(timeline, "completed"), None)


def test_wait_beside_an_idle_engine() -> None:
    """Nobody runs: the whole wait is idle, which is an admission problem."""
    found = waited(EngineLog(), 10, 110, 200)
    assert found == Interference(
        ahead=0, running=0, queue=QueueSplit(idle=100), company_prefill=None, company_decode=0.0
    )


def test_open_neighbours_count_as_far_as_they_are_known() -> None:
    """Two of them run and are not over; a third waits."""
    log = EngineLog()
    running(log, "long", 0, 0, 0, 1)
    running(log, "late", 0, 1, 1, 60 * MS)
    log.open("waiting", "default", 5)
    found = waited(log, 10 * MS, 110 * MS, 200 * MS)
    assert (found.ahead, found.running, found.company_decode) == (1, 2, 2.0)
    assert found.queue == QueueSplit(prefill=25 * MS, decode=75 * MS)
    assert found.culprits == (
        Culprit(who="long", reason="queue", time=50 * MS),
        Culprit(who="late", reason="queue", time=50 * MS),
    )


@pytest.mark.parametrize(
    "times", [(0, None, None, 150), (0, 5, None, 150), (0, None, None, None)], ids=["none shown", "one", "not yet"]
)
def test_unknown_boundaries_make_it_incomplete(times: tuple[int | None, ...]) -> None:
    """A neighbour that ran at times nobody knows is counted for nothing, and the split says that it is a part."""
    log = EngineLog()
    running(log, "hidden", *times)
    found = waited(log, 10, 110, 300)
    assert (found.complete, found.queue) == (False, QueueSplit(idle=100))


def test_unknown_times_of_others_before_and_after_do_not_matter() -> None:
    """Only requests that overlap this one can leave its split incomplete."""
    log = EngineLog()
    early = running(log, "early", 0, None, None, 5)
    log.end(early, None, by=9)
    slot = log.open("waits", "default", 0)
    log.end(slot, 400, by=400)
    found = waited(log, 10, 110, 300)
    assert (found.complete, found.ahead) == (True, 1)


def test_times_of_another_clock_are_compared_with_nothing() -> None:
    """A neighbour whose clocks are proven apart may have run at any time of its life."""
    log = EngineLog()
    log.end(running(log, "remote", 0, 40, 50, 60), 90, by=120, apart=True)
    found = waited(log, 10, 110, 300)
    assert (found.complete, found.queue) == (False, QueueSplit(idle=100))


def test_shared_engine_gives_no_queue_split() -> None:
    """Requests of other processes are not seen: idle would be wrong, and so would be every share."""
    log = EngineLog(shared=True)
    running(log, "seen", 0, 0, 0, 1)
    assert waited(log, 10, 110, 200) == Interference(complete=False)


def test_dropped_stays_make_the_split_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log keeps a bounded number of stays; who may need one that is gone gets no split."""
    monkeypatch.setattr(engine_log, "MAX_PIECES", 40)
    log = EngineLog()
    for number in range(100):
        log.end(running(log, "short", number, number + 1, number + 2, number + 3), number + 4, by=number + 4)
    kept = 40 // 5
    assert (log.dropped, log.dropped_to) == (4 * (100 - kept), 100 - kept + 3)
    assert waited(log, 90, 110, 200) == Interference()
    assert waited(log, 100, 110, 200).queue is not None


def test_one_request_cannot_fill_the_log() -> None:
    """A request that is preempted without end keeps a bounded number of stays and is in doubt from then on."""
    log = EngineLog()
    slot = running(log, "thrashing", 0, 0, 0, 1)
    for number in range(1000):
        log.move(slot, "preempted", 10 + 2 * number)
        log.move(slot, "decode", 11 + 2 * number)
    assert (slot.pieces, slot.unsure) == ([], ((0, NEVER),))
    assert waited(log, 600, 700, 800).complete is False
    log.end(slot, 5000, by=5000)
    assert (slot.doubts(), waited(log, 5001, 5002, 5003).complete) == ([(0, 5000)], True)


def test_end_inside_an_insertion(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler ends one request and opens another while a third is put in: each is there once, in order."""
    log = EngineLog()
    inner = running(log, "inner", 0, 1, 2, 3)
    insert = EngineLog._insert

    def interrupted(self: EngineLog, slot: EngineSlot) -> None:
        if slot is not inner:
            log.end(inner, 50, by=50)
            log.move(log.open("newcomer", "default", 55), "preprocessing", 56)
        insert(self, slot)

    monkeypatch.setattr(EngineLog, "_insert", interrupted)
    log.end(running(log, "outer", 0, 1, 2, 3), 60, by=60)
    assert [slot.who for slot in log._others(EngineSlot(None, "default", 0), 0)] == [
        "newcomer",
        "inner",
        "outer",
    ]
    monkeypatch.undo()
    assert waited(log, 1, 10, 200).running == 2


def test_ending_does_not_look_at_a_jammed_queue() -> None:
    """Thousands wait or gave up: they count as ahead, and a request that ends is compared with none of them."""
    log = EngineLog()
    waiting = [log.open(f"waiting {number}", "default", number) for number in range(3000)]
    for slot in waiting[::2]:
        log.end(slot, 5000, by=5000)
    runner = running(log, "runner", 0, 1, 2, 3)
    me = EngineSlot("me", "default", 4000)
    assert [slot.who for slot in log._others(me, 4000)] == ["runner"]
    assert (waited(log, 4000, 4001, 4002).ahead, waited(log, 6000, 6001, 6002).ahead) == (3000, 1500)
    log.end(runner, 7000, by=7000)
    for slot in waiting[1::2]:
        log.move(slot, "preprocessing", 8000)
    assert waited(log, 8001, 8002, 8003) == Interference()


def test_too_many_beside_one() -> None:
    """More than a thousand ran beside a request: nothing can be told apart, and nothing is said."""
    log = EngineLog()
    for number in range(1025):
        running(log, "one of many", 0, 0, 0, number)
    assert waited(log, 2000, 2001, 2002) == Interference()


def test_a_prefill_counts_after_a_time_that_went_back() -> None:
    """Another clock says that it was back in decode before its prefill was over: which is so is in doubt."""
    log = EngineLog()
    other = running(log, "other", 0, 0, 4 * MS, 20 * MS)
    log.move(other, "preempted", 8 * MS)
    log.move(other, "decode", 9 * MS)
    slot = running(log, "me", 0, 0, 0, 1 * MS)
    log.end(slot, 40 * MS, by=40 * MS)
    report = build_report(Timeline(SHAPES["default"]), "completed")
    report["timestamps"] = {"arrival": 0, "first_token": MS, "terminal": 40 * MS}
    found = log.interference(slot, report, Stalls(intervals=((10 * MS, 30 * MS),)))
    assert (found.stall_split, found.complete) == (StallSplit(prefill=10 * MS, unexplained=10 * MS), False)
