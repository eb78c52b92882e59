"""One row of the live page: the data of a finished request for lists, figures and filters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from otel_lifecycle import semconv
from otel_lifecycle._table.requests.model import STAGE_METRIC, STAGES
from otel_lifecycle._table.row import TableRow
from otel_lifecycle._table.violations import Violated, findings

TENANT: Final = (semconv.TENANT, "tenant.id", "enduser.id")
"""Attributes in which servers write the tenant of a request; the first one present counts."""
QUEUE_CAUSES: Final = ("preprocessing", "prefill", "decode", "idle")
STALL_CAUSES: Final = ("prefill", "preemption", "unexplained")
NOISE: Final = 1e-6
"""Seconds: a smaller rest beside the stages is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRow:
    """A finished request.  Times in seconds, ``arrived`` and ``ended`` since the epoch; None is unknown.

    ``stages``: of queue, preprocessing, prefill and decode each.  ``packed``: the row as the page reads it.
    """

    number: int
    trace_id: str
    span_id: str
    arrived: float
    ended: float
    outcome: str
    bottleneck: str | None
    stages: tuple[float | None, ...]
    seconds: Mapping[str, float]
    queue_by: tuple[float | None, ...]
    stall_by: tuple[float | None, ...]
    stall: float | None
    rules: tuple[Violated, ...]
    packed: bytes


def live_row(number: int, row: TableRow, tenant: str | None) -> LiveRow:
    """Return what the page keeps of a request; ``number`` is larger than that of every row before."""
    stages = tuple(row.get(STAGE_METRIC[stage]) for stage in STAGES)
    rules = tuple(findings(row))
    return LiveRow(
        number=number,
        trace_id=row["trace_id"],
        span_id=row["span_id"],
        arrived=row["arrival_ns"] * 1e-9,
        ended=row["end_ns"] * 1e-9,
        outcome=row["outcome"],
        bottleneck=row.get("bottleneck"),
        stages=stages,
        seconds={name: row[name] for name in ("ttft", "tpot", "e2e") if name in row},
        queue_by=tuple(_figure(row.get(f"queue_{cause}")) for cause in QUEUE_CAUSES),
        stall_by=tuple(_figure(row.get(f"stall_{cause}")) for cause in STALL_CAUSES),
        stall=_figure(row.get("stall_time")),
        rules=rules,
        packed=_packed(number, row, stages, tenant, broke=bool(rules)),
    )


def tenant_of(attributes: Mapping[str, Any]) -> str | None:
    """Return the tenant that a request's attributes name."""
    return _text(next((attributes[name] for name in TENANT if attributes.get(name) is not None), None))


def _packed(number: int, row: TableRow, stages: tuple[float | None, ...], tenant: str | None, *, broke: bool) -> bytes:
    """Return the row as a JSON array, in the order of ``FIELDS`` in live.js; times in milliseconds."""
    # Time that no known stage explains is drawn as a piece of its own, never added to a stage.
    rest = (row.get("e2e") or 0.0) - sum(length or 0.0 for length in stages)
    # Encoded once per request, not once per page and tick.
    return orjson.dumps(
        [
            number,
            row["trace_id"],
            row["span_id"],
            _text(row.get("request_id")),
            row["name"],
            _text(row.get("model")),
            tenant,
            row["arrival_ns"] // 1_000_000,
            (row["end_ns"] - row["arrival_ns"]) // 1000 / 1000,
            row["outcome"],
            row.get("bottleneck"),
            [_milliseconds(length) for length in (*stages, rest if rest > NOISE else None)],
            _milliseconds(row.get("ttft")),
            _milliseconds(row.get("tpot")),
            row.get("input_tokens"),
            row.get("output_tokens"),
            int(broke),
            _milliseconds(_figure(row.get("stall_time"))),
            _text(row.get("bottleneck_cause")),
        ]
    )


def _milliseconds(value: float | None) -> float | None:
    return None if value is None else round(value * 1000, 3)


def _figure(raw: Any) -> float | None:
    return float(raw) if isinstance(raw, (int, float)) and raw >= 0 else None


def _text(raw: Any) -> str | None:
    # Our own spans keep this limit; foreign ones need not.
    return None if raw is None else str(raw)[:256]
