"""Kinds of events that are treated in the same way, and the log that each change of state is told to.

How it works.  The table of a shape says which events move a state.  What is here cuts across it: events that count
tokens, notes that move nothing, and marks of no token, which are no marks.
"""

from __future__ import annotations

from typing import Final, Protocol

from otel_lifecycle._core.values import whole

TOKEN_EVENTS: Final = frozenset({"token", "first_token"})
NOTES: Final = frozenset({"client_disconnected", "delivered", "prefill_chunk"})

RECEIPT_TOLERANCE_NS: Final = 1_000_000
"""How far a recorded event may lie ahead of its receipt: two readings of one clock in two processes differ by less."""


class EngineFeed(Protocol):
    """What is told of each change of state: the log of the engine that the request competes in."""

    def move(self, state: str, at: int | None) -> None:
        """The request is in ``state`` since ``at``, a reading of the process's monotonic clock; None: unknown."""


def is_nothing(count: object) -> bool:
    """Return whether a mark of so many tokens is not a mark at all."""
    # A part of a second is a float where outputs are not tokens.
    return count == 0.0 if type(count) is float else whole(count) == 0
