"""The guard around every public entry point: a fault of this package never reaches the server.

What a caller can do wrong is a counted violation, raised as a LifecycleError where a processor is strict; both are
handled where they are found.  What arrives here is a fault of our own.  In service it is counted and logged, and the
server goes on.  With ``guard.reraise`` it is raised again: the tests set it, so that the guard hides no defect.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any, Final

from otel_lifecycle._log import say
from otel_lifecycle.errors import LifecycleError


class FaultGuard:
    """Counts and logs our own faults; with ``reraise`` it raises them again."""

    __slots__ = ("_numbers", "faults", "reraise")

    def __init__(self) -> None:
        self.reraise = False
        self.faults = 0
        # next() on a count is one operation, so two threads never get the same number.
        self._numbers = itertools.count(1)

    def fault(self, place: str, error: Exception) -> None:
        """Take a fault that came up in ``place``."""
        self.faults = next(self._numbers)
        if self.reraise:
            raise error
        say(place, f"{place} failed by a fault of otel-lifecycle (no. {self.faults})", level=logging.ERROR, error=error)


guard: Final = FaultGuard()
"""The one guard of this process."""


def guarded(place: str, look: Callable[..., object], *arguments: Any) -> None:
    """Look at what passes by; a fault of ours in it goes no further than the guard."""
    try:
        look(*arguments)
    except LifecycleError:
        # Only a strict processor raises it, and then at the call that was wrong.
        raise
    except Exception as error:  # noqa: BLE001  # the server's response must not fail because of us
        guard.fault(place, error)
