"""Counts, means and exact quantiles of columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from otel_lifecycle._table.store import RequestTable

Figures = dict[str, Any]
"""``count, mean, p50, p95, p99, max`` of a column; all but the count are None without samples."""

NONE: Final[Figures] = {"count": 0, "mean": None, "p50": None, "p95": None, "p99": None, "max": None}

# DuckDB holds all values of a quantile in memory: 8 bytes each, beside the limit of the database.
AT_ONCE: Final = 4_000_000
"""Values that one query takes quantiles of."""


def distributions(
    table: RequestTable, columns: Sequence[str], source: str = "live", key: str = "''"
) -> dict[str, dict[str, Figures]]:
    """Return key -> column -> its figures.  Quantiles are by linear interpolation, as in ``summarize_workload``."""
    found: dict[str, dict[str, Figures]] = {}
    (rows,) = table.one(f"SELECT count(*) FROM {source}")
    step = max(1, AT_ONCE // max(rows, 1))
    for at in range(0, len(columns), step):
        some = columns[at : at + step]
        for name, *figures in _query(table, some, source, key):
            parts = found.setdefault(name, {})
            for number, column in enumerate(some):
                parts[column] = _figures(*figures[4 * number : 4 * number + 4])
    return found


def _query(table: RequestTable, columns: Iterable[str], source: str, key: str) -> list[tuple[Any, ...]]:
    told = ", ".join(
        f"count({one}), avg({one}), quantile_cont({one}::DOUBLE, [0.5, 0.95, 0.99]), max({one})::DOUBLE"
        for one in columns
    )
    return table.connection.execute(f"SELECT {key}, {told} FROM {source} GROUP BY ALL").fetchall()


def _figures(count: int, mean: float | None, quantiles: list[float] | None, largest: float | None) -> Figures:
    if not count or quantiles is None:
        return dict(NONE)
    return {"count": count, "mean": mean, **dict(zip(("p50", "p95", "p99"), quantiles, strict=True)), "max": largest}


def histogram(table: RequestTable, values: str, source: str, bars: int) -> tuple[list[float], list[int]]:
    """Return the edges and counts of bars of equal ratio over the positive values; zeros are in the first."""
    low, high, zeros = table.one(
        f"SELECT min(v) FILTER (v > 0), max(v), count(*) FILTER (v <= 0) FROM (SELECT {values} AS v FROM {source})"
    )
    if low is None:
        return [1e-9, 2e-9], [zeros]
    # One bar where all values are equal: a ratio of 1 has no bars.
    bars, ratio = (bars, (high / low) ** (1 / bars)) if high > low * (1 + 1e-9) else (1, 1.01)
    found = dict(
        table.connection.execute(
            f"SELECT least(greatest(floor(ln(v / {low!r}) / ln({ratio!r}))::INT, 0), {bars - 1}) AS bar, count(*)"
            f" FROM (SELECT {values} AS v FROM {source}) WHERE v > 0 GROUP BY bar"
        ).fetchall()
    )
    counts = [found.get(bar, 0) for bar in range(bars)]
    counts[0] += zeros
    return [low * ratio**bar for bar in range(bars + 1)], counts
