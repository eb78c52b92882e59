"""What ends a command with exit code 2, and the exit codes themselves."""

from __future__ import annotations

from typing import Final

OK: Final = 0
FOUND: Final = 1
"""Something the command looks for was found: an illegal transition, a crossed gate."""
UNUSABLE: Final = 2
"""The command could not do its work: a file that is no trace, an unknown metric, a side without samples."""


class Unusable(Exception):
    """What was given cannot be worked with; the message is for the person who typed the command."""


class NotATrace(Unusable):
    """A file that holds no telemetry at all."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} is no trace file: {reason}")
        self.name = name
        self.reason = reason


class NoAnswer(Unusable):
    """A backend that did not answer, or answered with something else."""
