"""One pass over the slots of an engine: what the others did while one request waited, prefilled and decoded.

This is the cost of the feature at the end of a request, so it is one loop over plain attributes, ordered by what is
common in a busy engine.  A request that ran all the while is one comparison and a count.  One that began or ended
meanwhile is compared with each window.  Only one that was preempted, or whose times are in doubt, is read stay by stay.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from otel_lifecycle._core.engine_slot import DECODE, NEVER, QUEUE, RUNNING, EngineSlot
from otel_lifecycle._core.overlap import Piece

Window: TypeAlias = "tuple[int, int] | None"
"""A stretch of time; None where one of its ends is not known."""

Stay: TypeAlias = "Piece[tuple[EngineSlot, str]]"


class Windows(NamedTuple):
    """The stretches of one request that others are compared with; ``first`` and ``last`` enclose all of them."""

    arrival: int | None
    wait: Window
    prefill: Window
    decode: Window
    first: int
    last: int


class Survey(NamedTuple):
    """What the others did.

    ``ahead``, ``running``: others that waited and ran at the arrival.  ``prefill``, ``decode``: nanoseconds that others
    ran in that window, added up.  ``beside``: stays of others that may overlap the wait; ``throughout``: others that
    were in one stage all the wait, and ``stages`` that stage of each.  ``unsure``: whether another one may have run at
    a time nobody knows.
    """

    ahead: int
    running: int
    prefill: int
    decode: int
    beside: list[Stay]
    throughout: list[EngineSlot]
    stages: list[str]
    unsure: bool


_NOTHING = (0, 0)


def survey(slots: list[EngineSlot], windows: Windows) -> Survey:
    """Look at the slots of all other requests, once."""
    first, last = windows.first, windows.last
    along = [slot for slot in slots if slot.steady and slot.began <= first and slot.stopped >= last]
    beside: list[Stay] = []
    stages: list[str] = []
    throughout = along
    wait_from, wait_to = windows.wait or _NOTHING
    if wait_from < wait_to:
        throughout, stages, beside = _beside(along, wait_from)
    many = len(along)
    running = many if windows.arrival is not None else 0
    prefill, decode = windows.prefill or _NOTHING, windows.decode or _NOTHING
    in_prefill, in_decode = many * (prefill[1] - prefill[0]), many * (decode[1] - decode[0])
    seen = Survey(0, running, in_prefill, in_decode, beside, throughout, stages, False)
    # The usual end in a busy engine: nobody came, went or was interrupted meanwhile.
    if many == len(slots):
        return seen
    # A set, because each of up to a thousand slots is looked up in it.
    known = set(along)
    return _add_partly([slot for slot in slots if slot not in known], windows, seen)


def _beside(along: list[EngineSlot], wait_from: int) -> tuple[list[EngineSlot], list[str], list[Stay]]:
    """Return those in one stage since the wait began, the stage of each, and the stays of the others.

    Another thread may have moved a request since it was found to run: only what one read of its view says is used.
    """
    # Most decode, which is one comparison.  A set, because each is read once.
    throughout = [slot for slot in along if slot.decoding <= wait_from]
    stages: list[str] = [DECODE] * len(throughout)
    beside: list[Stay] = []
    if len(throughout) < len(along):
        known = set(throughout)
        for slot in along:
            if slot in known:
                continue
            _, stage, since = slot.view
            if since is not None and since <= wait_from and stage in RUNNING:
                throughout.append(slot)
                stages.append(stage)
            else:
                beside += _stays(slot)
    return throughout, stages, beside


def _stays(slot: EngineSlot) -> list[Stay]:
    return [(start, end, (slot, stage)) for start, end, stage in slot.stays() if stage in RUNNING]


def _add_partly(slots: list[EngineSlot], windows: Windows, seen: Survey) -> Survey:
    """Add requests that began or ended meanwhile, or that were interrupted."""
    ahead, running, in_prefill, in_decode, beside, throughout, stages, unsure = seen
    # Earlier than every time: then nobody is found ahead of it or running.
    arrival = -NEVER if windows.arrival is None else windows.arrival
    wait_from, wait_to = windows.wait or _NOTHING
    (prefill_from, prefill_to), (decode_from, decode_to) = windows.prefill or _NOTHING, windows.decode or _NOTHING
    for slot in slots:
        if slot.steady:
            began, stopped = slot.began, slot.stopped
            # Strictly before: of two that arrive together, neither is ahead of the other.
            ahead += slot.queued_from < arrival < min(began, stopped)
            running += began <= arrival < stopped
            # The windows are often short, and most were not there in them.
            # Comparisons: calls of min and max are a tenth of what a busy engine costs at the end of a request.
            if began < prefill_to and stopped > prefill_from:
                in_prefill += stopped if stopped < prefill_to else prefill_to  # noqa: FURB136
                in_prefill -= began if began > prefill_from else prefill_from  # noqa: FURB136
            if began < decode_to and stopped > decode_from:
                in_decode += stopped if stopped < decode_to else decode_to  # noqa: FURB136
                in_decode -= began if began > decode_from else decode_from  # noqa: FURB136
            # An empty or unknown wait is (0, 0), which the last comparison excludes.
            if began < wait_to and stopped > wait_from < wait_to:
                beside += _stays(slot)
            continue
        ran = _stays(slot)
        running += any(start <= arrival < end for start, end, _ in ran)
        ahead += any(start < arrival < end for start, end, stage in slot.stays() if stage == QUEUE)
        in_prefill += sum(_overlap(start, end, windows.prefill) for start, end, _ in ran)
        in_decode += sum(_overlap(start, end, windows.decode) for start, end, _ in ran)
        # `divide` clips the stays to the wait, so they are not compared with it here.
        beside += ran
        unsure = unsure or any(start < windows.last and end > windows.first for start, end in slot.doubts())
    return Survey(ahead, running, in_prefill, in_decode, beside, throughout, stages, unsure)


def _overlap(start: int, end: int, window: Window) -> int:
    if window is None:
        return 0
    return max(0, min(end, window[1]) - max(start, window[0]))
