"""Reading event logs: a line an event, the events of many requests mixed."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from otel_lifecycle._core.lifecycle import EVENTS, TERMINAL_EVENTS
from otel_lifecycle._table.errors import BEING_READ, NotATrace, Unusable
from otel_lifecycle._table.events.columns import (
    EVENT_KEYS,
    ID_KEYS,
    TIME_KEYS,
    Unit,
    columns_of,
    like_times,
    time_in,
)
from otel_lifecycle._table.events.rows import Rows
from otel_lifecycle._table.sources.framing import BROKEN, unpacked
from otel_lifecycle._table.sources.reader import CHUNK, Counted
from otel_lifecycle._table.sources.tally import ReadingTally
from otel_lifecycle._table.text import shorten

# A log interleaves requests, and one that crashed never ends.  Together these bounds limit what is held.
OPEN: Final = 100_000
"""Requests without an end that are held at a time; the one that was silent longest is closed to make room."""
LINGER: Final = 10_000
"""Requests that have ended and are held for an event that comes too late."""
MAX_TOKENS: Final = 2**18
"""Tokens of one request.  Each of them becomes a time of its own, and a log can claim thousands in one short line."""


# Only these events carry a count that is turned into single times.
_TOKENS: Final = frozenset({"token", "first_token"})


@dataclass(slots=True, kw_only=True)
class Log:
    """The events of one request in the order they were logged, times in ``unit``, and what else its lines said."""

    request: str | None
    unit: Unit = "s"
    events: list[dict[str, Any]] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    ended: bool = False
    tokens: int = 0
    source: str = ""
    line: int = 0


class LogLine(NamedTuple):
    """One event of a log: whose, in which unit, and what else its line said."""

    request: str | None
    event: dict[str, Any]
    attributes: dict[str, Any]
    unit: Unit
    source: str
    line: int


def read_logs(
    sources: Iterable[str], tally: ReadingTally, progress: Callable[[int], None] | None = None, unit: Unit = "s"
) -> Iterator[Log]:
    """Yield each request of some logs (JSON Lines or CSV, gzip or zstd too) once its events are together.

    ``unit`` is that of times whose column does not state one.  A line without an id belongs to the one request of its
    file; that there are more of them is counted.  Raises NotATrace for a file without any event.
    """
    for source in sources:
        BEING_READ.set(source)
        yield from _grouped(LogFile(source, tally, unit).lines(progress), tally)


def _grouped(lines: Iterable[LogLine], tally: ReadingTally) -> Iterator[Log]:
    open_: OrderedDict[str | None, Log] = OrderedDict()
    ended: OrderedDict[str | None, Log] = OrderedDict()
    for line in lines:
        # An ended request is kept a while: a late event is its violation, not the start of another request.
        log = ended.get(line.request) or open_.setdefault(
            line.request, Log(request=line.request, unit=line.unit, source=line.source, line=line.line)
        )
        if not _counted(log, line, tally):
            continue
        log.events.append(line.event)
        log.attributes.update(line.attributes)
        if line.event["event"] in TERMINAL_EVENTS and not log.ended:
            log.ended = True
            ended[line.request] = open_.pop(line.request)
        elif not log.ended:
            open_.move_to_end(line.request)
        if len(ended) > LINGER:
            yield ended.popitem(last=False)[1]
        if len(open_) > OPEN:
            yield open_.popitem(last=False)[1]
    yield from ended.values()
    yield from open_.values()


def _counted(log: Log, line: LogLine, tally: ReadingTally) -> bool:
    """Add the tokens of a line to those of its request; False, and counted, where these are too many to be held."""
    count = line.event.get("count", 1)
    # Every event costs memory, so any of them counts as at least one.
    tokens = log.tokens + max(1, count if count is not None and line.event["event"] in _TOKENS else 1)
    if tokens > MAX_TOKENS:
        tally.add("unreadable_line", f"{line.source}:{line.line}: more than {MAX_TOKENS:,} tokens of one request")
        return False
    log.tokens = tokens
    return True


class LogFile:
    """One event log being read: its columns, and the count of what is wrong with it."""

    def __init__(self, source: str, tally: ReadingTally, unit: Unit) -> None:
        self._source = source
        self._tally = tally
        self._unit = unit
        self._names: tuple[str, ...] = ()
        self._columns = columns_of(())
        self._unnamed = Unnamed(source, tally)
        self._timeless = Timeless(source, tally)
        self._known = 0

    def lines(self, progress: Callable[[int], None] | None) -> Iterator[LogLine]:
        """Yield its events; NotATrace where there is none."""
        problem = "it has no event"
        # The counter sits below the decompression: progress is in bytes of the file.
        with _opened(self._source) as raw:
            packed = io.BufferedReader(Counted(raw, progress), CHUNK)
            if not packed.peek(1):
                self._tally.add("empty_file", self._source)
                return
            self._tally.read["files"] += 1
            try:
                for number, row, broken in Rows(unpacked(packed)):
                    try:
                        yield self._line(number, row, broken)
                    # One bad line does not end the file; it is counted with its place.
                    except (ValueError, TypeError, OverflowError) as error:
                        problem = str(error)
                        self._tally.add("unreadable_line", f"{self._source}:{number}: {error}")
            except BROKEN as error:
                self._tally.add("truncated", f"{self._source}, after {self._known} events: {error}")
                problem = ""
        self._timeless.conclude()
        self._tally.read["events"] += self._known
        if not self._known and problem:
            raise NotATrace(self._source, problem, "an event log")

    def _line(self, number: int, row: Any, broken: bool) -> LogLine:
        """Return the event of a row; ValueError or TypeError where it is none."""
        if broken:
            raise ValueError(row)
        if not isinstance(row, Mapping):
            raise ValueError("not an object")
        names = tuple(row)
        # Lines of JSON may differ in their keys, and most do not: the columns are only found anew when they change.
        if names != self._names:
            self._names, self._columns = names, columns_of(names)
        taken = self._taken(row, number)
        self._known += 1
        self._unnamed.look(taken)
        self._timeless.look(taken, names, self._columns.time)
        return taken

    def _taken(self, row: Mapping[str, Any], number: int) -> LogLine:
        columns = self._columns
        if columns.event is None:
            raise ValueError(f"no {' or '.join(EVENT_KEYS)}")
        name, unit = str(row[columns.event]), columns.unit or self._unit
        # "name" is also a column of traces and of other logs; "event" is not, so a wrong one there is a violation.
        if name not in EVENTS and columns.event.lower() == "name":
            raise ValueError(f"no event of any lifecycle: {name!r:.40}")
        event: dict[str, Any] = {
            "event": name,
            "timestamp": None if columns.time is None else time_in(row[columns.time], unit),
            **_counts(row),
        }
        used = columns.used
        rest = {str(key): value for key, value in row.items() if key not in used and value is not None}
        request = None if columns.request is None else str(row[columns.request])
        return LogLine(request, event, rest, unit, self._source, number)


def _counts(row: Mapping[str, Any]) -> dict[str, int | None]:
    return {key: None if row[key] is None else int(row[key]) for key in ("count", "choice") if key in row}


class Unnamed:
    """Counts the events without an id that belong to more than one request, but are read as one."""

    def __init__(self, source: str, tally: ReadingTally) -> None:
        self._source = source
        self._tally = tally
        self._arrivals = 0
        self._pending = 0
        self._named = False

    def look(self, line: LogLine) -> None:
        """Take an event into account."""
        if line.request is not None:
            self._named = True
        else:
            self._pending += 1
            self._arrivals += line.event["event"] == "arrive"
        # One request without any id is a legal log; ids elsewhere in it or a second arrival show a missing id.
        if self._pending and (self._named or self._arrivals > 1):
            where = f"{self._source}:{line.line}: none of {', '.join(ID_KEYS[:-1])} or {ID_KEYS[-1]}"
            columns = f" among its columns ({shorten(', '.join(line.attributes), 100)})" if line.attributes else ""
            self._tally.add("no_id", where + columns, self._pending)
            self._pending = 0


class Timeless:
    """Counts the events of a file without a time column: nothing can be measured by them."""

    def __init__(self, source: str, tally: ReadingTally) -> None:
        self._source = source
        self._tally = tally
        self._pending = 0
        self._timed = False
        self._where = ""

    def look(self, line: LogLine, names: tuple[str, ...], time: str | None) -> None:
        """Take an event into account; ``time``: the name of its time column."""
        if time is not None:
            self._timed = True
        elif not self._timed:
            self._pending += 1
            if not self._where:
                meant = like_times(names)
                columns = f"; did it mean {', '.join(meant)}?" if meant else f" ({shorten(', '.join(names), 100)})"
                self._where = f"{self._source}:{line.line}: none of {', '.join(TIME_KEYS)} among its columns{columns}"

    def conclude(self) -> None:
        """Count them, at the end of a file in which no event has a time."""
        if self._pending and not self._timed:
            self._tally.add("no_time", self._where, self._pending)


def _opened(source: str) -> io.FileIO:
    try:
        # The descriptor itself, as for files: the reader has a buffer of its own, and closing it leaves stdin open.
        return io.FileIO(0, closefd=False) if source == "-" else io.FileIO(source)
    except OSError as error:
        raise Unusable(f"{source}: {error.strerror or error}") from error
