"""Who held a request: its windows, and what the slots of the others say about them.

The survey looks at every slot once; what is divided afterwards are only the stays that change inside a window.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from otel_lifecycle._core.crowd import StageShares, divide_by_stage
from otel_lifecycle._core.engine_slot import PREEMPTED, RUNNING, EngineSlot
from otel_lifecycle._core.interference import (
    CULPRIT_SHARE,
    Culprit,
    Interference,
    QueueSplit,
    StallSplit,
    culprits,
    may_be_culprit,
    queue_split,
)
from otel_lifecycle._core.lifecycle import SHAPES, Shape
from otel_lifecycle._core.overlap import Piece, divide, longest_share, without
from otel_lifecycle._core.report import Report
from otel_lifecycle._core.stalls import Stalls
from otel_lifecycle._core.survey import Survey, Window, Windows, survey


def who_held(
    own: EngineSlot,
    others: list[EngineSlot],
    windows: Windows,
    stalls: Stalls | None,
    *,
    waiting: int = 0,
    shared: bool = False,
    full: bool = True,
) -> Interference:
    """Return what the others did to one request.

    ``waiting``: so many more waited at its arrival and have not run since.  ``shared``: there are further ones that
    nobody here sees.  ``full``: culprits too.
    """
    split, stallers = _split_stalls(own, others, stalls, full=full)
    if shared:
        # Idle and every share of the wait would be wrong, and so would be the numbers of others.
        return Interference(stalls=stalls, stall_split=split, culprits=tuple(stallers), complete=False)
    seen = survey(others, windows)
    queue, queuers = _split_wait(windows.wait, seen, full=full)
    known = windows.arrival is not None
    return Interference(
        ahead=seen.ahead + waiting if known else None,
        running=seen.running if known else None,
        queue=queue,
        stalls=stalls,
        stall_split=split,
        company_prefill=_mean(seen.prefill, windows.prefill),
        company_decode=_mean(seen.decode, windows.decode),
        culprits=(*queuers, *stallers),
        complete=not seen.unsure,
    )


def undisturbed(windows: Windows, stalls: Stalls | None) -> Interference:
    """Return the same for a request without a stall that was alone: :func:`who_held` would find this, for more."""
    wait, prefill, decode = windows.wait, windows.prefill, windows.decode
    nobody = None if windows.arrival is None else 0
    return Interference(
        ahead=nobody,
        running=nobody,
        queue=None if wait is None else QueueSplit(idle=wait[1] - wait[0]),
        stalls=stalls,
        stall_split=None if stalls is None else StallSplit(),
        company_prefill=_mean(0, prefill),
        company_decode=_mean(0, decode),
    )


def _bounds(shape: Shape) -> tuple[tuple[str, str] | None, ...]:
    stages = {stage.name: (stage.entered, stage.left) for stage in shape.stages}
    return tuple(stages.get(name) for name in ("queue", "prefill", "decode"))


_BOUNDS: Final = {name: _bounds(shape) for name, shape in SHAPES.items()}
"""Shape -> the timestamps that bound its queue, prefill and decode."""


def windows_of(report: Report) -> Windows | None:
    """Return the stretches of a request; one that another clock bounds, proven to disagree, is not known.

    None where no time is known at all.
    """
    times, foreign = report["timestamps"], report.get("foreign")
    known = {name: time for name, time in times.items() if name not in foreign} if foreign else times
    if not known:
        return None
    found: list[Window] = []
    for bounds in _BOUNDS[report["shape"]]:
        entered, left = (None, None) if bounds is None else (known.get(bounds[0]), known.get(bounds[1]))
        found.append(None if entered is None or left is None else (entered, left))
    if not SHAPES[report["shape"]].streams and report["status"] != "completed":
        # Only its completion ends the model's pass; any other end cuts it off.
        found[1] = None
    wait, prefill, decode = found
    return Windows(known.get("arrival"), wait, prefill, decode, min(known.values()), max(known.values()))


def _split_wait(wait: Window, seen: Survey, *, full: bool) -> tuple[QueueSplit | None, list[Culprit]]:
    if wait is None:
        return None, []
    whole = wait[1] - wait[0]
    if not whole:
        return QueueSplit(), []
    shares = divide_by_stage(seen.before, seen.changes, *wait)
    split = queue_split(shares, whole)
    # No request has a larger share than one that ran all along. So a crowd has no culprit, and in a short wait no share
    # can reach the least time of one. Only where there may be one is the time divided among the requests.
    if not full or not may_be_culprit(shares.throughout, shares.scale, whole):
        return split, []
    return split, _queue_culprits(wait, seen, shares)


def _queue_culprits(wait: tuple[int, int], seen: Survey, shares: StageShares) -> list[Culprit]:
    beside = [(start, end, slot) for slot in seen.beside for start, end, stage in slot.stays() if stage in RUNNING]
    times: dict[EngineSlot, int] = {}
    scale, whole = shares.scale, wait[1] - wait[0]
    if beside:
        found = divide(beside, [wait], len(seen.throughout))
        times, scale = found.scaled, found.scale
    # Those that ran all the wait have one share each.
    times.update(dict.fromkeys(seen.throughout, shares.throughout * scale // shares.scale))
    return culprits(times, scale, whole, "queue")


def _split_stalls(
    own: EngineSlot, others: list[EngineSlot], stalls: Stalls | None, *, full: bool
) -> tuple[StallSplit | None, list[Culprit]]:
    if stalls is None:
        return None, []
    if not stalls.intervals:
        return StallSplit(), []
    first, last = stalls.intervals[0][0], max(end for _, end in stalls.intervals)
    # Its own preemption comes off first: meanwhile no neighbour can hold it.
    away = [stay for stay in own.stays() if stay[2] == PREEMPTED]
    rest = [part for stall in stalls.intervals for part in without(stall, away)] if away else list(stalls.intervals)
    # Most have only decoded since then, so that comes first: their stays need not be read.
    prefills = [
        (start, end, other)
        for other in others
        if other.prefilled > first and other.began < last and other.stopped > first
        for start, end, stage in other.stays()
        if stage == "prefill" and start < last and end > first
    ]
    whole = sum(end - start for start, end in rest)
    beside, stallers = _beside_prefills(prefills, rest, full=full)
    return StallSplit(prefill=beside, preemption=stalls.time - whole, unexplained=whole - beside), stallers


def _beside_prefills(
    prefills: list[Piece[EngineSlot]], stalls: list[tuple[int, int]], *, full: bool
) -> tuple[int, list[Culprit]]:
    """Return how much of the stalls lies beside a prefill, and whose prefills took a fair part of that."""
    # Of so few, one has a fair part; of more, perhaps none has.
    if not full or len(prefills) > CULPRIT_SHARE:
        covered, largest = longest_share(prefills, stalls)
        # Rounded up: the share is not exact.
        if not full or not may_be_culprit(ceil(largest) + 1, 1, covered):
            return covered, []
    shares = divide(prefills, stalls)
    return shares.covered, culprits(shares.scaled, shares.scale, shares.covered, "stall")


def _mean(total: int, window: Window) -> float | None:
    """Return the mean number over a window; None for a window without length."""
    return total / (window[1] - window[0]) if window is not None and window[1] > window[0] else None
