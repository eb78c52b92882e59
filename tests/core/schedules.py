"""A simulated engine: requests with a known schedule, and who held whom by plain counting.

The oracle shares no code with the library.  It cuts time at every transition of any request, and divides each cut by
hand, in fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

TICK = 1_234_567
"""Nanoseconds of a step of the schedule: no share of it is a whole number."""

NOT_YET = 1_000_000 * TICK
"""Later than anything in a schedule."""

RUNNING = ("preprocessing", "prefill", "decode")


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """One request: what it enters when, in nanoseconds; the last state is the one it ends in."""

    name: str
    shape: str
    moves: tuple[tuple[str, int], ...]
    stalls: tuple[tuple[int, int], ...] | None = None
    """Gaps of more than 5 ms without their first microsecond; None of a request without tokens."""

    events: tuple[dict[str, Any], ...] = field(default=(), compare=False)

    @property
    def arrival(self) -> int:
        """When it arrived."""
        return self.moves[0][1]

    @property
    def end(self) -> int:
        """When it ended."""
        return self.moves[-1][1]

    def known(self, moves: int) -> Scheduled:
        """Return it as one knows it who was told of its first moves only: what it entered last has no end yet."""
        if moves >= len(self.moves):
            return self
        return replace(self, moves=(*self.moves[:moves], ("completed", NOT_YET)))

    def state(self, at: int) -> str | None:
        """Return the state it is in from ``at`` on; None before its arrival and after its end."""
        entered = [state for state, time in self.moves if time <= at]
        return entered[-1] if entered and at < self.end else None

    def runs(self, at: int) -> bool:
        """Whether it holds the engine from ``at`` on."""
        return self.state(at) in (RUNNING[1:] if self.shape == "preprocess_first" else RUNNING)

    def stay(self, state: str) -> tuple[int, int] | None:
        """Return when it entered a state first, and when it left it for the next one of its shape."""
        order = {"queued": "queued", "preprocessing": "preprocessing", "prefill": "prefill", "decode": "decode"}
        own = [(name, time) for name, time in self.moves if name in order or name in ENDS]
        places = [place for place, (name, _) in enumerate(own) if name == state]
        if not places:
            return None
        after = [time for name, time in own[places[0] + 1 :] if name != state]
        return own[places[0]][1], after[0]


ENDS = ("completed", "cancelled", "failed")
_NEXT = {
    "default": ("queued", "preprocessing", "prefill", "decode"),
    "preprocess_first": ("preprocessing", "queued", "prefill", "decode"),
    "pooling": ("queued", "preprocessing", "prefill"),
}
_EVENT = {
    ("default", "preprocessing"): "admit",
    ("default", "prefill"): "input_ready",
    ("default", "decode"): "first_token",
    ("preprocess_first", "queued"): "input_ready",
    ("preprocess_first", "prefill"): "admit",
    ("preprocess_first", "decode"): "first_token",
    ("pooling", "preprocessing"): "admit",
    ("pooling", "prefill"): "input_ready",
}
_END = {"completed": "complete", "cancelled": "cancel"}


@st.composite
def schedules(draw: st.DrawFn, *, most: int = 7, shapes: Sequence[str] = tuple(_NEXT)) -> list[Scheduled]:
    """Draw the requests of one engine; many overlap, and many transitions fall on the same instant."""
    return [draw(_scheduled(f"r{number}", shapes)) for number in range(draw(st.integers(1, most)))]


@st.composite
def _scheduled(draw: st.DrawFn, name: str, shapes: Sequence[str]) -> Scheduled:
    shape = draw(st.sampled_from(shapes))
    at = draw(st.integers(0, 20))
    states = _NEXT[shape]
    moves, events = [(states[0], at)], [("arrive", at)]
    reached = len(states) if draw(st.integers(0, 3)) else draw(st.integers(1, len(states)))
    for place in range(1, reached):
        at += draw(st.integers(0, 10))
        moves.append((states[place], at))
        events.append((_EVENT[shape, states[place]], at))
        if states[place] in ("prefill", "decode") and draw(st.integers(0, 3)) == 0:
            for event, state in (("preempt", "preempted"), ("resume", states[place])):
                at += draw(st.integers(0, 5))
                moves.append((state, at))
                events.append((event, at))
    at += draw(st.integers(0, 15))
    end = "completed" if reached == len(states) else "cancelled"
    moves.append((end, at))
    events.append((_END[end], at))
    tokens = _tokens(draw, [(state, time * TICK) for state, time in moves])
    timed = [{"event": event, "timestamp": time * TICK} for event, time in events]
    timed += [{"event": "token", "timestamp": time} for time in tokens]
    return Scheduled(
        name=name,
        shape=shape,
        moves=tuple((state, time * TICK) for state, time in moves),
        stalls=_stalls_by_hand(moves, tokens),
        # Tokens lie between the ticks at which states change, so that one order of all is right.
        events=tuple(sorted(timed, key=lambda event: event["timestamp"])),
    )


USUAL = 1_000
"""Nanoseconds between the tokens of the burst that each decode begins with."""


def _tokens(draw: st.DrawFn, moves: Sequence[tuple[str, int]]) -> list[int]:
    """Draw the times of the tokens after the first: a burst, then some at the beginnings of ticks."""
    stays = [(start, end) for (state, start), (_, end) in pairwise(moves) if state == "decode" and end > start]
    first = next((start for state, start in moves if state == "decode"), None)
    if not stays or stays[0][0] != first:
        return []
    ticks = [at + TICK // 10 for start, end in stays for at in range(start, end, TICK)]
    later = draw(st.lists(st.sampled_from(ticks), max_size=5, unique=True))
    return [first + number * USUAL for number in range(1, 11)] + sorted(later)


def _stalls_by_hand(moves: Sequence[tuple[str, int]], tokens: Sequence[int]) -> tuple[tuple[int, int], ...] | None:
    if not tokens:
        return None
    first = next(time * TICK for state, time in moves if state == "decode")
    gaps = pairwise([first, *tokens])
    return tuple((start + USUAL, end) for start, end in gaps if end - start > USUAL + 5_000_000)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a request suffered, by counting: exact fractions of nanoseconds."""

    queue: dict[str, Fraction] | None
    holders: dict[str, Fraction]
    stall: dict[str, int] | None
    stallers: dict[str, Fraction]
    ahead: int
    running: int
    company: dict[str, Fraction | None]


