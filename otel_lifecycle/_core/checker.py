"""The lenient side of the timeline: what is wrong becomes a violation, and the request goes on.

An illegal event is not applied.  A legal event whose time is impossible moves the state and loses its time; one whose
count is impossible moves the state with an unknown count.  The live API and foreign spans both come through here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.tokens import Time
from otel_lifecycle._core.values import check_choice, check_count
from otel_lifecycle.errors import InvalidTimestamp, InvalidValue, LifecycleError, NonMonotonicTime
from otel_lifecycle.semconv import ViolationKind


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that was wrong: of what kind, in which state, at which event."""

    kind: ViolationKind
    state: str | None
    event: str | None


class Checker:
    """A timeline that does not raise.

    ``counts`` has the number of violations by kind, exact.  ``on_violation`` is told of each one as it happens.  With
    ``strict`` the error is raised instead, and nothing has changed.
    """

    __slots__ = ("counts", "on_violation", "strict", "timeline")

    def __init__(self, timeline: Timeline, on_violation: Callable[[Violation], None] | None = None) -> None:
        self.timeline = timeline
        self.counts: Counter[ViolationKind] = Counter()
        self.on_violation = on_violation
        self.strict = False

    def violate(self, error: LifecycleError) -> None:
        """Count what ``error`` says; raise it where the checker is strict."""
        if self.strict:
            raise error
        self.counts[error.kind] += 1
        if self.on_violation is not None:
            self.on_violation(Violation(error.kind, error.state, error.event))

    def apply(
        self, event: str, timestamp: Time | None, count: int | None = 1, choice: int = 0, *, remote: bool = False
    ) -> bool:
        """Apply an event as far as it can be; return whether it was legal."""
        try:
            self.timeline.apply(event, timestamp, count, choice, remote=remote)
        except (InvalidTimestamp, NonMonotonicTime) as error:
            self.violate(error)
            return self.apply(event, None, count, choice, remote=remote)
        except InvalidValue as error:
            self.violate(error)
            return self.apply(event, timestamp, _count(count, event), _choice(choice, event), remote=remote)
        except LifecycleError as error:
            self.violate(error)
            return False
        return True


def _count(count: object, event: str) -> int | None:
    try:
        return check_count(count, event)
    except InvalidValue:
        return None


def _choice(choice: object, event: str) -> int:
    try:
        return check_choice(choice, event)
    except InvalidValue:
        return 0
