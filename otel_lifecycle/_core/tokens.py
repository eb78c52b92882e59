"""The output tokens of one request, by choice.

How it works.  The log of a choice is a list in order of arrival.  A single token at a known time is that time, a bare
number, so that the hot path is one append.  Anything else is a pair ``(time or None, count or None)``.  Logs are
reduced to a :class:`ChoiceTokens` when the request ends, or in part while it runs (:func:`fold`), so that the memory of
an endless stream stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import sub
from typing import Any, Final, TypeAlias

Time: TypeAlias = Any
"""An instant or a duration in the caller's unit: int stays int, float stays float."""

Entry: TypeAlias = Any
"""A bare time (one token), or a pair of time or None and count or None."""

Log: TypeAlias = list[Entry]

MAX_TOKEN_TIMES: Final = 3 * 2**16
"""Token times that a report lists and a span carries; further ones are counted.

One event may claim 65,536 tokens, so a few events could fill the memory with repeated times.  At four bytes each, in
base64, this many fill one mebibyte of attribute.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceTokens:
    """The tokens of one choice.

    ``first`` and ``last``: time of its first and last token, None if unknown.  ``tokens``: how many, None if unknown.
    ``gaps``: time between neighbours that both are single tokens at known times; only these are ITL samples.
    ``longest_folded``: the longest gap in the beginning of an endless stream that is no longer held (:func:`fold`).
    ``entries``: how many entries of the log that beginning had.
    """

    first: Time | None = None
    last: Time | None = None
    tokens: int | None = 0
    gaps: list[Time] = field(default_factory=list)
    longest_folded: Time | None = None
    entries: int = 0

    @property
    def longest_gap(self) -> Time | None:
        """The longest gap, those of a folded beginning included; None where there is none."""
        longest = max(self.gaps, default=None)
        known = [gap for gap in (longest, self.longest_folded) if gap is not None]
        return max(known, default=None)

    @property
    def span(self) -> Time | None:
        """From the first to the last token; None where either is unknown."""
        return None if self.first is None or self.last is None else self.last - self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTimes:
    """The time of each token in order, None where unknown; ``dropped``: tokens beyond :data:`MAX_TOKEN_TIMES`."""

    times: list[Time | None]
    dropped: int = 0


def entry(time: Time | None, count: int | None) -> Entry:
    """Return how ``count`` tokens at ``time`` are kept."""
    return time if count == 1 and time is not None else (time, count)


def choice_stats(log: Sequence[Entry]) -> ChoiceTokens:
    """Reduce a log.  Live marks of racing threads may be out of order in it; they are sorted."""
    if not log:
        return ChoiceTokens()
    # Nearly every log holds bare times only.  Subtracting them all at C speed, and leaving on the TypeError that a
    # pair causes, costs a third of looking at each entry first.
    try:
        gaps = list(map(sub, log[1:], log))
    except TypeError:
        return _mixed_stats(log)
    # In a log of one entry nothing was subtracted, so a pair has not shown yet.
    if type(log[0]) is tuple:
        return _mixed_stats(log)
    if gaps and min(gaps) < 0:
        log = sorted(log)
        gaps = list(map(sub, log[1:], log))
    return ChoiceTokens(first=log[0], last=log[-1], tokens=len(log), gaps=gaps)


def _mixed_stats(log: Sequence[Entry]) -> ChoiceTokens:
    pairs = _in_order([item if type(item) is tuple else (item, 1) for item in log])
    counts = [count for _, count in pairs]
    gaps = [
        later - earlier
        for (earlier, before), (later, after) in pairwise(pairs)
        if before == 1 and after == 1 and earlier is not None and later is not None
    ]
    return ChoiceTokens(first=pairs[0][0], last=pairs[-1][0], tokens=total(counts), gaps=gaps)


def _in_order(pairs: list[tuple[Time | None, int | None]]) -> list[tuple[Time | None, int | None]]:
    known = [time for time, _ in pairs if time is not None]
    if all(earlier <= later for earlier, later in pairwise(known)):
        return pairs
    # A token at an unknown time keeps its place behind the one that came before it.
    keys, latest = [], known[0]
    for time, _ in pairs:
        latest = latest if time is None else time
        keys.append(latest)
    return [pair for _, pair in sorted(zip(keys, pairs, strict=True), key=lambda item: item[0])]


def fold(log: Log, before: ChoiceTokens | None, most: int) -> tuple[ChoiceTokens, list[Time]]:
    """Take the first entries off a log, up to ``most`` and never the last; return their summary and their gaps.

    ``before`` is the summary of earlier folds of the log.  The entry after the fold stays, so that no gap is lost
    between two folds.  Appending to the log goes on meanwhile: only a slice is read, and only that slice is deleted.
    """
    upto = min(most, len(log) - 1)
    # One entry more than is removed: the gap across the cut belongs to this fold.
    whole = choice_stats(log[: upto + 1])
    head = choice_stats(log[:upto])
    del log[:upto]
    longest = ChoiceTokens(gaps=whole.gaps, longest_folded=before.longest_folded if before else None).longest_gap
    folded = ChoiceTokens(
        first=head.first if before is None else before.first,
        last=head.last,
        tokens=total((before.tokens if before else 0, head.tokens)),
        entries=upto + (before.entries if before else 0),
        longest_folded=longest,
    )
    return folded, whole.gaps


def resumed(before: ChoiceTokens, rest: ChoiceTokens) -> ChoiceTokens:
    """Return a folded beginning and what followed it as one."""
    return ChoiceTokens(
        first=before.first,
        last=rest.last,
        tokens=total((before.tokens, rest.tokens)),
        gaps=rest.gaps,
        longest_folded=before.longest_folded,
        entries=before.entries,
    )


def joined(one: ChoiceTokens, other: ChoiceTokens, comparable: bool) -> ChoiceTokens:
    """Return the tokens that two clocks saw of the same choice as one; ends are None unless the clocks agree."""
    ends: list[Any] = [time for choice in (one, other) for time in (choice.first, choice.last)]
    known = comparable and None not in ends
    return ChoiceTokens(
        first=min(ends) if known else None,
        last=max(ends) if known else None,
        tokens=total((one.tokens, other.tokens)),
        gaps=one.gaps + other.gaps,
        longest_folded=one.longest_folded,
    )


def total(counts: Iterable[int | None]) -> int | None:
    """Add counts up; None where one is unknown."""
    known = 0
    for count in counts:
        if count is None:
            return None
        known += count
    return known


def known_times(log: Sequence[Entry]) -> list[Time]:
    """Return the times of a log's entries that are known, each once."""
    times = (item[0] if type(item) is tuple else item for item in log)
    return [time for time in times if time is not None]


