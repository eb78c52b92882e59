"""Reading event logs: a line an event, the events of many requests mixed."""

from __future__ import annotations

import csv
import io
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

import orjson

from otel_lifecycle._cli.problems import BEING_READ, NotATrace, Unusable
from otel_lifecycle._cli.sources.framing import BOM, BROKEN, unpacked
from otel_lifecycle._cli.sources.otlp_json import LATEST
from otel_lifecycle._cli.sources.reader import CHUNK, Counted
from otel_lifecycle._cli.sources.tally import Tally
from otel_lifecycle._cli.text import shorten
from otel_lifecycle._core.lifecycle import EVENTS, TERMINAL_EVENTS

ID_KEYS: Final = ("request_id", "request", "id", "inference.request.id", "trace_id")
EVENT_KEYS: Final = ("event", "name")
TIME_KEYS: Final = ("timestamp", "time", "ts", "t")
"""The names a column may have, the first that is there."""

NANOSECONDS: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
"""Unit of the log's times -> nanoseconds."""

OPEN: Final = 100_000
"""Requests without an end that are held at a time; the one that was silent longest is closed to make room."""
LINGER: Final = 10_000
"""Requests that have ended and are held for an event that comes too late."""


@dataclass(slots=True, kw_only=True)
class Log:
    """The events of one request in the order they were logged, times as given, and what else its lines said."""

    request: str | None
    events: list[dict[str, Any]] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    ended: bool = False


def read_logs(
    sources: Iterable[str], tally: Tally, progress: Callable[[int], None] | None = None, unit: str = "s"
) -> Iterator[Log]:
    """Yield each request of some logs (JSON Lines or CSV, gzip or zstd too) once its events are together.

    A line without an id belongs to the one request of its file; that there are more of them is counted.  Raises
    NotATrace for a file without any event.
    """
    for source in sources:
        BEING_READ.set(source)
        yield from _grouped(_lines(source, tally, progress, LATEST / NANOSECONDS[unit]))


def _grouped(lines: Iterable[tuple[str | None, dict[str, Any], dict[str, Any]]]) -> Iterator[Log]:
    open_: OrderedDict[str | None, Log] = OrderedDict()
    ended: OrderedDict[str | None, Log] = OrderedDict()
    for request, event, attributes in lines:
        log = ended.get(request) or open_.setdefault(request, Log(request=request))
        log.events.append(event)
        log.attributes.update(attributes)
        if event["event"] in TERMINAL_EVENTS and not log.ended:
            log.ended = True
            ended[request] = open_.pop(request)
        elif not log.ended:
            open_.move_to_end(request)
        if len(ended) > LINGER:
            yield ended.popitem(last=False)[1]
        if len(open_) > OPEN:
            yield open_.popitem(last=False)[1]
    yield from ended.values()
    yield from open_.values()


def _lines(
    source: str, tally: Tally, progress: Callable[[int], None] | None, latest: float
) -> Iterator[tuple[str | None, dict[str, Any], dict[str, Any]]]:
    known, problem, unnamed = 0, "it has no event", _Unnamed(source, tally)
    with _opened(source) as raw:
        packed = io.BufferedReader(Counted(raw, progress), CHUNK)
        if not packed.peek(1):
            tally.add("empty_file", source)
            return
        tally.read["files"] += 1
        rows = _rows(unpacked(packed))
        for number in range(1, 2**63):
            try:
                row = next(rows)
                taken = _taken(row, latest)
            except StopIteration:
                break
            except BROKEN as error:
                tally.add("truncated", f"{source}, after {known} events: {error}")
                problem = ""
                break
            except (ValueError, TypeError, csv.Error) as error:
                problem = str(error)
                tally.add("unreadable_line", f"{source}:{number}: {error}")
                continue
            known += 1
            unnamed.look(taken, number)
            yield taken
    tally.read["events"] += known
    if not known and problem:
        raise NotATrace(source, problem, "event log")


class _Unnamed:
    """Counts the events that bear no id where they are of more than one request, and so become one by mistake."""

    def __init__(self, source: str, tally: Tally) -> None:
        self._source = source
        self._tally = tally
        self._arrivals = 0
        self._pending = 0
        self._named = False

    def look(self, taken: tuple[str | None, dict[str, Any], dict[str, Any]], number: int) -> None:
        """Take an event into account."""
        request, event, rest = taken
        if request is not None:
            self._named = True
        else:
            self._pending += 1
            self._arrivals += event["event"] == "arrive"
        if self._pending and (self._named or self._arrivals > 1):
            where = f"{self._source}:{number}: none of {', '.join(ID_KEYS[:-1])} or {ID_KEYS[-1]}"
            columns = f" among its columns ({shorten(', '.join(rest), 100)})" if rest else ""
            self._tally.add("no_id", where + columns, self._pending)
            self._pending = 0


def _opened(source: str) -> io.FileIO:
    try:
        return io.FileIO(0, closefd=False) if source == "-" else io.FileIO(source)
    except OSError as error:
        raise Unusable(f"{source}: {error.strerror or error}") from error


def _rows(stream: Iterable[bytes]) -> Iterator[Any]:
    """Yield a row a line: of JSON, or of CSV with a head."""
    return _Rows(iter(stream))


class _Rows:
    """An iterator that outlives a bad line, which a generator does not."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines
        self._head: list[str] | None = None
        self._json: bool | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        line = next(self._lines)
        while not line.strip():
            line = next(self._lines)
        if self._json is None:
            line = line.removeprefix(BOM)
            self._json = line.lstrip()[:1] == b"{"
        if self._json:
            return orjson.loads(line)
        if self._head is None:
            self._head = _cells(line)
            return next(self)
        return {key: cell for key, cell in zip(self._head, _cells(line), strict=False) if cell != ""}


def _cells(line: bytes) -> list[str]:
    return next(csv.reader([line.decode("utf-8", "replace")]), [])


def _taken(row: Any, latest: float) -> tuple[str | None, dict[str, Any], dict[str, Any]]:
    """Return the request, the event and the rest of a row; ValueError or TypeError where it is no event."""
    if not isinstance(row, Mapping):
        raise ValueError("not an object")
    event, time, request = _first(row, EVENT_KEYS), _first(row, TIME_KEYS), _first(row, ID_KEYS)
    if event is None:
        raise ValueError(f"no {' or '.join(EVENT_KEYS)}")
    taken: dict[str, Any] = {"event": str(row[event]), "timestamp": None if time is None else _time(row[time], latest)}
    for key in ("count", "choice"):
        if key in row:
            taken[key] = None if row[key] is None else int(row[key])
    used = {event, time, request, "count", "choice"}
    rest = {str(key): value for key, value in row.items() if key not in used and value is not None}
    if taken["event"] not in EVENTS and event == "name":
        raise ValueError(f"no event of any lifecycle: {taken['event']!r:.40}")
    return None if request is None else str(row[request]), taken, rest


def _first(row: Mapping[str, Any], keys: Iterable[str]) -> str | None:
    return next((key for key in keys if key in row), None)


def _time(raw: Any, latest: float) -> Any:
    """Return a number as it is, or the epoch seconds of an ISO time; ValueError for what is no time of any clock."""
    found = raw if raw is None or (isinstance(raw, (int, float)) and not isinstance(raw, bool)) else _parsed(raw)
    if found is not None and not abs(found) < latest:
        raise ValueError(f"no time: {raw!r:.40}")
    return found


def _parsed(raw: Any) -> int | float:
    text = str(raw).strip()
    try:
        number = int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    return number
