"""The path of a single token: one list that a handle appends to and a request reads.

``request.token()`` is the one call that a server makes a thousand times a request, so it takes no lock and calls
nothing of ours: it appends the time to a list.  The list is there exactly while the request is in decode.  In every
other state it is None, the append fails, and the token takes the way of all other marks.

Tokens at a given time, chunks of several tokens and tokens of further choices are appended, too, if nothing about them
has to be judged (:func:`append_at`): the time is a plain number, not in the future, and not before the tokens before
it.

A thread that is inside ``token()`` when the request ends still holds the list; what it appends then came after the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.tokens import Log

# CPython shares small integers, so `is` holds for every 1 and 0 that a caller writes.
ONE: Final[Any] = 1
FIRST: Final[Any] = 0


class TokenPath:
    """What can take single tokens: the handle derives from it, the request opens and closes it."""

    __slots__ = ("__weakref__", "_ts")

    def __init__(self) -> None:
        self._ts: Log | None = None

    def lead_to(self, log: Log | None) -> None:
        """Append single tokens to ``log`` from now on; None: the path is closed."""
        self._ts = log


def append_at(path: Log | None, log: Log, n: int, reading: int, timeline: Timeline) -> bool:
    """Append ``n`` tokens, at a reading that is not in the future, to a choice's log; False where ``path`` is closed.

    ``path``: the log of the first choice.  Also False where the last token of either, or a time that somebody gave, is
    later or unknown: that is judged under the lock.
    """
    if path is None:
        return False
    first = path is log
    try:
        newest = path[-1]
        if type(newest) is tuple:
            newest = newest[0]
        if newest > reading:
            return False
        if not first:
            newest = log[-1]
            if type(newest) is tuple:
                newest = newest[0]
            if newest > reading:
                return False
    except (IndexError, TypeError):  # Another thread has just ended the request, or the time is unknown.
        return False
    # The timeline is asked before the append: who finds a chunk must not take it for one of single tokens.
    if not timeline.takes(reading, first and n == 1):
        return False
    log.append(reading if n == 1 else (reading, n))
    return True


PathReference: TypeAlias = Callable[[], "TokenPath | None"]
"""A weak reference to a path: the request never keeps its handle alive, so that a dropped one is noticed."""
