"""The columns of an event log: which one is the id, the event and the time, and in which unit times are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final, Literal

from otel_lifecycle._table.sources.otlp_json import LATEST

Unit = Literal["s", "ms", "us", "ns"]

ID_KEYS: Final = ("request_id", "request", "id", "inference.request.id", "trace_id")
EVENT_KEYS: Final = ("event", "name")
# Only the first three may carry a unit: "t" with a unit would match other short names.
TIME_KEYS: Final = ("timestamp", "time", "ts", "t")
"""The names a column may have, the first that is there; upper and lower case are the same."""

NANOSECONDS: Final[Mapping[str, int]] = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
"""Unit of the log's times -> nanoseconds."""

_SUFFIXES: Final[Mapping[str, Unit]] = {
    "s": "s",
    "sec": "s",
    "secs": "s",
    "seconds": "s",
    "ms": "ms",
    "millis": "ms",
    "milliseconds": "ms",
    "us": "us",
    "µs": "us",
    "micros": "us",
    "microseconds": "us",
    "ns": "ns",
    "nanos": "ns",
    "nanoseconds": "ns",
}
_WITH_UNIT: Final = re.compile(rf"(?:{'|'.join(TIME_KEYS[:3])})[_ ]?[(\[]?({'|'.join(_SUFFIXES)})[)\]]?(?:_?utc)?")
# Used for a hint only; a column is never taken for the time by a guess.
_LIKE_TIME: Final = re.compile(r"time|stamp|date|clock|(?:^|_)ts(?:_|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventColumns:
    """The names of the columns as a log has them; ``unit`` is the one that the name of the time column states."""

    request: str | None
    event: str | None
    time: str | None
    unit: Unit | None

    @property
    def used(self) -> frozenset[str | None]:
        """All that are no further attributes."""
        return frozenset({self.request, self.event, self.time, "count", "choice"})


def columns_of(names: Iterable[str]) -> EventColumns:
    """Return what the columns of a row mean."""
    known = {name.strip().lower(): name for name in names}
    time, unit = _time_column(known)
    return EventColumns(request=_first(known, ID_KEYS), event=_first(known, EVENT_KEYS), time=time, unit=unit)


def _first(known: Mapping[str, str], keys: Iterable[str]) -> str | None:
    return next((known[key] for key in keys if key in known), None)


def _time_column(known: Mapping[str, str]) -> tuple[str | None, Unit | None]:
    plain = _first(known, TIME_KEYS)
    if plain is not None:
        return plain, None
    for key, name in known.items():
        matched = _WITH_UNIT.fullmatch(key)
        if matched is not None:
            return name, _SUFFIXES[matched[1]]
    return None, None


def like_times(names: Iterable[str]) -> list[str]:
    """Return the columns that may have been meant for the time."""
    return [name for name in names if _LIKE_TIME.search(name)]


def time_in(raw: Any, unit: Unit) -> int | float | None:
    """Return a time in a unit: a number as it is, an ISO 8601 time as epoch time; None where it is unknown.

    Raises ValueError for what is not a time of any clock.
    """
    if raw is None:
        return None
    # To isinstance a bool is an int.
    number = isinstance(raw, (int, float)) and not isinstance(raw, bool)
    found: int | float = raw if number else _parsed(str(raw).strip(), unit)
    # In the log's unit, so that the check does not turn large integers into floats of nanoseconds first.
    if not (math.isfinite(found) and abs(found) < LATEST / NANOSECONDS[unit]):
        raise ValueError(f"no time: {raw!r:.40}")
    return found


_NUMBER_WITH_UNIT: Final = re.compile(rf"([+-]?\d+(?:\.\d+)?)\s*({'|'.join(_SUFFIXES)})")


def _parsed(text: str, unit: Unit) -> int | float:
    # Before float: epoch nanoseconds have more digits than a float holds.
    if text.lstrip("+-").isdecimal():
        return int(text)
    try:
        return float(text)
    except ValueError:
        pass
    with_unit = _NUMBER_WITH_UNIT.fullmatch(text)
    if with_unit is not None:
        return _scaled(_whole_or_float(with_unit[1]) * NANOSECONDS[_SUFFIXES[with_unit[2]]], unit)
    # Python 3.10 does not read the suffix Z.  A time without a zone is taken as UTC.
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    # In integers: a float of epoch seconds does not hold nanoseconds exactly.
    nanoseconds = ((since.days * 86_400 + since.seconds) * 10**6 + since.microseconds) * 1000
    return _scaled(nanoseconds, unit)


def _whole_or_float(text: str) -> int | float:
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


def _scaled(nanoseconds: float, unit: Unit) -> int | float:
    scale = NANOSECONDS[unit]
    whole = isinstance(nanoseconds, int) and nanoseconds % scale == 0
    return int(nanoseconds) // scale if whole else nanoseconds / scale
