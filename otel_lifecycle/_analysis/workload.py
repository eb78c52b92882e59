"""A whole workload: its table of requests, the flat tables made from it, and what only metrics tell."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, Final

from otel_lifecycle import semconv
from otel_lifecycle._analysis.facts import TERMINATED, columns_asked, make_facts
from otel_lifecycle._analysis.resources import Resources
from otel_lifecycle._analysis.settings import WorkloadSettings
from otel_lifecycle._analysis.stated import Stated, stated
from otel_lifecycle._table.requests.from_span import is_request
from otel_lifecycle._table.requests.troubles import note_troubles
from otel_lifecycle._table.row import row_of_span
from otel_lifecycle._table.sources.made_rows import MadeRows
from otel_lifecycle._table.sources.spans import Item, Span
from otel_lifecycle._table.sources.tally import MAX_NOTES, ReadingTally
from otel_lifecycle._table.store import RequestTable

MAX_ABNORMAL: Final = 1000
MAX_ALIKE: Final = 50
"""Abnormal requests kept one by one for each outcome, stage and reason; their numbers stay exact."""
SLOWEST: Final = 10

_COUNTS: Final = """
SELECT count(*) AS total, count(*) FILTER (terminated) AS terminated, count(*) FILTER (rejected) AS rejected,
  count(*) FILTER (whole) AS whole, count(slo_met) AS slo_judged, count(*) FILTER (slo_met) AS slo_met,
  count(*) FILTER (legal = false) AS illegal, coalesce(sum(preemptions), 0)::BIGINT AS preemptions,
  count(*) FILTER (preemptions > 0) AS preempted_requests, coalesce(sum(wasted_tokens), 0)::BIGINT AS wasted_tokens,
  count(*) FILTER (wasted_tokens > 0) AS wasting_requests,
  count(*) FILTER (client_disconnected AND completed) AS completed_without_client,
  count(*) FILTER (NOT believed) AS wrong_clocks
FROM live
"""


class Workload:
    """The requests of some sources: fill ``table``, :meth:`conclude` once, then ask.

    ``parts``: numbers of requests by the part of the facts they are; ``counts``: of live ones by what they are;
    ``outcomes``: by how they ended.  ``first_ns`` and ``last_ns`` are the first arrival and the last end; None without
    a live request.
    """

    def __init__(self, settings: WorkloadSettings, tally: ReadingTally) -> None:
        self.settings = settings
        self.tally = tally
        self.table = RequestTable(columns=columns_asked(settings))
        self.resources = Resources(settings.window)
        self.parts: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.stated: Stated = {}
        self.first_ns: int | None = None
        self.last_ns: int | None = None

    def conclude(self) -> None:
        """Make the tables; to be called once, after the last request."""
        self.table.flush()
        reach, parts = make_facts(self.table, self.settings)
        self.parts.update(parts)
        if reach is not None:
            self.first_ns, self.last_ns = reach
        self.counts.update(self.table.rows(_COUNTS)[0])
        self.outcomes.update(
            dict(self.table.connection.execute("SELECT outcome, count(*) FROM live GROUP BY outcome").fetchall())
        )
        self.stated = stated(self.table, self.resources.launch, self.total)
        self.tally.read["requests"] = self.total
        self.tally.add("no_end", number=self.outcomes["incomplete"])
        self._note_wrong_clocks()

    def _note_wrong_clocks(self) -> None:
        self.tally.add("clock_skew", number=self.counts["wrong_clocks"])
        if self.counts["wrong_clocks"]:
            wrong = f"SELECT arrival_ns, end_ns FROM live WHERE NOT believed ORDER BY id LIMIT {MAX_NOTES}"
            notes = self.tally.notes.setdefault("clock_skew", [])
            notes.extend(_far_from_the_rest(*times) for times in self.table.connection.execute(wrong).fetchall())

    @property
    def total(self) -> int:
        """Live requests, ended or not."""
        return self.counts["total"]

    @property
    def terminated(self) -> int:
        """Live requests with a terminal event: the denominator of every rate."""
        return sum(self.outcomes[outcome] for outcome in TERMINATED)

    @property
    def seconds(self) -> float | None:
        """The time from the first arrival to the last end; None without a live request."""
        return None if self.first_ns is None or self.last_ns is None else (self.last_ns - self.first_ns) * 1e-9

    def abnormal(self) -> list[dict[str, Any]]:
        """Return the abnormal requests that are shown one by one: the first of each kind, in the order they came."""
        # They are numbered without all their columns.
        first = (
            "SELECT id FROM live WHERE NOT completed QUALIFY row_number() OVER (PARTITION BY outcome, failure_stage,"
            f" reason ORDER BY id) <= {MAX_ALIKE} ORDER BY id LIMIT {MAX_ABNORMAL}"
        )
        return self.table.rows(f"SELECT * FROM live WHERE id IN ({first}) ORDER BY id")

    def slowest(self) -> list[dict[str, Any]]:
        """Return the completed requests with the longest E2E, the longest first."""
        return self.table.rows(
            f"SELECT * FROM live WHERE completed AND e2e IS NOT NULL ORDER BY e2e DESC, id DESC LIMIT {SLOWEST}"
        )


def _far_from_the_rest(start: int, end: int) -> str:
    first, last = (_second(time) for time in (start, end))
    return f"a request from {first}Z to {last}Z, far from all others; not in the window"


def _second(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 10**9, tz=timezone.utc).isoformat().removesuffix("+00:00")


def gather(items: Iterable[Item], settings: WorkloadSettings, tally: ReadingTally) -> Workload:
    """Return the workload of some spans and metric points."""
    workload = Workload(settings, tally)
    with _no_cycles():
        for item in items:
            if isinstance(item, MadeRows):
                workload.table.add_made(item)
            elif not isinstance(item, Span):
                workload.resources.add(item)
            elif is_request(item):
                note_troubles(item, tally)
                workload.table.add(row_of_span(item, settings.shape, settings.threshold))
            elif semconv.STARTUP_PHASE in item.attributes:
                workload.resources.add_phase(item)
            else:
                tally.add("other_spans")
    workload.conclude()
    return workload


@contextmanager
def _no_cycles() -> Iterator[None]:
    """Turn the cycle collector off: it takes a third of the time, and none of the millions of values is in a cycle."""
    enabled = gc.isenabled()
    # Restored afterwards: this may run inside another program's process.
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
