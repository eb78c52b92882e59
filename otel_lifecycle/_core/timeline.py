"""One request's way through its lifecycle: the state machine, and what it keeps of the events.

How it works.  The live API, foreign spans and ``replay_request_events`` all move through :meth:`Timeline.apply`.
It is strict: an event that is illegal, or impossible in time or value, raises and changes nothing.  It reads no clock.

Times of two clocks may meet in one request (``remote``: an engine in another process).  Each clock is judged by itself.
Where a later boundary has an earlier time on the other clock, the two clocks are proven apart
(:meth:`Timeline.clocks_apart`), and no duration between them is given.  The proof is two running maxima, one per
clock, so that neither the number of events nor their order can exhaust it.

A live handle appends single tokens to ``tokens[0]`` by itself, without a lock and without a check.  What it appended is
checked when a time that somebody gave (``given``) needs it: see :meth:`Timeline._read_appended`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from otel_lifecycle._core.interruption import Interruption
from otel_lifecycle._core.lifecycle import (
    BOUNDARIES,
    NOT_ARRIVED,
    TERMINAL_EVENTS,
    TERMINAL_STATES,
    Shape,
    next_state,
    state_in,
)
from otel_lifecycle._core.tokens import ChoiceTokens, Log, Time, entries, entry, extremes, fold, joined, whole_log
from otel_lifecycle._core.values import check_choice, check_count, check_timestamp
from otel_lifecycle.errors import NonMonotonicTime

MAX_INTERRUPTIONS = 32
"""Interruptions kept one by one; beyond it only their number and total time.  Each one becomes a span of its own."""

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


class Timeline:
    """The state of one request and the times of its events.

    ``state`` and ``ended_in`` (the state a terminal event came in) are states of the table.  ``times`` maps the
    boundaries known so far to their time, ``remote`` names those that another clock gave.  ``tokens`` and
    ``remote_tokens`` hold a log for each choice; a live handle appends to ``tokens[0]`` by itself.  ``applied_at`` is
    the time that was kept of the last event, ``uncounted`` whether a chunk of unknown size has come.  ``assumed``: its
    owner counted a frame that does not say its size as one token.  ``misplaced``: tokens that lost their time because
    they were marked live before a time already given.  ``plain``: all its times are our own readings, in order, its
    tokens single ones of one choice, and it was never preempted.
    """

    __slots__ = (
        "_apart",
        "_checked",
        "_given",
        "_given_from",
        "_highest",
        "_latest",
        "_open",
        "applied_at",
        "assumed",
        "ended_in",
        "folded",
        "folded_remote",
        "interrupted",
        "interruptions",
        "misplaced",
        "output_at",
        "output_seen",
        "plain",
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
        self.plain = True
        self.ended_in: str | None = None
        self.interrupted: str | None = None
        self.times: dict[str, Time] = {}
        # Those that hardly any request needs are replaced, not changed: one empty value serves all the others.
        self.remote: frozenset[str] = frozenset()
        self.tokens: dict[int, Log] = {}
        self.remote_tokens: dict[int, Log] = {}
        self.folded: dict[int, ChoiceTokens] = {}
        self.folded_remote: dict[int, ChoiceTokens] = {}
        self.uncounted = self.assumed = self.output_seen = self._apart = False
        self.whole_output: int | None = 0
        self.output_at: Time | None = None
        self.preemptions: Mapping[str, int] = _NONE
        self.preempted: Mapping[str, Time | None] = _NONE
        self.preempted_across: frozenset[str] = frozenset()
        self.interruptions: tuple[Interruption, ...] = ()
        self.applied_at: Time | None = None
        self._open: Interruption | None = None
        # Both lists by clock: [ours, the other process's].
        self._latest: list[Time | None] = [None, None]
        self._highest: list[Time | None] = [None, None]
        # The latest time given for a local event, the entries of tokens[0] it came after, and those checked since.
        self._given: Time | None = None
        self.misplaced = self._given_from = self._checked = 0

    @property
    def ended(self) -> bool:
        """Whether a terminal event has come."""
        return self.state in TERMINAL_STATES

    def reshape(self, shape: Shape) -> bool:
        """Go on in another shape; False, and nothing changes, after a boundary that the two do not have in common."""
        state = state_in(shape, self.shape, self.state)
        if state is None:
            return False
        self.shape, self.state = shape, state
        return True

    @property
    def gaps_are_certain(self) -> bool:
        """Whether a gap between two single tokens is a sample already, whatever the end of the request says."""
        return not self.uncounted and not self.assumed

    def latest(self, remote: bool = False) -> Time | None:
        """Return the latest time that one of the two clocks has given."""
        latest = self._latest[remote]
        # What a live handle has appended since the last event.
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
        given: bool = False,
    ) -> None:
        """Move by one event.

        ``remote``: the time is another clock's.  ``given``: the time was not read at this call, so live tokens must
        be compared with it.

        Raises TransitionError or UnknownEvent (not legal in this state), InvalidTimestamp, NonMonotonicTime (before a
        time the same clock has given) or InvalidValue (count or choice), and then has changed nothing.
        """
        state = self.state
        # Every check comes before the first change, legality first: an illegal event is illegal whatever its time is.
        following = next_state(self.shape, state, event, self.interrupted, timestamp)
        timestamp = check_timestamp(timestamp, event, state)
        count = check_count(count, event, state, timestamp)
        choice = check_choice(choice, event, state, timestamp)
        # Nothing was produced: prefill ends with the first real token.
        if count == 0 and event in {"token", "first_token"}:
            return
        # Only if times are given, because it looks at each token.
        if not remote and (given or self._given is not None):
            self._read_appended()
        self._check_order(event, timestamp, remote)
        self.plain = False
        self._remember(event, timestamp, count, choice, remote)
        if given and not remote and timestamp is not None:
            self._given, self._given_from = timestamp, len(self.tokens.get(0, ()))
        self.applied_at = timestamp
        if following in TERMINAL_STATES:
            self.ended_in = state
        self.state = following

    def retrace(self, times: list[Time], log: Log | None) -> None:
        """Move by the first events of the course at once, each at a reading of our clock; ``log``: of the tokens."""
        course = self.shape.course[: len(times)]
        self.times = {step.key: time for step, time in zip(course, times, strict=True)}
        self.state, self.ended_in = course[-1].state, course[-2].state if course[-1].key == "terminal" else None
        self._latest[0] = self._highest[0] = self.applied_at = times[-1]
        if log is not None:
            self.tokens[0] = log

    def advance(self, event: str, now: Time) -> bool:
        """Move by one boundary or terminal event that our clock reads now; False where :meth:`apply` has to judge it.

        The same as ``apply`` for what nearly every live event is: legal, one single token at most, in order, without
        times that somebody gave and without a second clock.  It costs a third of it.
        """
        step = self.shape.steps[self.state].get(event)
        # By 0 and not by False, which the interpreter looks up twice as slowly.
        latest, tokens = self._latest[0], self.tokens
        log = tokens.get(0) if tokens else None
        if (
            step is None
            or not (self.plain or (self._given is None and self._open is None and self._highest[1] is None))
            or (latest is not None and now < latest)
            # The hot path may have appended a later reading, in another thread.
            or (log and (type(log[-1]) is tuple or log[-1] > now))
        ):
            return False
        key, following = step
        if key == "first_token":
            tokens.setdefault(0, []).append(now)
        elif key == "terminal":
            self.ended_in = self.state
        self.times[key] = self._latest[0] = self._highest[0] = self.applied_at = now
        self.state = following
        return True

    def takes(self, at: Time, single: bool) -> bool:
        """Return whether tokens at a time may be appended past :meth:`apply`, and be ready for them.

        False before a time that is known.  ``single``: one token of the first choice, which :meth:`latest` finds.
        """
        latest = self._latest[False]
        if latest is not None and at < latest:
            return False
        if not single:
            self.plain = False
            self._latest[False] = at
        return True

    def take_recorded(self, times: list[Time], logs: Mapping[int, Log]) -> bool:
        """Append tokens by another clock, ``times`` in order; False, and nothing is changed, before a time it gave."""
        if (latest := self._latest[True]) is not None and times[0] < latest:
            return False
        for choice, log in logs.items():
            self.remote_tokens.setdefault(choice, []).extend(log)
        self.plain, self._latest[True], self.applied_at = False, times[-1], times[-1]
        return True

    def _check_order(self, event: str, timestamp: Time | None, remote: bool) -> None:
        latest = self.latest(remote)
        if timestamp is not None and latest is not None and timestamp < latest:
            what = f"{event!r} at {timestamp!r} is before {latest!r}, the latest time already known"
            raise NonMonotonicTime(what, state=self.state, event=event, timestamp=timestamp)

    def _read_appended(self) -> None:
        """Check the tokens that a live handle has appended since the last reading.

        A token that lies before a time given earlier contradicts it, and neither can be trusted.  It loses its time, as
        a live boundary does; kept, it would be sorted to a place where it never was.  Racing threads may append out of
        order, so the latest of the new tokens is their maximum, not their last.
        """
        log = self.tokens.get(0, [])
        start = self._checked
        # The handle may append at the same time: what is beyond this slice is read the next time.
        new = log[start:]
        self._checked = start + len(new)
        latest = self._latest[False]
        for index, item in enumerate(new, start):
            if type(item) is tuple:
                continue
            if self._given is not None and index >= self._given_from and item < self._given:
                log[index] = (None, 1)
                self.misplaced += 1
            elif latest is None or item > latest:
                latest = item
        self._latest[False] = latest

    def check_appended(self) -> None:
        """Check the live tokens that no event has followed yet; called once the request has ended."""
        if self._given is not None:
            self._read_appended()

    def _remember(self, event: str, timestamp: Time | None, count: int | None, choice: int, remote: bool) -> None:
        if event in {"first_token", "token"}:
            logs = self.remote_tokens if remote else self.tokens
            logs.setdefault(choice, []).append(entry(timestamp, count))
            self.uncounted = self.uncounted or count is None
        elif event == "output":
            self.output_seen, self.whole_output, self.output_at = True, count, timestamp
        elif event == "preempt":
            self._interrupt(timestamp, remote)
        elif event == "resume":
            self._resume(timestamp, remote)
        key = BOUNDARIES.get(event) or ("terminal" if event in TERMINAL_EVENTS else None)
        if timestamp is None:
            # A request may end while it is preempted: that closes the preemption, even at an unknown time.
            if key == "terminal":
                self._resume(None, remote)
            return
        self._latest[remote] = timestamp
        if key is not None:
            self.times[key] = timestamp
            self._see(timestamp, remote)
            if remote:
                self.remote |= {key}
            if key == "terminal":
                self._resume(timestamp, remote)

    def _see(self, timestamp: Time | None, remote: bool) -> None:
        """Compare a boundary with the other clock, whose earlier times must not be later."""
        if timestamp is None:
            return
        other, own = self._highest[not remote], self._highest[remote]
        if other is not None and timestamp < other:
            self._apart = True
        if own is None or timestamp > own:
            self._highest[remote] = timestamp

    def witness(self, now: Time) -> None:
        """Note that everything the other clock has timed so far had happened by ``now`` on ours."""
        if (latest := self._latest[True]) is not None and latest > now:
            self._apart = True

    def _interrupt(self, timestamp: Time | None, remote: bool) -> None:
        self.interrupted = self.state
        self.preemptions = {**self.preemptions, self.state: self.preemptions.get(self.state, 0) + 1}
        self._open = Interruption(self.state, timestamp, remote)
        self._see(timestamp, remote)
        if len(self.interruptions) < MAX_INTERRUPTIONS:
            self.interruptions += (self._open,)

    def _resume(self, timestamp: Time | None, remote: bool) -> None:
        """Close the interruption that is open, if one is: at ``resume``, or when the request ends in it."""
        interruption, self._open = self._open, None
        if interruption is None:
            return
        interruption.end = timestamp
        self._see(timestamp, remote)
        # Two clocks bound it: its length counts unless they are known to differ.
        if interruption.remote != remote:
            interruption.across = True
            self.preempted_across |= {interruption.state}
        lasted, before = interruption.duration, self.preempted.get(interruption.state, 0)
        total = None if lasted is None or before is None else before + lasted
        self.preempted = {**self.preempted, interruption.state: total}

    def clocks_apart(self) -> bool:
        """Return whether a later event has an earlier time on the other clock: the two clocks do not agree."""
        return self._apart or self._tokens_apart()

    def _tokens_apart(self) -> bool:
        """Whether tokens of one clock lie before the first token, or after the end, of the other."""
        # The usual case, one clock only: the tokens need no check.
        if not self.remote and not self.remote_tokens and not self.folded_remote:
            return False
        first, last = self.times.get("first_token"), self.times.get("terminal")
        theirs = extremes(self.remote_tokens, self.folded_remote)
        for remote, times in ((False, extremes(self.tokens, self.folded)), (True, theirs)):
            if times and first is not None and ("first_token" in self.remote) != remote and min(times) < first:
                return True
            if times and last is not None and ("terminal" in self.remote) != remote and max(times) > last:
                return True
        return False

    def fold(self, choice: int, most: int, *, remote: bool = False) -> list[Time]:
        """Fold up to ``most`` entries of a choice's log, never the last; return their gaps."""
        logs, folded = (self.remote_tokens, self.folded_remote) if remote else (self.tokens, self.folded)
        log = logs[choice]
        hot = choice == 0 and not remote
        if hot:
            self.check_appended()
        before = folded.get(choice)
        folded[choice], gaps = fold(log, before, most)
        if hot:
            # The handle appends at the same time, so the length of the log does not say how many entries were removed.
            gone = folded[choice].entries - (before.entries if before else 0)
            self._checked = max(0, self._checked - gone)
            self._given_from = max(0, self._given_from - gone)
        return gaps

    def absorb(self, part: Timeline, choice: int, led: bool) -> None:
        """Take over the tokens of a part as those of one choice; ``led``: its first one is the first of that log."""
        self.plain = False
        for own, logs in ((self.tokens, part.tokens), (self.remote_tokens, part.remote_tokens)):
            for log in logs.values():
                own.setdefault(choice, []).extend(log)
        del self.tokens.get(choice, [])[:led]
        for kept, gone in ((self.folded, part.folded), (self.folded_remote, part.folded_remote)):
            for tokens in gone.values():
                kept[choice] = joined(kept[choice], tokens, True) if choice in kept else tokens
        self.uncounted, self.assumed = self.uncounted or part.uncounted, self.assumed or part.assumed
        self.output_seen |= part.output_seen
        if self.whole_output is not None:
            self.whole_output = None if part.whole_output is None else self.whole_output + part.whole_output

    def token_marks(self) -> int:
        """Return how many entries all the logs have had, those that are folded included."""
        return entries(self.tokens, self.folded) + entries(self.remote_tokens, self.folded_remote)

    def choices(self, apart: bool = False) -> Iterator[tuple[int, ChoiceTokens]]:
        """Yield every choice that has output, with that output; ``apart``: as :meth:`clocks_apart` says."""
        # Sorted by index, so that a report does not depend on which choice had output first.
        for choice in sorted(self.tokens.keys() | self.remote_tokens.keys()):
            here = whole_log(self.tokens.get(choice), self.folded.get(choice))
            there = whole_log(self.remote_tokens.get(choice), self.folded_remote.get(choice))
            if here is not None and there is not None:
                yield choice, joined(here, there, not apart)
            elif (only := here or there) is not None:
                yield choice, only
