"""Keeping the token times of an endless stream bounded.

How it works.  A sweep folds the older part of a long log into its summary and returns the gaps, which go into the
histogram at once.  The newest entry stays, so that no gap between two folds is lost.
"""

from __future__ import annotations

import sys
from typing import Final

from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.tokens import Log

FOLD_SLICE: Final = 4096
"""Entries that a fold on a serving thread takes at most; a longer one would be felt."""

FOLD_ABOVE: Final = 16_384
"""Token times a request holds before a sweep folds them."""


def fold_logs(timeline: Timeline, thorough: bool) -> list[int]:
    """Fold the logs that have grown long; return their gaps.

    A collection is ``thorough``.  On a serving thread a fold waits for four times the length and is a slice: long
    streams are folded by collections, and stay bounded where there are none.
    """
    above, most = (FOLD_ABOVE, sys.maxsize) if thorough else (4 * FOLD_ABOVE, FOLD_SLICE)
    gaps: list[int] = []
    for logs, remote in ((timeline.tokens, False), (timeline.remote_tokens, True)):
        # The choices of a request share one limit; a limit each would let n of them hold n times as much.
        if sum(map(len, logs.values())) > above:
            gaps += _fold(timeline, logs, most, remote=remote)
    return gaps


def _fold(timeline: Timeline, logs: dict[int, Log], most: int, *, remote: bool) -> list[int]:
    gaps: list[int] = []
    for choice, log in logs.items():
        if len(log) > 1 and most > 0:
            most -= len(log) - 1
            gaps += timeline.fold(choice, len(log) - 1 + min(0, most), remote=remote)
    return gaps
