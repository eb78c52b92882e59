"""The flat tables that the analysis reads: one row per request, with what belongs together and what is believed.

``facts`` holds every request; its column ``part`` is ``live``, ``apart`` (other traffic), ``role`` (half of a
disaggregated request), ``passing`` (ended after the window, in flight within it) or ``outside``.  ``live`` are the
requests of that part, and ``live_rows`` their rows in ``requests``.  ``crowd`` tells how many others were in flight on
the arrival of each, and ``live_crowd`` is both.  Of many requests, all but ``crowd`` are views: a copy of a million
would go through the disk.
"""

from __future__ import annotations

from typing import Final

from otel_lifecycle._analysis.settings import OPEN, WorkloadSettings
from otel_lifecycle._core.slo import Slo
from otel_lifecycle._table.requests.model import STAGE_METRIC
from otel_lifecycle._table.schema import BY_ATTRIBUTE, COLUMNS, SHORT
from otel_lifecycle._table.sources.plausibility import EARLIEST
from otel_lifecycle._table.store import STATED, RequestTable, quoted

YEAR: Final = 366 * 86_400 * 10**9
"""Nanoseconds from the middle of a run beyond which a time is a wrong clock."""
UNTOLD: Final = "(none)"
"""The group of the requests without the attribute."""
SHORT_CLASS: Final = "interactive short"
LONG_CLASS: Final = "long context"
UNKNOWN_CLASS: Final = "unknown length"
TERMINATED: Final = ("completed", "cancelled", "timed_out", "failed")

COPIED: Final = 10_000
"""Requests of which a copy takes less time than planning each query over a view of them."""
_EARLIEST_NS: Final = int(EARLIEST) * 10**9
_TYPES: Final = {column.name: column.type for column in COLUMNS}
_PLAIN: Final = (
    "trace_id, span_id, request_id, name, outcome, failure_stage, reason, bottleneck, queue_wait, preprocessing,"
    " prefill, decode_time, ttft, tpot, token_span, e2e, preempted, preemptions, itl_p50, itl_p95, itl_p99, itl_max,"
    " share_queue, share_preprocessing, share_prefill, share_decode, client_disconnected, legal, wasted_tokens,"
    " input_tokens, output_tokens, cached_tokens, batch_size, concurrency"
)
_ASKED: Final = frozenset(
    {
        *_PLAIN.split(", "),
        *("arrival_ns", "end_ns", "role", "traffic", "slo_met", "workload", "bottleneck_cause", "attributes"),
        *("gaps", "violations", "links", "interference_complete", "company_prefill", "company_decode"),
        *(f"queue_{one}" for one in ("preprocessing", "prefill", "decode", "idle")),
        *(f"stall_{one}" for one in ("count", "time", "max", "prefill", "preemption", "unexplained")),
        *("operation", "provider", "model", "revision", "dtype", "backend", "backend_version", "cache_policy"),
        *("streamed", "max_tokens", "service", "service_version"),
    }
)


def columns_asked(settings: WorkloadSettings) -> tuple[str, ...]:
    """Return the columns of ``requests`` that an analysis asks for: all others need not be written."""
    key = settings.group_by
    grouped = None if key is None else BY_ATTRIBUTE.get(SHORT.get(key, key))
    return tuple([name for name in STATED if name in _ASKED or name == grouped])


def make_facts(table: RequestTable, settings: WorkloadSettings) -> tuple[tuple[int, int] | None, dict[str, int]]:
    """Create the tables.

    Returns the first arrival and the last end of the live requests, in epoch nanoseconds, and the size of each part.
    """
    start, end = settings.window or OPEN
    live = f"role = 'whole' AND traffic = 'live' AND end_ns > {start} AND end_ns <= {end}"
    low, high = _reach(table, live)
    believed = f"arrival_ns > {_EARLIEST_NS} AND arrival_ns >= {low} AND end_ns <= {high}"
    first, last = table.one(
        f"SELECT min(arrival_ns), max(end_ns) FROM requests WHERE {live} AND {believed}",
    )
    table.connection.execute(_facts_sql(settings, believed, first, last))
    parts = dict(table.connection.execute("SELECT part, count(*) FROM facts GROUP BY part").fetchall())
    many = sum(parts.values()) > COPIED
    live, rows = " WHERE part = 'live'", " WHERE rowid IN (SELECT id FROM live)"
    if many and parts.keys() == {"live"}:
        live = rows = ""
    table.connection.execute(f"CREATE {'VIEW' if many else 'TABLE'} live AS SELECT * FROM facts{live}")
    table.connection.execute(f"CREATE VIEW live_rows AS SELECT rowid AS id, * FROM requests{rows}")
    table.connection.execute(f"CREATE TABLE crowd AS {crowded('live', '0')}")
    table.connection.execute("CREATE VIEW live_crowd AS SELECT live.*, level FROM live JOIN crowd USING (id)")
    return (None if first is None else (first, last)), parts


def _reach(table: RequestTable, live: str) -> tuple[int, int]:
    """Return how early an arrival and how late an end may be: a year from the middle of all ends."""
    # The lower of two middles, so that of two requests the one whose end lies in the far future is the wrong one.
    (middle,) = table.one(
        f"SELECT quantile_disc(end_ns, 0.5) FROM requests WHERE {live} AND arrival_ns > {_EARLIEST_NS}"
    )
    return (0, OPEN[1]) if middle is None else (max(middle - YEAR, 0), min(middle + YEAR, OPEN[1]))


