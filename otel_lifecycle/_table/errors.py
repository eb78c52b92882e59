"""What ends a command with exit code 2, and the exit codes themselves."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

OK: Final = 0
FOUND: Final = 1
"""Something the command looks for was found: an illegal transition, a crossed gate."""
UNUSABLE: Final = 2
"""The command could not do its work: a file that is not a trace, an unknown metric, a side without samples."""


# A context variable and not an argument: an unforeseen error can come from any depth.
BEING_READ: Final[ContextVar[str | None]] = ContextVar("being_read", default=None)
"""The file or message being read, for the message of an unforeseen error."""


class Unusable(Exception):
    """The input is unusable; the message is for the user of the command."""


class NotATrace(Unusable):
    """A file that is not ``what``: a trace file by default."""

    def __init__(self, name: str, reason: str, what: str = "a trace file") -> None:
        super().__init__(f"{name} is not {what}: {reason}")
        self.name = name
        self.reason = reason


class NoAnswer(Unusable):
    """A backend that did not answer, or answered with something else."""
