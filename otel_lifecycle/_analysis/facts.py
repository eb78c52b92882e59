"""The flat tables that the analysis reads: one row per request, with what belongs together and what is believed.

``facts`` holds every request; its column ``part`` is ``live``, ``apart`` (other traffic), ``role`` (half of a
disaggregated request), ``passing`` (ended after the window, in flight within it) or ``outside``.  ``live`` adds, for
the requests of that part, how many others were in flight on arrival.  ``live_rows`` are their rows in ``requests``.
"""

from __future__ import annotations

from typing import Final

from otel_lifecycle._analysis.settings import OPEN, WorkloadSettings
from otel_lifecycle._core.slo import Slo
from otel_lifecycle._table.requests.model import STAGE_METRIC
from otel_lifecycle._table.schema import BY_ATTRIBUTE, COLUMNS, SHORT
from otel_lifecycle._table.sources.plausibility import EARLIEST
from otel_lifecycle._table.store import RequestTable, quoted

YEAR: Final = 366 * 86_400 * 10**9
"""Nanoseconds from the middle of a run beyond which a time is a wrong clock."""
UNTOLD: Final = "(none)"
"""The group of the requests without the attribute."""
SHORT_CLASS: Final = "interactive short"
LONG_CLASS: Final = "long context"
UNKNOWN_CLASS: Final = "unknown length"
TERMINATED: Final = ("completed", "cancelled", "timed_out", "failed")

_EARLIEST_NS: Final = int(EARLIEST) * 10**9
_TYPES: Final = {column.name: column.type for column in COLUMNS}
_PLAIN: Final = (
    "trace_id, span_id, request_id, name, outcome, failure_stage, reason, bottleneck, queue_wait, preprocessing,"
    " prefill, decode_time, ttft, tpot, token_span, e2e, preempted, preemptions, itl_p50, itl_p95, itl_p99, itl_max,"
    " share_queue, share_preprocessing, share_prefill, share_decode, client_disconnected, legal, wasted_tokens,"
    " input_tokens, output_tokens, cached_tokens, batch_size, concurrency"
)


def make_facts(table: RequestTable, settings: WorkloadSettings) -> tuple[int, int] | None:
    """Create the tables; return the first arrival and the last end of the live requests, in epoch nanoseconds."""
    start, end = settings.window or OPEN
    live = f"role = 'whole' AND traffic = 'live' AND end_ns > {start} AND end_ns <= {end}"
    low, high = _reach(table, live)
    believed = f"arrival_ns > {_EARLIEST_NS} AND arrival_ns >= {low} AND end_ns <= {high}"
    first, last = table.one(
        f"SELECT min(arrival_ns), max(end_ns) FROM requests WHERE {live} AND {believed}",
    )
    table.connection.execute(_facts_sql(settings, believed, first, last))
    crowd = crowded("facts WHERE part = 'live'", "''")
    table.connection.execute(
        f"CREATE TABLE live AS SELECT facts.*, level, after, between FROM facts JOIN ({crowd}) USING (id)"
    )
    table.connection.execute("CREATE VIEW live_rows AS SELECT * FROM requests WHERE rowid IN (SELECT id FROM live)")
    return None if first is None else (first, last)


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

    ``after`` is the time since the newest end before the arrival, ``between`` the time since the arrival before it.
    """
    return f"""
WITH chosen AS (SELECT id, {key} AS key, start_ns, stop_ns, start, stop FROM {source}),
moves AS (
  SELECT key, start_ns AS moment, 1 AS kind, id FROM chosen UNION ALL SELECT key, stop_ns, 0, NULL FROM chosen
), counted AS (
  SELECT id, sum(1 - kind) OVER past AS gone, max(CASE WHEN kind = 0 THEN moment END) OVER past AS newest
  FROM moves WINDOW past AS (PARTITION BY key ORDER BY moment, kind ROWS UNBOUNDED PRECEDING)
)
SELECT id, key, start, stop, rank() OVER earlier - 1 - gone AS level, (start_ns - newest) * 1e-9 AS after,
  (start_ns - lag(start_ns) OVER earlier) * 1e-9 AS between
FROM chosen JOIN counted USING (id) WINDOW earlier AS (PARTITION BY key ORDER BY start_ns)"""
