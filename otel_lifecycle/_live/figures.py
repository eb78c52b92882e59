"""The figures of a time range: what the live page shows above its list."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

from otel_lifecycle._core.workload import quantile
from otel_lifecycle._live.row import QUEUE_CAUSES, STALL_CAUSES, LiveRow
from otel_lifecycle._table.requests.model import STAGES

LATENCIES: Final = ("ttft", "tpot", "e2e")
COLUMNS: Final = 60
"""Columns of the chart over time, at most."""
# The page is updated once a second, so a narrower column would show the update and not the load.
NARROWEST_S: Final = 1.0
# The table shows the most frequent rules; every violation stays on its request's own page.
MAX_RULES: Final = 20


class Latency(TypedDict):
    """Quantiles in seconds of ``count`` samples; None without samples."""

    count: int
    p50: float | None
    p95: float | None


class BrokenRule(TypedDict):
    """Violations alike: how many, in how many requests, and the number of the newest of those."""

    kind: str
    state: str | None
    event: str | None
    rule: str
    count: int
    requests: int
    number: int


class Figures(TypedDict):
    """The figures of one range; ``rate`` in requests per second, times in seconds, None where there is no evidence."""

    total: int
    outcomes: dict[str, int]
    success: float | None
    rate: float | None
    latency: dict[str, Latency]
    bottlenecks: dict[str, int]
    queue: dict[str, float] | None
    queue_of: int
    stall: dict[str, float] | None
    stall_of: int
    decode: float
    rules: list[BrokenRule]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """A range of end times in epoch seconds: after ``since``, up to ``until``."""

    since: float
    until: float

    def holds(self, row: LiveRow) -> bool:
        """Return whether a request ended in the range."""
        return self.since < row.ended <= self.until


def figures_of(rows: Sequence[LiveRow], chosen: TimeRange) -> Figures:
    """Return the figures of the rows, which all lie within the range."""
    outcomes = Counter(row.outcome for row in rows)
    terminated = len(rows) - outcomes["incomplete"]
    queue, queue_of = _by_cause(QUEUE_CAUSES, [row.queue_by for row in rows])
    stall, stall_of = _by_cause(STALL_CAUSES, [row.stall_by for row in rows])
    # A range may begin long before the first request; an empty time before it would lower the rate.
    first = max(chosen.since, min((row.ended for row in rows), default=chosen.since))
    length = chosen.until - first
    return {
        "total": len(rows),
        "outcomes": dict(outcomes),
        "success": outcomes["completed"] / terminated if terminated else None,
        # Below a second the quotient depends on when the page happens to ask.
        "rate": terminated / length if rows and length >= 1 else None,
        "latency": {name: _latency(name, rows) for name in LATENCIES},
        "bottlenecks": dict(Counter(row.bottleneck for row in rows if row.bottleneck)),
        "queue": queue,
        "queue_of": queue_of,
        "stall": stall,
        "stall_of": stall_of,
        # The share of decode time lost to stalls is of the same requests that tell their stalls.
        "decode": sum(row.stages[3] or 0.0 for row in rows if row.stall is not None),
        "rules": _rules(rows),
    }


def _latency(name: str, rows: Iterable[LiveRow]) -> Latency:
    values = sorted(row.seconds[name] for row in rows if name in row.seconds)
    return {"count": len(values), "p50": quantile(values, 0.5), "p95": quantile(values, 0.95)}


def _by_cause(causes: Sequence[str], parts: Iterable[tuple[float | None, ...]]) -> tuple[dict[str, float] | None, int]:
    """Return the sums by cause, and of how many requests; None if no request has the split."""
    told = [one for one in parts if any(value is not None for value in one)]
    if not told:
        return None, 0
    columns = zip(*told, strict=True)
    sums = {cause: sum(value or 0.0 for value in column) for cause, column in zip(causes, columns, strict=True)}
    return sums, len(told)


def _rules(rows: Iterable[LiveRow]) -> list[BrokenRule]:
    found: dict[tuple[str, str | None, str | None], BrokenRule] = {}
    for row in rows:
        for one in row.rules:
            new: BrokenRule = {
                "kind": one.kind,
                "state": one.state,
                "event": one.event,
                "rule": one.rule,
                "count": 0,
                "requests": 0,
                "number": row.number,
            }
            known = found.setdefault((one.kind, one.state, one.event), new)
            known["count"] += one.count
            known["requests"] += 1
            # Rows come oldest first, so the last number written is that of the newest request.
            known["number"] = row.number
    return sorted(found.values(), key=lambda one: -one["count"])[:MAX_RULES]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageColumns:
    """Mean seconds in each stage, and the number of requests, by the time they ended; ``width`` in seconds."""

    start: float
    width: float
    means: Mapping[str, Sequence[float]]
    counts: Sequence[int]


def stage_columns(rows: Sequence[LiveRow], chosen: TimeRange) -> StageColumns | None:
    """Return the stage breakdown over time of completed requests with every stage; None if there are none."""
    known = [row for row in rows if row.outcome == "completed" and None not in row.stages]
    if not known:
        return None
    # A range excludes its start, so the chart begins a little before the first request.
    since = max(chosen.since, min(row.ended for row in known) - 1e-3)
    columns = max(min(COLUMNS, math.ceil((chosen.until - since) / NARROWEST_S)), 1)
    width = (chosen.until - since) / columns
    counts = [0] * columns
    sums = {stage: [0.0] * columns for stage in STAGES}
    for row in known:
        # A request that ended exactly at ``until`` belongs to the last column.
        at = min(int((row.ended - since) / width), columns - 1)
        counts[at] += 1
        for stage, length in zip(STAGES, row.stages, strict=True):
            sums[stage][at] += length or 0.0
    means = {
        stage: [total / count if count else 0.0 for total, count in zip(column, counts, strict=True)]
        for stage, column in sums.items()
    }
    return StageColumns(start=since, width=width, means=means, counts=counts)