def merged_times(logs: Iterable[Sequence[Entry]], most: int = MAX_TOKEN_TIMES) -> TokenTimes:
    """Return the time of every token of all choices in order; a chunk's time stands once for each of its tokens.

    A chunk of unknown size stands once.  Times beyond ``most`` are counted, never built: entries are sorted before
    chunks are expanded.
    """
    keyed: list[tuple[Time, Time | None, int]] = []
    for log in logs:
        latest: Time = float("-inf")
        for item in log:
            time, count = item if type(item) is tuple else (item, 1)
            # A token at an unknown time sorts behind the one before it in its own log.
            latest = latest if time is None else time
            keyed.append((latest, time, 1 if count is None else count))
    keyed.sort(key=lambda item: item[0])
    times: list[Time | None] = []
    dropped = 0
    for _, time, count in keyed:
        listed = min(count, most - len(times))
        times.extend([time] * listed)
        dropped += count - listed
    return TokenTimes(times=times, dropped=dropped)


def extremes(logs: dict[int, Log], folded: dict[int, ChoiceTokens]) -> list[Time]:
    """Return the known times of one clock's tokens; of a folded beginning only its first and last."""
    times = [time for log in logs.values() for time in known_times(log)]
    ends = [time for choice in folded.values() for time in (choice.first, choice.last)]
    return times + [time for time in ends if time is not None]


def entries(logs: dict[int, Log], folded: dict[int, ChoiceTokens]) -> int:
    """Return how many entries the logs of one clock have had, those that are folded included."""
    return sum(map(len, logs.values())) + sum(one.entries for one in folded.values())


def whole_log(log: Log | None, before: ChoiceTokens | None) -> ChoiceTokens | None:
    """Reduce a log together with the beginning that was folded; None without a token."""
    if not log:
        return before
    stats = choice_stats(log)
    return stats if before is None else resumed(before, stats)
