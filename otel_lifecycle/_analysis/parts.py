"""The same figures for each class, group or kind of traffic."""

from __future__ import annotations

from typing import Any, Final

from otel_lifecycle._analysis.arrivals import NO_ARRIVALS, arrivals_of
from otel_lifecycle._analysis.figures import distributions
from otel_lifecycle._table.requests.model import STAGES
from otel_lifecycle._table.store import RequestTable, quoted
from otel_lifecycle.semconv import OTHER, OUTCOMES

MAX_PARTS: Final = 50
"""Parts that stand by themselves, the largest; the rest is one, ``_OTHER``."""
COLUMNS: Final = ("ttft", "tpot", "e2e", "e2e_completed", "input_tokens", "output_tokens")

_COUNTS: Final = f"""
SELECT part_name::VARCHAR AS title, count(*) AS total, count(*) FILTER (terminated) AS terminated,
  {", ".join(f"count(*) FILTER (outcome = '{outcome}') AS {outcome}" for outcome in OUTCOMES)},
  {", ".join(f"avg(coalesce(share_{stage}, 0)) FILTER (WHERE whole) AS {stage}" for stage in STAGES)}
FROM part_rows GROUP BY part_name ORDER BY total DESC, title
"""
_BOTTLENECKS: Final = """
SELECT part_name, bottleneck, count(*) AS n FROM part_rows WHERE completed AND bottleneck IS NOT NULL
GROUP BY part_name, bottleneck ORDER BY n DESC, min(id)
"""


def parts(table: RequestTable, source: str, key: str) -> list[dict[str, Any]]:
    """Return the short report of each part of some facts, the largest first; ``key``: the column of its name."""
    largest = f"SELECT {key} FROM {source} GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT {MAX_PARTS + 1}"
    names = [name for (name,) in table.connection.execute(largest).fetchall()]
    if not names:
        return []
    # An enumeration, for it is compared as a number.
    kind = f"ENUM ({', '.join(dict.fromkeys([*map(quoted, names[:MAX_PARTS]), quoted(OTHER)]))})"
    table.connection.execute(
        f"CREATE OR REPLACE TEMP VIEW part_rows AS SELECT *,"
        f" coalesce(TRY_CAST({key} AS {kind}), CAST('{OTHER}' AS {kind})) AS part_name FROM {source}"
    )
    counts = table.rows(_COUNTS)
    figures = distributions(table, COLUMNS, "part_rows", "part_name")
    patterns = arrivals_of(table, "part_rows", "part_name")
    bottlenecks: dict[str, dict[str, int]] = {}
    for name, bottleneck, number in table.connection.execute(_BOTTLENECKS).fetchall():
        bottlenecks.setdefault(name, {})[bottleneck] = number
    return [
        {
            "name": row["title"],
            **{count: row[count] for count in ("total", "terminated", *OUTCOMES)},
            "success_rate": row["completed"] / row["terminated"] if row["terminated"] else None,
            **figures[row["title"]],
            "bottlenecks": bottlenecks.get(row["title"], {}),
            "mean_shares": {stage: row[stage] for stage in STAGES if row[stage] is not None},
            "arrivals": patterns.get(row["title"], NO_ARRIVALS).pattern,
            "exact": True,
        }
        for row in counts
    ]
