"""Stalls of one request: gaps between its tokens that are much longer than its usual gap.

A gap is a stall if it is longer than both twice the usual gap and the usual gap plus 5 ms.  The stall is the gap
without its first part, which the request would have taken anyway: it begins one usual gap after the last token.  The
usual gap is the median, so that stalls of less than half of the gaps do not move it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, count, pairwise, repeat
from operator import gt, sub
from typing import Any, Final

from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.tokens import Time

# With fewer, a few slow tokens are the median themselves.
MIN_GAPS: Final = 8
"""Gaps a request needs before one can be called unusual."""

STALL_FACTOR: Final = 2
STALL_MARGIN_NS: Final = 5_000_000
"""At 2 ms a token, one late thread switch doubles a gap; the margin keeps the scheduler's noise out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """The stalls of one request in nanoseconds: ``(start, end)`` in order, each without its usual gap."""

    intervals: tuple[tuple[int, int], ...] = ()

    @property
    def time(self) -> int:
        """The stall time: the sum of the intervals."""
        return sum(end - start for start, end in self.intervals)

    @property
    def longest(self) -> int | None:
        """The longest interval; None without one."""
        return max((end - start for start, end in self.intervals), default=None)


NO_STALLS: Final = Stalls()


def usual_gap(gaps: Sequence[Time]) -> Time | None:
    """Return the median of sorted gaps, the lower one of two; None for fewer than :data:`MIN_GAPS`.

    A gap that occurred, not a mean of two: integers stay integers.
    """
    return gaps[(len(gaps) - 1) // 2] if len(gaps) >= MIN_GAPS else None


def find_stalls(timeline: Timeline, gaps: Sequence[int]) -> Stalls | None:
    """Return the stalls of a request; None where too few gaps are known to claim that there are none.

    ``gaps``: every inter-token gap of the request, sorted, nanoseconds.  Costs nothing for a request without a stall,
    one pass over the tokens otherwise.
    """
    usual = usual_gap(gaps)
    # A folded beginning has lost the places of its gaps: what is left would tell of a part of the stream only.
    if usual is None or timeline.folded or timeline.folded_remote:
        return None
    if gaps[-1] <= limit(usual):
        return NO_STALLS
    return stalls_of(long_gaps(timeline, limit(usual)), usual)


def find_stalls_in(log: Sequence[int], gaps: Sequence[int]) -> Stalls | None:
    """Return the same of a single log of bare times, whose sorted gaps these are."""
    usual = usual_gap(gaps)
    if usual is None:
        return None
    return stalls_of(_gaps_above(log, limit(usual)), usual) if gaps[-1] > limit(usual) else NO_STALLS


def limit(usual: int) -> int:
    """Return the longest gap that is not a stall yet."""
    return max(STALL_FACTOR * usual, usual + STALL_MARGIN_NS)


def stalls_of(gaps: Iterable[tuple[int, int]], usual: int) -> Stalls:
    """Return the stalls among gaps given as ``(start, end)``."""
    above = limit(usual)
    return Stalls(intervals=tuple(sorted((start + usual, end) for start, end in gaps if end - start > above)))


def long_gaps(timeline: Timeline, above: Time) -> list[tuple[Time, Time]]:
    """Return every gap longer than ``above`` between neighbouring single tokens of one choice, as ``(start, end)``."""
    logs = [log for logs in (timeline.tokens, timeline.remote_tokens) for log in logs.values()]
    return [gap for log in logs for gap in _long_gaps(log, above)]


def _long_gaps(log: Sequence[Any], above: Time) -> list[tuple[Time, Time]]:
    try:
        # A log with anything but bare times leaves by TypeError, as in `choice_stats`.
        return _gaps_above(log, above)
    except TypeError:
        # Chunks or unknown times among them: only bare neighbours bound a gap.
        bare = type(None), tuple
        return [
            (earlier, later)
            for earlier, later in pairwise(log)
            if not isinstance(earlier, bare) and not isinstance(later, bare) and later - earlier > above
        ]


def _gaps_above(log: Sequence[Any], above: Time) -> list[tuple[Time, Time]]:
    # Live marks of racing threads may be out of order; where they are not, to sort them is one quick pass.
    log = sorted(log)
    later = iter(log)
    next(later, None)
    # At C speed: a look at each gap costs more than all the rest of a request of 16,000 tokens.
    places = compress(count(), map(gt, map(sub, later, log), repeat(above)))
    return [(log[place], log[place + 1]) for place in places]
