"""What the interval log of an engine costs: a transition, and the end of a request beside 64 that run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from otel_lifecycle._core.engine_log import EngineLog
from otel_lifecycle._core.engine_slot import EngineSlot
from otel_lifecycle._core.report import Report
from otel_lifecycle._core.stalls import NO_STALLS, Stalls
from tests.benchmarks.measure import Budget, Say, stopwatch, versus
from tests.benchmarks.requests import five_spans, say_us

MS = 1_000_000
RUNNING = 64
TIMES = 20
FIVE_SPANS_US = 57.5
"""What five bare spans take on an idle machine of the kind that the contract's microseconds were measured on."""

Ask = Callable[[], object]


def interference(say: Say) -> Iterator[Budget]:
    """A transition, and what the others did at the end of a request, against five bare spans."""
    for name, limit, trial, divisor in (
        ("engine_transition", 1.5, transitions, 5 * 100),
        ("interference_calm", 20.0, partial(asked, calm()), 1),
        ("interference_waited", 100.0, partial(asked, waited()), 1),
        ("interference_stalled", 100.0, partial(asked, stalled()), 1),
        ("interference_waited_and_stalled", 100.0, partial(asked, waited_and_stalled()), 1),
    ):
        budget, samples = versus(name, divisor * limit / FIVE_SPANS_US, trial, five_spans(TIMES), allowance=20)
        say_us(say, name, samples["ours"], TIMES * divisor)
        say_us(say, f"{name}: five bare spans", samples["theirs"], TIMES)
        yield budget


def asked(ask: Ask) -> int:
    """Return the time of asking so many times."""
    spent: list[int] = []
    for _ in range(TIMES):
        with stopwatch(spent):
            ask()
    return sum(spent)


def transitions() -> int:
    """Return the time that 100 requests of five transitions take, so many times."""
    spent: list[int] = []
    for _ in range(TIMES):
        log = EngineLog()
        with stopwatch(spent):
            for at in range(100):
                slot = enter(log, at, 1, 1)
                log.end(slot, at + 4, by=at + 4)
    return sum(spent)


def enter(log: EngineLog, at: int, wait: int, prefill: int) -> EngineSlot:
    """Let a request arrive, wait, prefill and decode."""
    slot = log.open("one", "default", at)
    log.move(slot, "preprocessing", at + wait)
    log.move(slot, "prefill", at + wait + 1)
    log.move(slot, "decode", at + wait + 1 + prefill)
    return slot


def busy() -> EngineLog:
    """Return the log of an engine in which 64 requests decode."""
    log = EngineLog()
    for number in range(RUNNING):
        enter(log, number * MS, 1, 5 * MS)
    return log


def asking(log: EngineLog, times: tuple[int, int, int, int], stalls: Stalls) -> Ask:
    """End a request; return what asks for its interference."""
    arrival, admitted, first, end = (time * MS for time in times)
    slot = enter(log, arrival, admitted - arrival, first - admitted - 1)
    log.end(slot, end, by=end)
    report: Report = {
        "status": "completed",
        "failure_stage": None,
        "timestamps": {
            "arrival": arrival,
            "admitted": admitted,
            "input_ready": admitted + 1,
            "first_token": first,
            "terminal": end,
        },
        "token_times": None,
        "shape": "default",
        "preempted": {},
        "output_tokens": 100,
        "choices": {},
        "itl": [],
    }
    return lambda: log.interference(slot, report, stalls)


def calm() -> Ask:
    """A request that neither waited nor stalled."""
    return asking(busy(), (1000, 1000, 1010, 1500), NO_STALLS)


def waited() -> Ask:
    """A request that waited while four others ended and four began."""
    log = busy()
    come_and_go(log)
    return asking(log, (1000, 1300, 1310, 2500), NO_STALLS)


def stalled() -> Ask:
    """A request that stalled eight times, each beside the prefill of another."""
    log = busy()
    return asking(log, (1000, 1000, 1310, 2500), beside_prefills(log))


def waited_and_stalled() -> Ask:
    """Both in one request."""
    log = busy()
    come_and_go(log)
    return asking(log, (1000, 1300, 1310, 2500), beside_prefills(log))


def come_and_go(log: EngineLog) -> None:
    """Let four requests end and four begin between 1.1 and 1.3 s."""
    for number in range(4):
        log.end(enter(log, 500 * MS, 1, 100 * MS), (1100 + 50 * number) * MS, by=0)
        enter(log, (1100 + 50 * number) * MS, 1, 20 * MS)


def beside_prefills(log: EngineLog) -> Stalls:
    """Let eight requests prefill after 1.4 s; return stalls beside each of them."""
    intervals = []
    for number in range(8):
        began = (1400 + 100 * number) * MS
        log.end(enter(log, began, 1, 50 * MS), began + 80 * MS, by=0)
        intervals.append((began + 5 * MS, began + 45 * MS))
    return Stalls(intervals=tuple(intervals))
