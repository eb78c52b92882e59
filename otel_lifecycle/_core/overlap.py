"""Exact arithmetic on intervals: how a stretch of time is divided among the requests that ran in it.

How it works.  At each instant the time is divided equally among the ``n`` requests that run.  Over a stretch with
constant ``n`` each takes ``dt / n``, which is not a whole number of nanoseconds.  All sums are therefore kept over
one common denominator, the least common multiple of the ``n`` that occur, in integers of any size; they are rounded
once, when they leave (:func:`apportion`).  Floats would lose nanoseconds, and the parts would not add up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import lcm
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

FEW: Final = 4
"""Windows of which each looks at all pieces: fewer are not worth a look-up."""

Piece = tuple[int, int, Key]
"""An interval ``(start, end, key)``; it contains its start and not its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares(Generic[Key]):
    """Time divided among keys.

    ``scaled``: the time of each key, times ``scale``; ``throughout`` the same of one that ran in all of the window.
    ``covered`` and ``idle``: nanoseconds with at least one of them, and with none.
    """

    scaled: dict[Key, int]
    scale: int
    throughout: int
    covered: int
    idle: int


def clipped(pieces: Iterable[Piece[Key]], start: int, end: int) -> list[Piece[Key]]:
    """Return the parts of the pieces that lie between ``start`` and ``end``."""
    # Most pieces lie within; a comparison is cheaper than a call.
    return [
        (begin if begin > start else start, stop if stop < end else end, key)  # noqa: FURB136
        for begin, stop, key in pieces
        if begin < end and stop > start
    ]


def _within(pieces: Sequence[Piece[Key]], windows: Sequence[tuple[int, int]]) -> list[list[Piece[Key]]]:
    """Return the parts of the pieces that lie in each window."""
    if len(windows) < FEW or any(later[0] < earlier[1] for earlier, later in pairwise(windows)):
        return [clipped(pieces, start, end) for start, end in windows]
    # The windows follow one another: each piece is looked up among them, since most pieces lie in one or in none.
    ends = [end for _, end in windows]
    parts: list[list[Piece[Key]]] = [[] for _ in windows]
    for begin, stop, key in pieces:
        for place in range(bisect_right(ends, begin), len(windows)):
            start, end = windows[place]
            if start >= stop:
                break
            parts[place].append((max(begin, start), min(stop, end), key))
    return parts


def divide(pieces: Sequence[Piece[Key]], windows: Sequence[tuple[int, int]], throughout: int = 0) -> Shares[Key]:
    """Divide the windows equally among the pieces that cover each instant of them.

    The windows may overlap: an instant in two of them is divided twice.  Several pieces of one key add up.
    ``throughout``: so many more run all the time; they need no piece, since each gets the same.
    """
    windows = [window for window in windows if window[0] < window[1]]
    parts = _within(pieces, windows)
    whole = sum(end - start for start, end in windows)
    if not throughout and all(len(inside) < 2 for inside in parts):
        return _undisputed(parts, whole)
    stretches = [_stretch(inside, start, end, throughout) for inside, (start, end) in zip(parts, windows, strict=True)]
    scale = lcm(*(n for stretch in stretches for n in stretch.counts))
    scaled: dict[Key, int] = {}
    each = sum(stretch.add_to(scaled, scale) for stretch in stretches)
    covered = sum(stretch.covered for stretch in stretches)
    each = each if throughout else 0
    return Shares(scaled=scaled, scale=scale, throughout=each, covered=covered, idle=whole - covered)


def _undisputed(parts: Iterable[Iterable[Piece[Key]]], whole: int) -> Shares[Key]:
    """Return the shares where nobody ever runs beside another: the usual stall has one prefill beside it, or none."""
    scaled: dict[Key, int] = {}
    for inside in parts:
        for begin, stop, key in inside:
            scaled[key] = scaled.get(key, 0) + stop - begin
    covered = sum(scaled.values())
    return Shares(scaled=scaled, scale=1, throughout=0, covered=covered, idle=whole - covered)


def longest_share(pieces: Sequence[Piece[Key]], windows: Sequence[tuple[int, int]]) -> tuple[int, float]:
    """Return how much of the windows is covered, and the largest share of a key, to a nanosecond or so.

    The first is exact, as of :func:`divide`.  The second is not, for a third of its cost.
    """
    covered, shares = 0, dict[Key, float]()
    for (start, _), inside in zip(windows, _within(pieces, windows), strict=True):
        changes = sorted([(begin, 1) for begin, _, _ in inside] + [(stop, -1) for _, stop, _ in inside])
        passed: dict[int, float] = {}
        at, running, sofar = start, 0, 0.0
        for time, change in changes:
            if running and time > at:
                covered += time - at
                sofar += (time - at) / running
            passed[time] = sofar
            at = time
            running += change
        for begin, stop, key in inside:
            shares[key] = shares.get(key, 0.0) + passed[stop] - passed[begin]
    return covered, max(shares.values(), default=0.0)


class _Stretch(Generic[Key]):
    """One window, cut where the number of running pieces changes."""

    __slots__ = ("counts", "covered", "cuts", "pieces")

    def __init__(self, pieces: list[Piece[Key]], cuts: list[tuple[int, int]]) -> None:
        self.pieces = pieces
        # Each cut: where it begins, and how many run from there to the next one.
        self.cuts = cuts
        self.counts = {n for _, n in cuts if n}
        self.covered = sum(later[0] - cut[0] for cut, later in pairwise(cuts) if cut[1])

    def add_to(self, scaled: dict[Key, int], scale: int) -> int:
        """Add each piece's time, times ``scale``, to its key; return the time of one that ran all along."""
        # Running sums at the cuts: a piece then costs two look-ups, however many cuts it spans.
        passed: dict[int, int] = {}
        sofar = before = running = 0
        for at, n in self.cuts:
            if running:
                # `scale` is a multiple of every count that occurs, so this division is exact.
                sofar += (at - before) * (scale // running)
            passed[at] = sofar
            before, running = at, n
        for start, end, key in self.pieces:
            scaled[key] = scaled.get(key, 0) + passed[end] - passed[start]
        return sofar


def _stretch(inside: list[Piece[Key]], start: int, end: int, throughout: int) -> _Stretch[Key]:
    changes = {start: throughout, end: -throughout}
    for begin, stop, _ in inside:
        changes[begin] = changes.get(begin, 0) + 1
        changes[stop] = changes.get(stop, 0) - 1
    cuts, running = [], 0
    for at in sorted(changes):
        running += changes[at]
        cuts.append((at, running))
    return _Stretch(inside, cuts)


def without(window: tuple[int, int], pieces: Iterable[Piece[Key]]) -> list[tuple[int, int]]:
    """Return the parts of a window that no piece covers."""
    left, (at, end) = [], window
    for begin, stop, _ in sorted(clipped(pieces, *window), key=lambda piece: piece[:2]):
        if begin > at:
            left.append((at, begin))
        # Pieces may overlap, or lie inside one another.
        at = max(at, stop)
    if at < end:
        left.append((at, end))
    return left


def apportion(scaled: Mapping[Key, int], scale: int, whole: int) -> dict[Key, int]:
    """Round parts, each times ``scale``, to integers that add up to ``whole``.

    Each is rounded down, and the largest (the first of equals) takes what remains: a part that is zero stays zero.
    """
    parts = {key: part // scale for key, part in scaled.items()}
    if parts:
        parts[max(scaled, key=scaled.__getitem__)] += whole - sum(parts.values())
    return parts
