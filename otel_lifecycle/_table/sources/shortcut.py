"""How a reader is spared the parsing of messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from otel_lifecycle._table.sources.framing import BROKEN, CutShort, Message
from otel_lifecycle._table.sources.intake import Intake

TOGETHER: Final = 2**19
"""Bytes of messages that are read together: what is alike in them is done once."""


class ReadMessage(Protocol):
    """A message that was read without being parsed."""

    def put(self, intake: Intake, /) -> None:
        """Put all of it into its intake."""


class Shortcut(Protocol):
    """Reads messages of JSON without parsing them, where it can."""

    def read(self, contents: Sequence[bytes], source: str, line: int, /) -> Sequence[ReadMessage | None]:
        """Read messages of consecutive lines, from this one on; None for each that has to be parsed."""


def grouped(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Yield messages of the same encoding together; what ends them comes after those that came before it."""
    group: list[Message] = []
    size = 0
    problem = None
    try:
        for message in messages:
            if group and (message[0] != group[0][0] or size >= TOGETHER):
                yield group
                group, size = [], 0
            group.append(message)
            size += len(message[1])
    except (CutShort, *BROKEN) as error:
        problem = error
    if group:
        yield group
    if problem is not None:
        raise problem
