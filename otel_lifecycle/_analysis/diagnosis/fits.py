"""Correlation and a straight line with p-values: the statistics that the rules need, over columns of ``live``.

The p-values are Fisher's (the arctangent of a correlation is nearly normal from some twenty samples on, and fewer are
not diagnosed), so that a report does not wait seconds for a statistics library to load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from otel_lifecycle._table.store import RequestTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The line of least squares through ``count`` points.

    ``r``: the correlation; ``p``: its probability without any relation.  ``distinct``: different values of x;
    ``reach``: how far y rises from the 5th to the 95th percentile of x.
    """

    count: int
    distinct: int
    slope: float
    intercept: float
    r: float
    p: float
    reach: float


def fitted_line(table: RequestTable, x: str, y: str) -> Line | None:
    """Return the line through the requests that have both columns; None where one of them does not vary."""
    count, distinct, slope, intercept, r, ends = table.one(
        f"SELECT count(*), count(DISTINCT {x}), regr_slope({y}, {x}), regr_intercept({y}, {x}), corr({x}, {y}),"
        f" quantile_cont({x}::DOUBLE, [0.05, 0.95]) FROM live WHERE {x} IS NOT NULL AND {y} IS NOT NULL"
    )
    if not (_known(slope) and _known(r)):
        return None
    return Line(
        count=count,
        distinct=distinct,
        slope=slope,
        intercept=intercept,
        r=r,
        p=_chance(r, count, 1.0),
        reach=slope * (ends[1] - ends[0]),
    )


def rank_correlation(table: RequestTable, x: str, y: str) -> tuple[int, float, float]:
    """Return the number of pairs, Spearman's correlation of ranks and its p-value; 0 and 1 without a correlation.

    Equal values share the mean of their ranks.
    """

    def ranks(column: str) -> str:
        # The first and the last rank of equal values.
        return f"(rank() OVER (ORDER BY {column}) + count(*) OVER (ORDER BY {column})) / 2"

    source = "live_crowd" if "level" in {x, y} else "live"
    count, r = table.one(
        f"SELECT count(*), corr(one, other) FROM (SELECT {ranks('x')} AS one, {ranks('y')} AS other"
        f" FROM (SELECT {x} AS x, {y} AS y FROM {source}) WHERE x IS NOT NULL AND y IS NOT NULL)"
    )
    # A constant column has no ranks.
    if not _known(r):
        return count, 0.0, 1.0
    # The variance of Spearman's by Fieller, Hartley and Pearson, Biometrika 1957.
    return count, r, _chance(r, count, 1.06)


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _chance(r: float, size: int, variance: float) -> float:
    # The formula needs more than three points; a perfect correlation has an infinite arctangent.
    if size <= 3 or not -1 < r < 1:
        return 0.0 if size > 3 else 1.0
    return math.erfc(abs(math.atanh(r)) * math.sqrt((size - 3) / variance) / math.sqrt(2))
