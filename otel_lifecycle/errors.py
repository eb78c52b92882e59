"""What can be wrong with a lifecycle.

    LifecycleError(ValueError)
    ├── ConfigurationError          a name, threshold, objective, shape or variable that makes no sense
    ├── UnknownEvent                an event that no shape has
    ├── InvalidTimestamp            a time that is neither None nor a finite number
    ├── InvalidValue                a count, choice or other value that cannot be
    ├── NonMonotonicTime            a time before the one already known
    ├── ForeignClock                a time that cannot be of this machine's clock
    └── TransitionError
        ├── IllegalTransition       an event that the state does not allow
        ├── EventAfterTerminal      anything but an end after the end
        ├── DuplicateTerminal       a second end
        ├── TerminatedBeforeArrival an end of a request that never came
        └── MissingTerminal         a trace that stops without an end

Each carries ``kind`` (the violation it is counted as at run time), ``state``, ``event``, ``timestamp`` and ``allowed``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from otel_lifecycle.semconv import ViolationKind


# A ValueError, so that a caller that validates its input needs no import from here.
class LifecycleError(ValueError):
    """A lifecycle that cannot be; the base of every error raised here.

    Attributes: ``state`` the request was in, ``event`` and ``timestamp`` that came (as given), ``allowed`` events
    instead; each None (``allowed``: empty) where it has no meaning.
    """

    kind: ClassVar[ViolationKind] = "invalid_value"

    def __init__(
        self,
        message: str,
        *,
        state: str | None = None,
        event: str | None = None,
        timestamp: object = None,
        allowed: Iterable[str] = (),
    ) -> None:
        super().__init__(message)
        self.state = state
        self.event = event
        self.timestamp = timestamp
        self.allowed = tuple(allowed)


class ConfigurationError(LifecycleError):
    """A setting that makes no sense; the message names the rule."""


class UnknownEvent(LifecycleError):
    """An event that is in no lifecycle table."""


class InvalidTimestamp(LifecycleError):
    """A time that is neither None nor a finite number."""

    kind: ClassVar[ViolationKind] = "invalid_timestamp"


class InvalidValue(LifecycleError):
    """A value outside what its name allows, such as a negative token count."""


class NonMonotonicTime(LifecycleError):
    """A time before one that is already known for the same request."""

    kind: ClassVar[ViolationKind] = "non_monotonic_time"


class ForeignClock(LifecycleError):
    """A time that this machine's clock cannot have given."""

    kind: ClassVar[ViolationKind] = "foreign_clock"


class TransitionError(LifecycleError):
    """An event that has no row in the table for the state it came in."""

    kind: ClassVar[ViolationKind] = "illegal_transition"


class IllegalTransition(TransitionError):
    """An event that the current state does not allow."""


class EventAfterTerminal(TransitionError):
    """An event other than an end, after the end."""

    kind: ClassVar[ViolationKind] = "event_after_terminal"


class DuplicateTerminal(TransitionError):
    """A second end of the same request."""

    kind: ClassVar[ViolationKind] = "duplicate_terminal"


class TerminatedBeforeArrival(TransitionError):
    """An end of a request that has not arrived."""

    kind: ClassVar[ViolationKind] = "terminated_before_arrival"


class MissingTerminal(TransitionError):
    """A trace that stops without an end."""

    kind: ClassVar[ViolationKind] = "missing_terminal"
