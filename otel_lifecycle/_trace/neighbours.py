"""Who was beside a request: the other requests of its engine, their stages, and what each of its stalls fell beside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from otel_lifecycle._core.lifecycle import SHAPES
from otel_lifecycle._table.requests.from_span import is_request
from otel_lifecycle._table.row import TableRow, row_of_span
from otel_lifecycle._table.sources.spans import Span

# More rows than that hide the ones that matter; the culprits come first.
MAX_NEIGHBOURS: Final = 8
"""Neighbours that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourStage:
    """A stage of a neighbour, in seconds after the arrival of the request that is looked at."""

    stage: str
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourTrack:
    """Another request of the same engine and process, and its stages while the request was there.

    ``queue``, ``stall``: the seconds for which the span blames it by a link; None without a link.
    """

    name: str
    trace_id: str
    span_id: str
    stages: tuple[NeighbourStage, ...]
    queue: float | None
    stall: float | None

    @property
    def beside(self) -> float:
        """The seconds it was there; what it is blamed for comes first in the order of neighbours."""
        return sum(one.end - one.start for one in self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedStall:
    """A stall between tokens, what most of it fell beside, and whose prefill that was.

    ``cause``: prefill, preemption or unexplained; None where the source does not hold the neighbours.
    """

    token: int
    start: float
    length: float
    cause: str | None
    beside: str | None


def neighbours_of(span: Span, row: TableRow, items: Iterable[object], shape: str) -> tuple[NeighbourTrack, ...]:
    """Return the requests among ``items`` that were beside one, those it blames first."""
    blamed: dict[tuple[str, str], dict[str, float]] = {}
    for link in row.get("links") or ():
        if link["reason"] is not None and link["time"] is not None:
            blamed.setdefault((link["trace_id"], link["span_id"]), {})[link["reason"]] = link["time"]
    found: dict[tuple[str, str], NeighbourTrack] = {}
    for item in items:
        if isinstance(item, Span) and _may_compete(item, span) and is_request(item):
            key = item.trace_id, item.span_id
            other = row_of_span(item, shape)
            if key not in found and (key in blamed or _engine(other) == _engine(row)):
                found[key] = _neighbour(other, row, blamed.get(key, {}))
    # Those that were there for no time of it, such as one that arrived as this one ended, are none.
    ordered = sorted(
        (one for one in found.values() if one.stages),
        key=lambda one: (-(one.queue or 0.0) - (one.stall or 0.0), -one.beside),
    )
    return tuple(ordered[:MAX_NEIGHBOURS])


def _may_compete(other: Span, span: Span) -> bool:
    """Whether another span overlaps in time and is of the same process: cheap, asked of every span of a source."""
    if (other.trace_id, other.span_id) == (span.trace_id, span.span_id):
        return False
    process = [other.resource.get(key) == span.resource.get(key) for key in ("service.name", "service.instance.id")]
    return all(process) and other.start_ns < span.end_ns and other.end_ns > span.start_ns


def _engine(row: TableRow) -> object:
    return row.get("engine") or row.get("model")


def _neighbour(other: TableRow, row: TableRow, blame: dict[str, float]) -> NeighbourTrack:
    apart, whole = (other["arrival_ns"] - row["arrival_ns"]) * 1e-9, (row["end_ns"] - row["arrival_ns"]) * 1e-9
    stages = [
        NeighbourStage(stage=stage, start=max(start + apart, 0.0), end=min(end + apart, whole))
        for stage, start, end in _stages(other)
        if start + apart < whole and end + apart > 0
    ]
    return NeighbourTrack(
        name=str(other.get("request_id") or other["trace_id"][:8]),
        trace_id=other["trace_id"],
        span_id=other["span_id"],
        stages=tuple(stages),
        queue=blame.get("queue"),
        stall=blame.get("stall"),
    )


def _stages(row: TableRow) -> list[tuple[str, float, float]]:
    """Return each stage whose bounds are known, in seconds after the request's own arrival."""
    arrival = row["arrival_ns"]
    names = ("arrival", "admitted", "input_ready", "first_token")
    known = {name: (row[f"{name}_ns"] - arrival) * 1e-9 for name in names if f"{name}_ns" in row}
    known["terminal"] = (row["end_ns"] - arrival) * 1e-9
    found: list[tuple[str, float, float]] = []
    for stage in SHAPES.get(row.get("shape") or "default", SHAPES["default"]).stages:
        start = known.get(stage.entered)
        # One that was cut off ends with the request.
        end = known.get(stage.left, known["terminal"])
        if start is not None and end > start and not any(start < later for _, later, _ in found):
            found.append((stage.name, start, end))
    return found


def explained(
    stall: Mapping[str, Any], preempted: Sequence[tuple[float, float]], others: Sequence[NeighbourTrack], known: bool
) -> ExplainedStall:
    """Say what a stall fell beside; ``known``: whether the source holds every neighbour that is blamed."""
    begin: float = stall["start"]
    end: float = begin + stall["length"]

    def inside(start: float, stop: float) -> float:
        return max(0.0, min(stop, end) - max(start, begin))

    own = sum(inside(*part) for part in preempted)
    by_name = {
        other.name: sum(inside(one.start, one.end) for one in other.stages if one.stage == "prefill")
        for other in others
    }
    name, most = max(by_name.items(), key=lambda pair: pair[1], default=("", 0.0))
    parts = {"preemption": own, "prefill": most, "unexplained": stall["length"] - own - most}
    cause: str | None = max(parts, key=lambda part: parts[part])
    if cause == "unexplained" and not known:
        cause = None
    return ExplainedStall(**stall, cause=cause, beside=name if cause == "prefill" else None)
