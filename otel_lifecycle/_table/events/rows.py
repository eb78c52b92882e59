"""Rows of an event log: JSON Lines or CSV with a head, each with the line it began on."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from typing import IO, Any, Final, NamedTuple

import orjson

from otel_lifecycle._table.sources.framing import BOM
from otel_lifecycle._table.sources.lenient import loads

MAX_LINE: Final = 2**20
"""Bytes of a line that are read.  A few megabytes of gzip can unpack to one line of gigabytes."""


class NumberedRow(NamedTuple):
    """A row and the number of its first line; if ``broken``, ``row`` is the reason why it cannot be read."""

    line: int
    row: Any
    broken: bool = False


class Rows:
    """Iterates over the rows of a stream; a row that cannot be read is one that is ``broken``.

    What the stream itself raises, for an archive that was cut short, passes through.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._line = 0
        self._long: list[int] = []

    def __iter__(self) -> Iterator[NumberedRow]:
        first = self._first()
        if first.lstrip()[:1] == b"{":
            yield from self._json(first)
        elif first:
            yield from self._csv(first)

    def _first(self) -> bytes:
        line = self._next().removeprefix(BOM)
        while line and not line.strip():
            line = self._next()
        return line

    def _next(self) -> bytes:
        """Return the next line, no more than :data:`MAX_LINE` of it; nothing at the end."""
        # One byte more than allowed, to tell a line of exactly the limit from a longer one.
        line = self._stream.readline(MAX_LINE + 1)
        self._line += bool(line)
        if len(line) > MAX_LINE:
            self._long.append(self._line)
            while line and not line.endswith(b"\n"):
                line = self._stream.readline(MAX_LINE)
            # An empty line in its place keeps the line numbers right.
            return b"\n"
        return line

    def _too_long(self) -> Iterator[NumberedRow]:
        for number in self._long:
            yield NumberedRow(number, f"a line of more than {MAX_LINE >> 20} MiB", broken=True)
        self._long.clear()

    def _json(self, line: bytes) -> Iterator[NumberedRow]:
        while line:
            yield from self._too_long()
            if line.strip():
                try:
                    yield NumberedRow(self._line, loads(line))
                except orjson.JSONDecodeError as error:
                    yield NumberedRow(self._line, str(error), broken=True)
            line = self._next()
        yield from self._too_long()

    def _csv(self, first: bytes) -> Iterator[NumberedRow]:
        """Yield the rows of RFC 4180: a quoted cell may hold line breaks, so a row may be several lines."""
        # The module's default of 128 KiB is smaller than a line that is read here.
        csv.field_size_limit(min(MAX_LINE, sys.maxsize))
        reader = csv.reader(self._texts(first))
        head, began = None, self._line
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                break
            except csv.Error as error:
                yield NumberedRow(began, str(error), broken=True)
            else:
                if head is None:
                    head = cells
                # An empty cell is unknown, not an empty text.  A row of another length loses only the rest.
                elif cells:
                    yield NumberedRow(began, {key: cell for key, cell in zip(head, cells, strict=False) if cell != ""})
            yield from self._too_long()
            began = self._line + 1
        yield from self._too_long()

    def _texts(self, line: bytes) -> Iterator[str]:
        while line:
            # A NUL ends nothing in CSV; the reader of Python 3.10 refuses it.
            yield line.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
            line = self._next()
