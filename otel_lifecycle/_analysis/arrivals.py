"""How requests arrive, and how many are in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from otel_lifecycle._analysis.facts import SHORT_CLASS, UNKNOWN_CLASS, crowded
from otel_lifecycle._table.store import RequestTable

BURSTY: Final = 4.0
"""Variance over mean of arrivals: 1 if they are independent; 4 is a clear clump, even in ten intervals."""
# Below it arrivals are more even than chance: a timer or a rate limiter.
REGULAR: Final = 0.4
BATCH_SPAN: Final = 0.05
"""A batch: nine tenths of the arrivals lie within this part of the run."""
AT_ONCE: Final = 0.1
"""A client that sends again at once does so within this part of the time between two arrivals."""
VARIES: Final = 0.5
"""A client with a think time: its spread is at most this part of the spread of the time between arrivals."""
FEW: Final = 20
"""With fewer arrivals no pattern is stated."""
INTERVALS: Final = 2048
"""Intervals in which arrivals are counted, at most; each is as long as four arrivals take, or longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """The pattern: ``at once``, ``bursty``, ``independent``, ``regular``, ``closed loop`` or ``too few to tell``.

    ``dispersion``: variance over mean of the arrivals per interval; 1 is what independent arrivals give, 0 a metronome.
    None where there are fewer than ten intervals.
    """

    pattern: str
    dispersion: float | None = None


NO_ARRIVALS: Final = Arrivals(pattern="too few to tell")

_MOMENTS: Final = """
SELECT key, count(*) AS total, quantile_cont(start, [0.05, 0.95]) AS middle, max(stop) - min(start) AS length,
  quantile_cont(level::DOUBLE, [0.1, 0.95]) AS level, count(after) AS followed, avg(between) AS between,
  quantile_cont(after, [0.25, 0.5, 0.75]) AS after, quantile_cont(between, [0.25, 0.75]) AS usual
FROM {crowd} GROUP BY key
"""
_DISPERSION: Final = """
-- A time of a wrong clock is not an arrival; moved to an end of the run, it would look like a burst there.
WITH chosen AS (SELECT {key} AS key, start FROM {source} WHERE believed),
grid AS (
  SELECT key, min(start) AS first, max(start) - min(start) AS length, least({intervals}, count(*) // 4) AS n FROM chosen
  GROUP BY key HAVING count(*) // 4 >= 10 AND max(start) > min(start)
), counts AS (
  SELECT key, n, count(*) AS c FROM chosen JOIN grid USING (key)
  GROUP BY key, n, least(floor((start - first) / length * n), n - 1)
)
SELECT key, (sum(c * c) / n - (sum(c) / n) ** 2) / (sum(c) / n) FROM counts GROUP BY key, n
"""


def arrivals(table: RequestTable) -> Arrivals:
    """Return how the live requests arrive."""
    return arrivals_of(table, "live", "0", "crowd").get(0, NO_ARRIVALS)


def arrivals_of(table: RequestTable, source: str, key: str, crowd: str | None = None) -> dict[Any, Arrivals]:
    """Return key -> how its requests arrive; ``crowd``: what is known of their company."""
    sql = _DISPERSION.format(key=key, source=source, intervals=INTERVALS)
    dispersions = dict(table.connection.execute(sql).fetchall())
    crowd = crowd or f"({crowded(source, key)})"
    return {
        row["key"]: Arrivals(pattern=_pattern(row, dispersions.get(row["key"])), dispersion=dispersions.get(row["key"]))
        for row in table.rows(_MOMENTS.format(crowd=crowd))
    }


def _pattern(row: dict[str, Any], dispersion: float | None) -> str:
    if row["total"] < FEW:
        return NO_ARRIVALS.pattern
    early, late = row["middle"]
    # Quantiles and not the extremes, so that a few stragglers do not hide a batch.
    if late - early <= BATCH_SPAN * max(row["length"], 1e-9):
        return "at once"
    # Clumps also see a constant number in flight: 0, once the last clump has ended.
    clumped = dispersion is not None and dispersion >= BURSTY
    if not clumped and _is_closed_loop(row):
        return "closed loop"
    if dispersion is None:
        return NO_ARRIVALS.pattern
    return "bursty" if clumped else "regular" if dispersion <= REGULAR else "independent"


def _is_closed_loop(row: dict[str, Any]) -> bool:
    """Return whether a new request comes only when one has ended: a constant number in flight, except on the ramps.

    A very low load or a fixed rate keeps the level as well, but its arrivals do not follow the ends.
    """
    # The low quantile cuts the ramps at both ends of the run.
    low, high = row["level"]
    return bool(high - low <= max(1.0, 0.1 * high)) and _follow(row)


def _follow(row: dict[str, Any]) -> bool:
    """Return whether arrivals follow ends: at once, or after a time that varies less than from arrival to arrival."""
    if row["followed"] < FEW // 2:
        return False
    early, middle, late = row["after"]
    if middle <= AT_ONCE * row["between"]:
        return True
    # Interquartile ranges: one pause of the client must not decide.
    usual = row["usual"]
    return bool(late - early <= VARIES * (usual[1] - usual[0]))


def class_name(name: str, pattern: str) -> str:
    """Return the name of a class once its arrivals are known; a label given by the server stays."""
    if name not in {SHORT_CLASS, UNKNOWN_CLASS}:
        return name
    return {"at once": "batch", "bursty": "bursty"}.get(pattern, name)


_IN_FLIGHT: Final = """
WITH stays AS (
  -- A request that ended as it arrived was in flight at that instant.
  SELECT start_ns AS came, greatest(stop_ns, start_ns + 1) AS went FROM facts
  WHERE part IN ('live', 'passing') AND believed
), moves AS (SELECT came AS moment, 1 AS step FROM stays UNION ALL SELECT went, -1 FROM stays),
levels AS (SELECT moment, sum(step) OVER (ORDER BY moment, step ROWS UNBOUNDED PRECEDING) AS level FROM moves)
SELECT (SELECT sum(least(greatest(went, {start}), {end}) - least(greatest(came, {start}), {end})) FROM stays),
  (SELECT count(*) FROM stays WHERE came <= {start} AND went > {start}),
  (SELECT max(level) FROM levels WHERE moment >= {start} AND moment <= {end})
"""


def in_flight(table: RequestTable, start: int, end: int) -> tuple[float | None, int | None]:
    """Return the mean and the peak number in flight between two times, in epoch nanoseconds; no mean without requests.

    The peak counts what was in flight at ``start`` and whatever arrived from then on, up to ``end``.
    """
    spent, at_start, peak = table.one(_IN_FLIGHT.format(start=start, end=end))
    if spent is None:
        return None, None
    # The area under the level is the sum of all stays, so no grid is needed for the mean.
    return (float(spent) / (end - start) if end > start else None), int(max(at_start, peak or 0))