def _facts_sql(settings: WorkloadSettings, believed: str, first: int | None, last: int | None) -> str:
    start, end = settings.window or OPEN
    # The limit of a year keeps a wrong clock from standing in the window's level for ever.
    passing = f"end_ns > {end} AND end_ns < {min(end + YEAR, OPEN[1])} AND arrival_ns < {end}"
    return f"""
CREATE VIEW facts AS WITH told AS (
  SELECT requests.rowid AS id, *, {believed} AS believed,
    coalesce(share_queue, share_preprocessing, share_prefill, share_decode) IS NOT NULL AS whole
  FROM requests
), timed AS (
  SELECT *, {_clipped("arrival_ns", first, last)} AS start_ns, {_clipped("end_ns", first, last)} AS stop_ns FROM told
)
SELECT id, {_PLAIN}, believed, whole, arrival_ns, end_ns, start_ns, stop_ns,
  (start_ns - {first or 0}) * 1e-9 AS start, (stop_ns - {first or 0}) * 1e-9 AS stop,
  CASE WHEN end_ns <= {start} OR end_ns > {end} THEN
      CASE WHEN {passing} AND role = 'whole' AND traffic = 'live' THEN 'passing' ELSE 'outside' END
    WHEN role <> 'whole' THEN 'role' WHEN traffic <> 'live' THEN 'apart' ELSE 'live' END AS part,
  CASE WHEN role <> 'whole' THEN role ELSE traffic END AS label,
  outcome = 'completed' AS completed, outcome IN {TERMINATED} AS terminated,
  outcome = 'failed' AND coalesce(reason, '') IN ('queue_full', 'rate_limited') AS rejected,
  CASE WHEN outcome = 'completed' THEN e2e END AS e2e_completed,
  CASE WHEN stall_prefill >= 0 AND decode_time > 0 THEN stall_prefill / decode_time END AS stall_share,
  {", ".join(f"CASE WHEN whole THEN {metric} END AS stage_{stage}" for stage, metric in STAGE_METRIC.items())},
  CASE WHEN outcome IN {TERMINATED} THEN {_met(settings.slo)} END AS slo_met,
  coalesce(nullif(workload, ''), CASE WHEN input_tokens IS NULL THEN '{UNKNOWN_CLASS}'
    WHEN input_tokens >= {int(settings.long_context)} THEN '{LONG_CLASS}' ELSE '{SHORT_CLASS}' END) AS class,
  {_group(settings.group_by)} AS grp
FROM timed"""


def _clipped(column: str, first: int | None, last: int | None) -> str:
    """Return a time, moved into the span of the believed ones: one wrong clock would make all others arrive at once."""
    if first is None:
        return column
    return f"CASE WHEN believed THEN {column} ELSE least(greatest({column}, {first}), {last}) END"


def _met(slo: Slo | None) -> str:
    """Return whether a request met the objectives, as :meth:`Slo.judge` says of one; NULL if nobody judged."""
    if slo is None:
        return "slo_met"
    limits = {"ttft": slo.ttft, "tpot": slo.tpot, "e2e": slo.e2e}
    # An objective whose figure is unknown is not judged.
    met = [f"coalesce({name} <= {limit!r}, true)" for name, limit in limits.items() if limit is not None]
    return " AND ".join(["outcome = 'completed'", *met])


def _group(key: str | None) -> str:
    if key is None:
        return "NULL"
    attribute = SHORT.get(key, key)
    column = BY_ATTRIBUTE.get(attribute)
    kept = f"attributes->>{quoted(attribute)}"
    if column is None:
        return f"coalesce({kept}, '{UNTOLD}')"
    # A value of another type than its column's is among the other attributes.
    return f"coalesce({as_told(column)}, {kept}, '{UNTOLD}')"


def as_told(column: str) -> str:
    """Return a column as the text that Python gives its value."""
    if _TYPES[column] == "BOOLEAN":
        return f"CASE WHEN {column} THEN 'True' WHEN NOT {column} THEN 'False' END"
    return f"{column}::VARCHAR"


def crowded(source: str, key: str) -> str:
    """Return a query over facts: for each, how many others of the same key were in flight on arrival (``level``).

    ``key``: best a number, for texts take three times as long to be sorted.
    ``after`` is the time since the newest end before the arrival, ``between`` the time since the arrival before it.
    """
    return f"""
WITH chosen AS (SELECT id, {key} AS key, start_ns, stop_ns, start, stop FROM {source}),
ends AS (SELECT key, stop_ns, count(*) OVER (PARTITION BY key ORDER BY stop_ns) AS gone FROM chosen)
SELECT id, one.key AS key, start, stop, rank() OVER earlier - 1 - coalesce(gone, 0) AS level,
  (start_ns - ends.stop_ns) * 1e-9 AS after, (start_ns - lag(start_ns) OVER earlier) * 1e-9 AS between
FROM chosen AS one ASOF LEFT JOIN ends ON one.key = ends.key AND start_ns >= ends.stop_ns
WINDOW earlier AS (PARTITION BY one.key ORDER BY start_ns)"""
