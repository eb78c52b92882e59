"""How a stretch of time is divided among the stages of all requests that ran in it, without a look at each request.

How it works.  How many requests are in each stage is one integer, a *crowd*, with a field for each stage.  A request
that enters a stage adds one to a field, and one that leaves it takes one off.  So the changes of a stretch are sorted
and added up once, and each crowd is divided by how many it counts.  The arithmetic is exact, as in ``overlap``, which
divides the same time among the requests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from math import lcm
from operator import itemgetter, sub
from typing import Final, NamedTuple

from otel_lifecycle._core.overlap import Piece

_BITS: Final = 24
"""Bits of a field: no log holds so many requests."""

_FIELD: Final = (1 << _BITS) - 1

# The lowest field counts all of them, so decode needs none of its own, and the usual crowd is a small integer.
ONE_IN: Final = {"decode": 1, "prefill": 1 + (1 << _BITS), "preprocessing": 1 + (1 << 2 * _BITS)}
"""Stage -> a crowd of one request in it."""

_time, _change = itemgetter(0), itemgetter(1)


class StageShares(NamedTuple):
    """Time by stage, and of one request that ran in all of the stretch, each times ``scale``; idle time as it is."""

    preprocessing: int
    prefill: int
    decode: int
    throughout: int
    scale: int
    idle: int


def add_changes(stays: Iterable[Piece[str]], start: int, end: int, changes: list[tuple[int, int]]) -> int:
    """Append the changes of a crowd between two times by the stays of a request; return what it adds at the start."""
    before, last, at = 0, 0, None
    for began, stopped, stage in stays:
        if stopped > start and began < end and stage in ONE_IN and began < stopped:
            one = ONE_IN[stage]
            if began <= start:
                before += one
            elif began == at:
                # It goes from one stage to the next: one change instead of two.
                changes[-1] = (began, one - last)
            else:
                changes.append((began, one))
            if stopped < end:
                changes.append((stopped, -one))
                last, at = one, stopped
    return before


def divide_by_stage(before: int, changes: list[tuple[int, int]], start: int, end: int) -> StageShares:
    """Divide a stretch equally among the requests that run at each instant; return it by stage.

    ``before``: the crowd at its start, without what ``changes`` before it; they may be in any order.
    """
    ordered = sorted(changes)
    # A tuple of one time comes before all changes at that time.
    begin, finish = bisect_left(ordered, (start + 1,)), bisect_left(ordered, (end,))
    inside = ordered[begin:finish]
    times = [start, *map(_time, inside), end]
    crowds = list(accumulate(map(_change, inside), initial=before + sum(map(_change, ordered[:begin]))))
    # Between changes at one instant a crowd may even be negative.
    parts = [part for part in zip(map(sub, times[1:], times), crowds, strict=True) if part[0]]
    counts = {crowd & _FIELD for _, crowd in parts} - {0}
    scale = lcm(*counts)
    # `scale` is a multiple of every count that occurs, so these divisions are exact.
    each = {count: scale // count for count in counts}
    preprocessing = prefill = throughout = idle = 0
    for time, crowd in parts:
        count = crowd & _FIELD
        if not count:
            idle += time
            continue
        share = time * each[count]
        throughout += share
        if count != crowd:
            prefill += (crowd >> _BITS & _FIELD) * share
            # Seldom any: it would be a product of large integers for each part.
            early = crowd >> 2 * _BITS
            if early:
                preprocessing += early * share
    decode = (end - start - idle) * scale - prefill - preprocessing
    return StageShares(preprocessing, prefill, decode, throughout, scale, idle)
