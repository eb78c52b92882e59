"""What ends a command with exit code 2, and the exit codes themselves."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

OK: Final = 0
FOUND: Final = 1
"""Something the command looks for was found: an illegal transition, a crossed gate."""
UNUSABLE: Final = 2
"""The command could not do its work: a file that is no trace, an unknown metric, a side without samples."""


BEING_READ: Final[ContextVar[str | None]] = ContextVar("being_read", default=None)
"""The file or message being worked on, to be named if something unforeseen happens."""


class Unusable(Exception):
    """What was given cannot be worked with; the message is for the person who typed the command."""


class NotATrace(Unusable):
    """A file that holds no telemetry at all, or nothing else of ``what`` it was taken for."""

    def __init__(self, name: str, reason: str, what: str = "trace file") -> None:
        super().__init__(f"{name} is no {what}: {reason}")
        self.name = name
        self.reason = reason


class NoAnswer(Unusable):
    """A backend that did not answer, or answered with something else."""
