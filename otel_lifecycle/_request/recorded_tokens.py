"""Tokens in a row that another process recorded: read in one pass, and appended together.

How it works.  A worker that streams records thousands of tokens and little else.  In decode a plain token only adds an
entry to a log, so a row of them is read without a call for each, and applied under the lock once.  What is not plain
ends the row and is judged by itself: another event, another type, a time that goes back, a count that is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from time import time_ns
from typing import Any, Final, NamedTuple

from otel_lifecycle._core.tokens import Entry, Log
from otel_lifecycle._core.values import MAX_CHOICES, MAX_CHUNK
from otel_lifecycle._request.clock import DAY_NS, YEAR_2000_NS
from otel_lifecycle._request.token_path import FIRST, ONE


class RecordedTokens(NamedTuple):
    """Tokens in a row: the time of each event in order, a reading of the request's clock, and its entry by choice."""

    times: list[int]
    logs: dict[int, Log]


NO_TOKENS: Final = RecordedTokens([], {})


def read_tokens(items: Sequence[Any], start: int, offset: int) -> RecordedTokens:
    """Read the plain tokens from ``start`` on, up to the first item that is something else."""
    times: list[int] = []
    logs: dict[int, Log] = {0: []}
    first = logs[0]
    previous, newest = YEAR_2000_NS, time_ns() + DAY_NS
    for item in islice(items, start, None):
        # The exact types, whose methods are known not to raise.
        if type(item) is not dict:
            break
        try:
            event, at = item["event"], item["timestamp"]
            # A further key need not be a string, and looking one up may raise.
            count, choice = (1, 0) if len(item) == 2 else (item.get("count", 1), item.get("choice", 0))
        except Exception:  # noqa: BLE001  # that event is judged by itself
            break
        if type(event) is not str or event != "token" or type(at) is not int or not previous <= at <= newest:
            break
        previous = at
        reading = at - offset
        # By identity: a value of another type has methods of its own.
        if count is ONE and choice is FIRST:
            first.append(reading)
        elif _is_plain(count, choice):
            entry: Entry = reading if count == 1 else (reading, count)
            logs.setdefault(choice, []).append(entry)
        else:
            break
        times.append(reading)
    if not first:
        del logs[0]
    return RecordedTokens(times, logs)


def _is_plain(count: object, choice: object) -> bool:
    return type(count) is int and 0 < count <= MAX_CHUNK and type(choice) is int and 0 <= choice < MAX_CHOICES
