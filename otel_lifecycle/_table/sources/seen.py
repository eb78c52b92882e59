"""Which requests were counted already, in a fixed amount of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

CAPACITY: Final = 1_000_000
"""Ids of one generation; two are kept, so that the last one to two million requests are checked."""


class Seen:
    """A set of span ids that forgets the oldest half when it is full.

    The same export sent twice, or the same file given twice, is caught as long as at most :data:`CAPACITY` other
    requests lie between.  ``forgotten`` counts the ids that are no longer checked against.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._young: set[int] = set()
        self._old: set[int] = set()
        self.forgotten = 0

    def add(self, trace_id: str, span_id: str) -> bool:
        """Remember a span; return whether it is new."""
        # 64 bits instead of 48 characters: among a million requests, two share them once in 37 million files.
        key = hash((trace_id, span_id))
        if key in self._young or key in self._old:
            return False
        if len(self._young) >= self._capacity:
            self.forgotten += len(self._old)
            # Two generations instead of an ordered set: a swap costs nothing, and no order has to be kept.
            self._old, self._young = self._young, set()
        self._young.add(key)
        return True

    def add_all(self, trace_ids: Sequence[str], span_ids: Sequence[str]) -> list[bool]:
        """Remember some spans; return whether each is new."""
        keys = set(map(hash, zip(trace_ids, span_ids, strict=True)))
        known = len(keys) < len(span_ids) or not (self._young.isdisjoint(keys) and self._old.isdisjoint(keys))
        if known or len(self._young) + len(keys) > self._capacity:
            return list(map(self.add, trace_ids, span_ids))
        self._young |= keys
        return [True] * len(span_ids)
