"""One request's way through its lifecycle: the state machine, and what is remembered of its events.

The live API, foreign spans and ``replay_request_events`` all move through :meth:`Timeline.apply`.  It is strict: an
event that is illegal, or impossible in time or value, raises and changes nothing.  It reads no clock.  Times of two
clocks may meet in one request (``remote``: an engine in another process); each clock is judged by itself, and
:meth:`Timeline.clocks_apart` says whether together they are proven to disagree.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from otel_lifecycle._core.lifecycle import (
    BOUNDARIES,
    NOT_ARRIVED,
    TERMINAL_EVENTS,
    TERMINAL_STATES,
    Shape,
    next_state,
)
from otel_lifecycle._core.tokens import Choice, Log, Time, choice_stats, entry, joined, known_times, resumed
from otel_lifecycle._core.values import check_choice, check_count, check_timestamp
from otel_lifecycle.errors import NonMonotonicTime

MAX_INTERRUPTIONS = 32
"""Interruptions kept one by one; beyond it only their number and total time."""


class Interruption:
    """A time in which a state was preempted; ``start`` or ``end`` None where unknown."""

    __slots__ = ("across", "end", "remote", "start", "state")

    def __init__(self, state: str, start: Time | None, remote: bool) -> None:
        self.state = state
        self.start = start
        self.end: Time | None = None
        self.remote = remote
        self.across = False

    @property
    def duration(self) -> Time | None:
        """How long it lasted; None where either end is unknown."""
        return None if self.start is None or self.end is None else self.end - self.start


class Timeline:
    """The state of one request and the times of its events.

    ``state`` and ``ended_in`` (the state a terminal event came in) are states of the table.  ``times`` maps the
    boundaries known so far to their time, ``remote`` names those of them that another clock gave.  ``tokens`` and
    ``remote_tokens`` hold a log for each choice; a live handle appends to ``tokens[0]`` by itself.  ``applied_at`` is
    the time that was kept of the last event, ``uncounted`` whether a chunk of unknown size has come.
    """

    __slots__ = (
        "_latest",
        "_open",
        "applied_at",
        "ended_in",
        "folded",
        "folded_remote",
        "interrupted",
        "interruptions",
        "order",
        "output_seen",
        "preempted",
        "preempted_across",
        "preemptions",
        "remote",
        "remote_tokens",
        "shape",
        "state",
        "times",
        "tokens",
        "uncounted",
        "whole_output",
    )

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.state = NOT_ARRIVED
        self.ended_in: str | None = None
        self.interrupted: str | None = None
        self.times: dict[str, Time] = {}
        self.remote: set[str] = set()
        self.order: list[tuple[Time, bool]] = []
        self.tokens: dict[int, Log] = {}
        self.remote_tokens: dict[int, Log] = {}
        self.folded: dict[int, Choice] = {}
        self.folded_remote: dict[int, Choice] = {}
        self.uncounted = False
        self.output_seen = False
        self.whole_output: int | None = 0
        self.preemptions: Counter[str] = Counter()
        self.preempted: dict[str, Time | None] = {}
        self.preempted_across: set[str] = set()
        self.interruptions: list[Interruption] = []
        self._open: Interruption | None = None
        self.applied_at: Time | None = None
        self._latest: list[Time | None] = [None, None]

    @property
    def ended(self) -> bool:
        """Whether a terminal event has come."""
        return self.state in TERMINAL_STATES

    def latest(self, remote: bool = False) -> Time | None:
        """Return the latest time that one of the two clocks has given."""
        latest = self._latest[remote]
        # What a live handle has appended by itself since the last event.
        log = None if remote else self.tokens.get(0)
        if log and type(log[-1]) is not tuple and (latest is None or log[-1] > latest):
            return log[-1]
        return latest

    def apply(
        self,
        event: str,
        timestamp: Time | None,
        count: int | None = 1,
        choice: int = 0,
        *,
        remote: bool = False,
    ) -> None:
        """Move by one event.

        Raises TransitionError or UnknownEvent (not legal in this state), InvalidTimestamp, NonMonotonicTime (before a
        time the same clock has given) or InvalidValue (count or choice), and then has changed nothing.
        """
        state = self.state
        following = next_state(self.shape, state, event, self.interrupted, timestamp)
        timestamp = check_timestamp(timestamp, event, state)
        count = check_count(count, event, state, timestamp)
        choice = check_choice(choice, event, state, timestamp)
        if count == 0 and event in {"token", "first_token"}:
            return
        self._check_order(event, timestamp, remote)
        self._remember(event, timestamp, count, choice, remote)
        self.applied_at = timestamp
        if following in TERMINAL_STATES:
            self.ended_in = state
        self.state = following

    def _check_order(self, event: str, timestamp: Time | None, remote: bool) -> None:
        latest = self.latest(remote)
        if timestamp is not None and latest is not None and timestamp < latest:
            raise NonMonotonicTime(
                f"{event!r} at {timestamp!r} is before {latest!r}, the latest time already known",
                state=self.state,
                event=event,
                timestamp=timestamp,
            )

    def _remember(self, event: str, timestamp: Time | None, count: int | None, choice: int, remote: bool) -> None:
        if event in {"first_token", "token"}:
            logs = self.remote_tokens if remote else self.tokens
            logs.setdefault(choice, []).append(entry(timestamp, count))
            self.uncounted = self.uncounted or count is None
        elif event == "output":
            self.output_seen, self.whole_output = True, count
        elif event == "preempt":
            self._interrupt(timestamp, remote)
        elif event == "resume":
            self._resume(timestamp, remote)
        key = BOUNDARIES.get(event) or ("terminal" if event in TERMINAL_EVENTS else None)
        if timestamp is None:
            if key == "terminal":
                self._resume(None, remote)
            return
        self._latest[remote] = timestamp
        if key is not None:
            self.times[key] = timestamp
            self._see(timestamp, remote)
            if remote:
                self.remote.add(key)
            if key == "terminal":
                self._resume(timestamp, remote)

    def _see(self, timestamp: Time | None, remote: bool) -> None:
        """Keep the order in which the two clocks' times came, for :meth:`clocks_apart`; bounded like all else."""
        if timestamp is not None and len(self.order) < 4 * MAX_INTERRUPTIONS:
            self.order.append((timestamp, remote))

    def witness(self, now: Time) -> None:
        """Note that everything the other clock has timed so far had happened by ``now`` on ours."""
        latest = self._latest[True]
        if latest is not None and latest > now:
            self._see(latest, True)
            self._see(now, False)

    def _interrupt(self, timestamp: Time | None, remote: bool) -> None:
        self.interrupted = self.state
        self.preemptions[self.state] += 1
        self._open = Interruption(self.state, timestamp, remote)
        self._see(timestamp, remote)
        if len(self.interruptions) < MAX_INTERRUPTIONS:
            self.interruptions.append(self._open)

    def _resume(self, timestamp: Time | None, remote: bool) -> None:
        """Close the interruption that is open, if one is: at ``resume``, or when the request ends in it."""
        interruption, self._open = self._open, None
        if interruption is None:
            return
        interruption.end = timestamp
        self._see(timestamp, remote)
        if interruption.remote != remote:
            interruption.across = True
            self.preempted_across.add(interruption.state)
        lasted, before = interruption.duration, self.preempted.get(interruption.state, 0)
        self.preempted[interruption.state] = None if lasted is None or before is None else before + lasted

    def clocks_apart(self) -> bool:
        """Return whether a later event has an earlier time on the other clock: the two clocks do not agree."""
        if not self.remote_tokens and not any(remote for _, remote in self.order):
            return False
        highest: list[Time] = [-math.inf, -math.inf]
        for time, remote in self.order:
            if time < highest[not remote]:
                return True
            highest[remote] = max(highest[remote], time)
        return self._tokens_apart()

    def _tokens_apart(self) -> bool:
        """Whether tokens of one clock lie before the first token, or after the end, of the other."""
        first, last = self.times.get("first_token"), self.times.get("terminal")
        for logs, remote in ((self.tokens, False), (self.remote_tokens, True)):
            times = [time for log in logs.values() for time in known_times(log)]
            if times and first is not None and ("first_token" in self.remote) != remote and min(times) < first:
                return True
            if times and last is not None and ("terminal" in self.remote) != remote and max(times) > last:
                return True
        return False

    def token_marks(self) -> int:
        """Return how many entries all the logs have had, those that are folded included."""
        entries = sum(map(len, self.tokens.values())) + sum(map(len, self.remote_tokens.values()))
        for folded in (self.folded, self.folded_remote):
            entries += sum(choice.entries for choice in folded.values())
        return entries

    def choices(self, apart: bool = False) -> Iterator[tuple[int, Choice]]:
        """Yield every choice that put out tokens, with what it put out; ``apart``: as :meth:`clocks_apart` says."""
        for choice in sorted(self.tokens.keys() | self.remote_tokens.keys()):
            here = _whole_log(self.tokens.get(choice), self.folded.get(choice))
            there = _whole_log(self.remote_tokens.get(choice), self.folded_remote.get(choice))
            if here is not None and there is not None:
                yield choice, joined(here, there, not apart)
            elif (only := here or there) is not None:
                yield choice, only


def _whole_log(log: Log | None, before: Choice | None) -> Choice | None:
    """Reduce a log together with the beginning that was folded; None of no token."""
    if not log:
        return before
    stats = choice_stats(log)
    return stats if before is None else resumed(before, stats)
