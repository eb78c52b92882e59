"""The plots of a report, each from a query over its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from otel_lifecycle._analysis.document import Document
from otel_lifecycle._analysis.figures import Figures, histogram
from otel_lifecycle._analysis.workload import Workload
from otel_lifecycle._draw import bars, distributions, overtime
from otel_lifecycle._draw.bars import BarRow, Piece
from otel_lifecycle._table.requests.model import STAGE_METRIC, STAGES
from otel_lifecycle._table.store import RequestTable
from otel_lifecycle._table.text import plural, seconds, shorten, text
from otel_lifecycle._trace.charts import stages_waterfall

BARS: Final = 48
"""Bars of a histogram."""
COLUMNS: Final = 90
"""Columns of a plot over time."""
# An SVG of more elements opens slowly.
DOTS: Final = 1500
"""Dots of a scatter plot, at most."""
GAPS: Final = "(SELECT unnest(gaps) AS gap FROM live_rows WHERE gaps IS NOT NULL)"

_COLUMNS_SQL: Final = f"""
SELECT least(floor(start / {{width}})::INT, {COLUMNS - 1}) AS slot, count(*) AS n,
  {", ".join(f"avg(coalesce({STAGE_METRIC[stage]}, 0)) AS {stage}" for stage in STAGES)}
FROM live WHERE whole AND believed GROUP BY slot
"""
_LEVELS_SQL: Final = f"""
SELECT slot, sum(least(stop, (slot + 1) * {{width}}) - greatest(start, slot * {{width}})) / {{width}}
FROM range({COLUMNS}) AS slots(slot) JOIN facts ON start < (slot + 1) * {{width}} AND stop > slot * {{width}}
WHERE part IN ('live', 'passing') AND believed GROUP BY slot
"""


def distribution(table: RequestTable, values: str, name: str, figures: Figures, source: str = "live") -> Markup:
    """A histogram of a column with p50, p95 and p99 marked."""
    edges, counts = histogram(table, values, source, BARS)
    marks = {key: figures[key] for key in ("p50", "p95", "p99")}
    return distributions.histogram(edges, counts, marks, f"{name}, {plural(figures['count'], 'sample')}")


def over_time(workload: Workload) -> Markup:
    """Mean time in each stage of the requests that arrived then, above how many were in flight."""
    if workload.first_ns is None or not workload.seconds:
        return Markup("")
    start, width = workload.first_ns * 1e-9, workload.seconds / COLUMNS
    found = {row["slot"]: row for row in workload.table.rows(_COLUMNS_SQL.format(width=width))}
    levels = dict(workload.table.connection.execute(_LEVELS_SQL.format(width=width)).fetchall())
    # A column without requests stays empty.
    means = {stage: [found[at][stage] if at in found else 0.0 for at in range(COLUMNS)] for stage in STAGES}
    counts = [found[at]["n"] if at in found else 0 for at in range(COLUMNS)]
    drawn = overtime.stages_over_time(start, width, means, counts, when="time of arrival")
    return drawn + overtime.level_over_time(start, width, [levels.get(at, 0.0) for at in range(COLUMNS)])


def slowest(requests: Sequence[Mapping[str, Any]]) -> list[Markup]:
    """The stages of the slowest requests, from their own arrival on; each leads to its waterfall."""
    rows = [_slow_row(request) for request in requests if request["e2e"]]
    drawn = bars.durations(rows, "stages of the slowest requests")
    return [bars.legend((stage, stage) for stage in (*STAGES, "other")) + drawn] if requests else []


def waterfalls(requests: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """The waterfall of each of them as (anchor, name, chart)."""
    return [(_anchor(one), short_name(one), str(_waterfall(one))) for one in requests]


def _anchor(request: Mapping[str, Any]) -> str:
    # Span ids are hex, so they are safe as anchors.
    return f"request-{request['span_id']}"


def _waterfall(request: Mapping[str, Any]) -> Markup:
    return stages_waterfall(
        request["name"], {stage: request[metric] for stage, metric in STAGE_METRIC.items()}, request["e2e"]
    )


def _slow_row(request: Mapping[str, Any]) -> BarRow:
    at, pieces = 0.0, []
    for stage, length in stage_lengths(request):
        tip = f"{stage} {seconds(length)}\nfrom {seconds(at)} to {seconds(at + length)}"
        pieces.append(Piece(start=at, end=at + length, shade=stage, tip=tip))
        at += length
    return BarRow(name=short_name(request), figure=seconds(request["e2e"]), pieces=pieces, href=f"#{_anchor(request)}")


def short_name(request: Mapping[str, Any]) -> str:
    """Return what a request is called in a chart: its id, or the beginning of its trace's."""
    return shorten(text(request["request_id"] or request["trace_id"][:12]), 34)


def stage_lengths(request: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return (stage or ``other``, seconds) along a request; what no stage accounts for is ``other``."""
    told = [(stage, request[metric]) for stage, metric in STAGE_METRIC.items() if request[metric]]
    rest = (request["e2e"] or 0.0) - sum(length for _, length in told)
    # Rounding of a float nanosecond is not a stage.
    return [*told, ("other", rest)] if rest > 1e-6 else told


def against_length(table: RequestTable) -> Markup | None:
    """TTFT against the length of the prompt, request by request; None if too few requests have both."""
    points = table.connection.execute(
        "SELECT input_tokens::DOUBLE, ttft FROM live WHERE input_tokens IS NOT NULL AND ttft IS NOT NULL"
        # By a hash: the first ones would all be from the beginning of the run.
        f" ORDER BY hash(span_id), id LIMIT {DOTS}"
    ).fetchall()
    # Fewer points or lengths suggest a trend that is not there.
    if len(points) < 20 or len({length for length, _ in points}) < 5:
        return None
    return distributions.against(points, f"TTFT by input tokens, {plural(len(points), 'request')}")


def _mix(_: Workload, report: Document) -> list[Markup]:
    """Two bars: how requests ended, and what the largest stage of the completed ones was."""
    counts = report["requests"]
    outcomes = {name: count for name, count in counts.items() if name not in {"total", "terminated"} and count}
    drawn = bars.mix([("outcome", outcomes), ("bottleneck", report["stages"]["bottlenecks"])], "mix of requests")
    return [drawn] if counts["total"] else []


def _stages(workload: Workload, report: Document) -> list[Markup]:
    return [over_time(workload)] if report["stages"]["count"] else []


def _latency(workload: Workload, report: Document) -> list[Markup]:
    told, table = report["latency"], workload.table
    drawn = [
        distribution(table, name, title, told[name])
        for name, title in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e_completed", "E2E of completed"))
        if told[name]["count"]
    ]
    within = told["itl_within_requests"]["itl_p99"]
    if told["itl"]["relative_error"] is not None:
        drawn.insert(2, distribution(table, "gap", "ITL", told["itl"], GAPS))
    # Without single gaps the p99 of each request is the next best; it is named so in the title.
    elif within["count"]:
        drawn.insert(2, distribution(table, "itl_p99", "ITL, p99 of a request", within))
    scatter = against_length(table)
    return [*drawn, scatter] if scatter else drawn


CHARTS: Final[Mapping[str, Callable[[Workload, Document], list[Markup]]]] = {
    "mix": _mix,
    "stages": _stages,
    "latency": _latency,
}
"""Section of a report -> its charts."""
