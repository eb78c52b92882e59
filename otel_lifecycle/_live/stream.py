"""The events that keep one open page up to date."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import orjson

from otel_lifecycle._draw.overtime import stages_over_time
from otel_lifecycle._live.figures import TimeRange, figures_of, stage_columns
from otel_lifecycle._live.kept import RunningRequest
from otel_lifecycle._live.receiver import Receiver
from otel_lifecycle._live.row import LiveRow
from otel_lifecycle._table.requests.model import STAGES

# The figures are computed from every row in the range, for each page and at each tick.
TICK_S: Final = 1.0
# With many rows that takes tens of milliseconds, so the page waits longer: an open page costs 4 % of a core at most.
REST: Final = 25
# The chart is the largest part of an update.
CHART_TICKS: Final = 2
BATCH: Final = 400
"""Rows of one event: the page must take each in a few milliseconds."""
# The page replaces these rows at each tick instead of adding to them.
MAX_RUNNING: Final = 100


@dataclass(slots=True, kw_only=True)
class View:
    """What one page looks at: the last so many seconds, 0 for everything; or a fixed range.

    ``after``: the last row it has.  ``left``: how many rows it has been told to drop.
    """

    last: float | None = 300.0
    since: float = 0.0
    until: float | None = None
    after: int = 0
    left: int = 0

    def range_at(self, now: float) -> TimeRange:
        """Return the range at an instant."""
        if self.last is not None:
            return TimeRange(since=now - self.last if self.last else 0.0, until=now)
        return TimeRange(since=self.since, until=now if self.until is None else self.until)

    @classmethod
    def of(cls, query: Mapping[str, str]) -> View:
        """Return the view that the page asks for; ValueError for one that makes no sense."""
        last = query.get("last")
        return cls(
            last=max(float(last), 0.0) if last is not None else None,
            since=float(query.get("since", 0)),
            until=float(query["until"]) if "until" in query else None,
            after=int(query.get("after", 0)),
            left=int(query.get("left", 0)),
        )


@dataclass(slots=True)
class Status:
    """The page's text about the program that is watched; ``ended`` is set at its end."""

    text: str
    ended: str | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, text: str) -> None:
        """Mark the end: no further telemetry comes."""
        self.ended = text
        self.changed.set()


async def events(receiver: Receiver, view: View, status: Status) -> AsyncIterator[bytes]:
    """Yield server-sent events until the program has ended or the page is closed."""
    tick = 0
    while True:
        for batch in _batches(receiver, view):
            yield batch
            # The receiver shares this loop: exporters get a turn between two batches.
            await asyncio.sleep(0)
        started = time.thread_time()
        figures = _event("now", _now(receiver, view, status, with_chart=tick % CHART_TICKS == 0))
        spent = time.thread_time() - started
        yield figures
        tick += 1
        if status.ended is not None:
            yield f"event: ended\ndata: {status.ended}\n\n".encode()
            return
        try:
            # An event and not a sleep, so that the end shows at once.
            await asyncio.wait_for(status.changed.wait(), max(TICK_S, spent * REST))
        # Not the built-in TimeoutError: on Python 3.10 they are two classes.
        except asyncio.TimeoutError:
            continue


def _event(name: str, data: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"


def _batches(receiver: Receiver, view: View) -> Iterator[bytes]:
    """Yield the rows that came and the numbers of those that left since the page was last told."""
    kept = receiver.kept
    # Lists, complete before the first yield: other tasks change ``kept`` while the page takes a batch.
    gone = list(islice(reversed(kept.gone), max(kept.left - view.left, 0)))
    new: list[LiveRow] = []
    for number in reversed(kept.rows):
        # Numbers only grow, so everything before this row has been sent.
        if number <= view.after:
            break
        new.append(kept.rows[number])
    new.reverse()
    view.left, view.after = kept.left, new[-1].number if new else view.after
    # One event even without a new row, if the page must drop some.
    for start in range(0, max(len(new), 1 if gone else 0), BATCH):
        part = [orjson.Fragment(row.packed) for row in new[start : start + BATCH]]
        yield _event("rows", {"rows": part, "gone": gone, "left": view.left})
        gone = []


def _now(receiver: Receiver, view: View, status: Status, *, with_chart: bool) -> dict[str, Any]:
    now = time.time()
    chosen = view.range_at(now)
    rows = [row for row in receiver.kept.rows.values() if chosen.holds(row)]
    gauges = receiver.gauges
    return {
        "status": status.text,
        "in_flight": gauges.in_flight(now),
        "oldest": gauges.oldest(now),
        "running": _running(receiver, now),
        "figures": figures_of(rows, chosen),
        "chart": _chart(rows, chosen) if with_chart else None,
        "unread": [one.plain() for one in receiver.unread.lines(receiver.requests, gauges.counted())],
        "kept": len(receiver.kept.rows),
        "left_count": receiver.kept.left,
    }


def _chart(rows: list[LiveRow], chosen: TimeRange) -> str:
    columns = stage_columns(rows, chosen)
    if columns is None:
        return '<p class="none">No completed request with every boundary in this range.</p>'
    drawn = stages_over_time(
        columns.start, columns.width, columns.means, columns.counts, when="time of the end", zone=None
    )
    return str(drawn)


def _running(receiver: Receiver, now: float) -> list[list[Any]]:
    """Return requests that have not ended as rows of the page, the newest first."""
    newest = islice(reversed(receiver.kept.running.values()), MAX_RUNNING)
    return [_running_row(request, now) for request in newest]


def _running_row(request: RunningRequest, now: float) -> list[Any]:
    # The span that would tell the arrival has not ended; the first stage starts then.
    arrived = min(start for _, start, _ in request.stages)
    lengths = {stage: round((end - start) * 1000, 3) for stage, start, end in request.stages}
    known = [lengths.get(stage) for stage in STAGES]
    length = (now - arrived) * 1000
    rest = max(length - sum(lengths.values()), 0.0)
    identity = [-1, request.trace_id, request.span_id, None, "running", request.model, None]
    return [*identity, arrived * 1000, length, "running", None, [*known, rest], *[None] * 4, 0, None, None]