def expected(request: Scheduled, everybody: Sequence[Scheduled]) -> Expected:
    """Work out by hand what the others did to a request."""
    others = [other for other in everybody if other is not request]
    cuts = sorted({time for one in everybody for _, time in one.moves} | {t for s in request.stalls or () for t in s})
    steps = list(pairwise(cuts))
    queue, holders = _queue(request, others, steps)
    stall, stallers = _stall(request, others, steps)
    company = {stage: _company(request.stay(stage), others, steps) for stage in ("prefill", "decode")}
    return Expected(
        queue=queue,
        holders=holders,
        stall=stall,
        stallers=stallers,
        ahead=sum(_waits(other, request.arrival) for other in others),
        running=sum(other.runs(request.arrival) for other in others),
        company=company,
    )


def _waits(request: Scheduled, at: int) -> bool:
    """Whether a request has been waiting at a time, and goes on to."""
    wait = request.stay("queued")
    return wait is not None and wait[0] < at < wait[1]


def _queue(
    request: Scheduled, others: Sequence[Scheduled], steps: Sequence[tuple[int, int]]
) -> tuple[dict[str, Fraction] | None, dict[str, Fraction]]:
    wait, left = request.stay("queued"), [state for state, _ in request.moves]
    if wait is None or left[left.index("queued") + 1] in ENDS:
        return None, {}
    parts: dict[str, Fraction] = dict.fromkeys((*RUNNING, "idle"), Fraction(0))
    holders: dict[str, Fraction] = {}
    for start, end in steps:
        if not wait[0] <= start < wait[1]:
            continue
        running = [other for other in others if other.runs(start)]
        for other in running:
            share = Fraction(end - start, len(running))
            parts[str(other.state(start))] += share
            holders[other.name] = holders.get(other.name, Fraction(0)) + share
        if not running:
            parts["idle"] += end - start
    return parts, holders


def _stall(
    request: Scheduled, others: Sequence[Scheduled], steps: Sequence[tuple[int, int]]
) -> tuple[dict[str, int] | None, dict[str, Fraction]]:
    if request.stalls is None:
        return None, {}
    parts = dict.fromkeys(("prefill", "preemption", "unexplained"), 0)
    holders: dict[str, Fraction] = {}
    for stall in request.stalls:
        for start, end in steps:
            if not stall[0] <= start < stall[1]:
                continue
            beside = [other for other in others if other.state(start) == "prefill"]
            if request.state(start) == "preempted":
                parts["preemption"] += end - start
            elif beside:
                parts["prefill"] += end - start
                for other in beside:
                    holders[other.name] = holders.get(other.name, Fraction(0)) + Fraction(end - start, len(beside))
            else:
                parts["unexplained"] += end - start
    return parts, holders


def _company(
    window: tuple[int, int] | None, others: Sequence[Scheduled], steps: Sequence[tuple[int, int]]
) -> Fraction | None:
    if window is None or window[0] == window[1]:
        return None
    inside = [(start, end) for start, end in steps if window[0] <= start < window[1]]
    total = sum((end - start) * sum(other.runs(start) for other in others) for start, end in inside)
    return Fraction(total, window[1] - window[0])
