"""The lenient side of the timeline: a fault becomes a violation, and the request goes on.

How it works.  An illegal event is not applied.  A legal event whose time is impossible moves the state and loses its
time; one whose count is impossible moves the state with an unknown count.  The live API and foreign spans both pass
through here.

The checker calls nobody back.  A callback bound to its owner would make every request a reference cycle, which stays in
memory until the cyclic collector runs.  Violations wait in the checker until its owner takes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from otel_lifecycle._core.outputs import OUTPUT_EVENTS, OutputAmounts, read_amount
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.tokens import Time
from otel_lifecycle._core.values import check_choice, check_count
from otel_lifecycle.errors import (
    ForeignClock,
    InvalidTimestamp,
    InvalidValue,
    LifecycleError,
    MissingTerminal,
    NonMonotonicTime,
)
from otel_lifecycle.semconv import ViolationKind

MAX_WAITING: Final = 256
"""Violations that wait to be taken; beyond it only their count.  A span holds 128 events, each with one or two."""

_NONE: Final[Mapping[ViolationKind, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Violation:
    """One fault: its kind, the state it came in, and the event."""

    kind: ViolationKind
    state: str | None
    event: str | None


class Checker:
    """A timeline that does not raise.

    ``counts`` has the number of violations by kind, exact.  With ``strict`` the error is raised instead, and nothing
    has changed.  ``amounts``: how much the outputs are, where they are not tokens.
    """

    __slots__ = ("_waiting", "amounts", "counts", "strict", "timeline")

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        # Both are replaced, not changed: hardly any request needs one of its own.
        self.counts: Mapping[ViolationKind, int] = _NONE
        # Set by the owner once a processor has taken the request; before that nobody can have asked for strictness.
        self.strict = False
        self.amounts: OutputAmounts | None = None
        self._waiting: tuple[Violation, ...] = ()

    def violate(self, error: LifecycleError) -> None:
        """Count a fault; raise it where the checker is strict."""
        if self.strict:
            raise error
        self.count(error)

    def count(self, error: LifecycleError) -> None:
        """Count a fault where no call of the server could take an exception."""
        self.counts = {**self.counts, error.kind: self.counts.get(error.kind, 0) + 1}
        # The counts stay exact; only the single violations, which become span events, are bounded.
        if len(self._waiting) < MAX_WAITING:
            self._waiting += (Violation(error.kind, error.state, error.event),)

    def take_violations(self) -> tuple[Violation, ...]:
        """Hand over the violations since the last call, in order."""
        taken, self._waiting = self._waiting, ()
        return taken

    def apply(
        self,
        event: str,
        timestamp: Time | None,
        count: int | None = 1,
        choice: int = 0,
        *,
        remote: bool = False,
        given: bool = False,
    ) -> bool:
        """Apply an event as far as it can be applied; return whether it was legal.

        The arguments are those of :meth:`Timeline.apply`.
        """
        try:
            self.timeline.apply(event, timestamp, count, choice, remote=remote, given=given)
        except (InvalidTimestamp, NonMonotonicTime) as error:
            self.violate(error)
            # This cannot loop: an unknown time is never refused.
            return self.apply(event, None, count, choice, remote=remote, given=given)
        except InvalidValue as error:
            self.violate(error)
            # Both are repaired at once, so that the second attempt cannot fail on the other one.
            count, choice = _count_or_unknown(count, event), _choice_or_first(choice, event)
            return self.apply(event, timestamp, count, choice, remote=remote, given=given)
        except LifecycleError as error:
            self.violate(error)
            return False
        return True

    def count_amounts(self) -> None:
        """Take outputs from now on as amounts of a unit, not as tokens."""
        if self.amounts is None:
            self.amounts = OutputAmounts()

    def apply_output(
        self,
        event: str,
        timestamp: Time | None,
        count: float | None = 1,
        choice: int = 0,
        *,
        remote: bool = False,
        given: bool = False,
    ) -> bool:
        """Apply an event of a request whose outputs are not tokens: ``count`` is how much one is, None if unknown."""
        if event not in OUTPUT_EVENTS or event not in self.timeline.shape.table[self.timeline.state]:
            return self.apply(event, timestamp, 1, choice, remote=remote, given=given)
        amount = self._amount_of(event, count)
        marks = 0 if amount == 0 else 1
        legal = self.apply(event, timestamp, marks, choice, remote=remote, given=given)
        # A mark of 1 needs no entry: it is counted as a mark.
        if legal and marks and amount != 1 and self.amounts is not None:
            self.amounts.add(amount)
        return legal

    def _amount_of(self, event: str, count: object) -> float | None:
        try:
            return read_amount(count, event, self.timeline.state)
        except InvalidValue as error:
            self.violate(error)
            return None

    def judge_clocks(self) -> None:
        """Count, once, each proof that two times of the ended request cannot both be right.

        Never raises: by the time the proof is complete, no call of the server is left that caused it.
        """
        timeline = self.timeline
        timeline.check_appended()
        # A terminal state belongs to no stage; the violation names the state that the request ended in.
        state = timeline.ended_in or timeline.state
        if timeline.misplaced:
            what = f"{timeline.misplaced} tokens were marked before a time already given"
            self.count(ForeignClock(what, state=state, event="token"))
        if timeline.clocks_apart():
            self.count(ForeignClock("the engine's clock and ours disagree", state=state, event="record"))

    def missing_terminal(self) -> MissingTerminal:
        """Return what is wrong with a request that is left now, without a terminal event."""
        state = self.timeline.state
        allowed = tuple(self.timeline.shape.table[state])
        what = f"the request was left while {state}, without a terminal event"
        return MissingTerminal(what, state=state, allowed=allowed)


def _count_or_unknown(count: object, event: str) -> int | None:
    try:
        return check_count(count, event)
    except InvalidValue:
        # Unknown, not 1: a guessed count would shift TPOT and the token metrics, and nobody would see it.
        return None


def _choice_or_first(choice: object, event: str) -> int:
    try:
        return check_choice(choice, event)
    except InvalidValue:
        # The first choice, which every request has: the token was produced, and its time is good.
        return 0
