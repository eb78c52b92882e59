"""One pass over the slots of an engine: what the others did while one request waited, prefilled and decoded.

This is the cost of the feature at the end of a request, so it is one loop over plain attributes, ordered by what is
common in a busy engine.  A request that ran all the while is one comparison and a count.  One that began or ended
meanwhile is compared with each window.  Only one that was preempted, or whose times are in doubt, is read stay by stay.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from otel_lifecycle._core.crowd import ONE_IN, add_changes
from otel_lifecycle._core.engine_slot import NEVER, QUEUE, RUNNING, EngineSlot

Window: TypeAlias = "tuple[int, int] | None"
"""A stretch of time; None where one of its ends is not known."""


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
    ran in that window, added up.  ``throughout``: others that were in one stage all the wait; ``beside``: those that
    may have run in it otherwise.  ``before``: a crowd at the beginning of the wait, and its ``changes``, some of them
    before the wait or after it.
    ``unsure``: whether another one may have run at a time nobody knows.
    """

    ahead: int
    running: int
    prefill: int
    decode: int
    throughout: list[EngineSlot]
    beside: list[EngineSlot]
    before: int
    changes: list[tuple[int, int]]
    unsure: bool


_NOTHING = (0, 0)


def survey(slots: list[EngineSlot], windows: Windows) -> Survey:
    """Look at the slots of all other requests, once."""
    first, last = windows.first, windows.last
    along = [slot for slot in slots if slot.steady and slot.began <= first and slot.stopped >= last]
    many = len(along)
    running = many if windows.arrival is not None else 0
    prefill, decode = windows.prefill or _NOTHING, windows.decode or _NOTHING
    in_prefill, in_decode = many * (prefill[1] - prefill[0]), many * (decode[1] - decode[0])
    wait = windows.wait or _NOTHING
    throughout, beside, before, changes = _in_the_wait(along, wait) if wait[0] < wait[1] else (along, [], 0, [])
    seen = Survey(0, running, in_prefill, in_decode, throughout, beside, before, changes, False)
    # The usual end in a busy engine: nobody came, went or was interrupted meanwhile.
    if many == len(slots):
        return seen
    if along:
        # A set, because each of up to a thousand slots is looked up in it.
        known = set(along)
        slots = [slot for slot in slots if slot not in known]
    return _add_partly(slots, windows, seen)


def _in_the_wait(
    along: list[EngineSlot], wait: tuple[int, int]
) -> tuple[list[EngineSlot], list[EngineSlot], int, list[tuple[int, int]]]:
    """Return those in one stage since the wait began, the others, and the crowd of all with its changes.

    Another thread may have moved a request since it was found to run: only what one read of its view says is used.
    """
    wait_from = wait[0]
    # Most decode, which is one comparison.  A set, because each is read once.
    throughout = [slot for slot in along if slot.decoding <= wait_from]
    before = len(throughout) * ONE_IN["decode"]
    beside: list[EngineSlot] = []
    changes: list[tuple[int, int]] = []
    if len(throughout) < len(along):
        known = set(throughout)
        for slot in along:
            if slot in known:
                continue
            _, stage, since = slot.view
            if since is not None and since <= wait_from and stage in ONE_IN:
                throughout.append(slot)
                before += ONE_IN[stage]
            else:
                beside.append(slot)
                changes += slot.shifts
    return throughout, beside, before, changes


def _changes_of(slot: EngineSlot) -> list[tuple[int, int]]:
    """Return all changes of the crowd by a steady request that has ended; its end may not have been entered yet."""
    changes = list(slot.shifts)
    running = sum(change for _, change in changes)
    if running:
        changes.append((slot.stopped, -running))
    return changes


def _add_partly(slots: list[EngineSlot], windows: Windows, seen: Survey) -> Survey:
    """Add requests that began or ended meanwhile, or that were interrupted."""
    ahead, running, in_prefill, in_decode, throughout, beside, before, changes, unsure = seen
    # Earlier than every time: then nobody is found ahead of it or running.
    arrival = -NEVER if windows.arrival is None else windows.arrival
    wait_from, wait_to = windows.wait or _NOTHING
    (prefill_from, prefill_to), (decode_from, decode_to) = windows.prefill or _NOTHING, windows.decode or _NOTHING
    for slot in slots:
        if slot.steady:
            began, stopped = slot.began, slot.stopped
            if arrival < stopped:
                if began <= arrival:
                    running += 1
                # Strictly before: of two that arrive together, neither is ahead of the other.
                elif slot.queued_from < arrival:
                    ahead += 1
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
                beside.append(slot)
                changes += _changes_of(slot) if stopped < wait_to else slot.shifts
            continue
        stays = slot.stays()
        ran = [(start, end) for start, end, stage in stays if stage in RUNNING]
        running += any(start <= arrival < end for start, end in ran)
        ahead += any(start < arrival < end for start, end, stage in stays if stage == QUEUE)
        in_prefill += sum(_overlap(start, end, windows.prefill) for start, end in ran)
        in_decode += sum(_overlap(start, end, windows.decode) for start, end in ran)
        if wait_from < wait_to:
            beside.append(slot)
            before += add_changes(stays, wait_from, wait_to, changes)
        unsure = unsure or any(start < windows.last and end > windows.first for start, end in slot.doubts())
    return Survey(ahead, running, in_prefill, in_decode, throughout, beside, before, changes, unsure)


def _overlap(start: int, end: int, window: Window) -> int:
    if window is None:
        return 0
    return max(0, min(end, window[1]) - max(start, window[0]))
