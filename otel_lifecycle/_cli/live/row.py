"""One row of the live page: the data of a finished request for lists, figures and filters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from otel_lifecycle import semconv
from otel_lifecycle._cli.requests.model import STAGE_METRIC, STAGES, SeenRequest
from otel_lifecycle._cli.violations import Violated, findings

TENANT: Final = (semconv.TENANT, "tenant.id", "enduser.id")
"""Attributes in which servers write the tenant of a request; the first one present counts."""
QUEUE_CAUSES: Final = {
    "preprocessing": semconv.QUEUE_BESIDE_PREPROCESSING,
    "prefill": semconv.QUEUE_BESIDE_PREFILL,
    "decode": semconv.QUEUE_BESIDE_DECODE,
    "idle": semconv.QUEUE_IDLE,
}
STALL_CAUSES: Final = {
    "prefill": semconv.STALL_PREFILL,
    "preemption": semconv.STALL_PREEMPTION,
    "unexplained": semconv.STALL_UNEXPLAINED,
}
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


def row_of(number: int, request: SeenRequest) -> LiveRow:
    """Return the row of a request; ``number`` is larger than that of every row before."""
    own = request.attributes
    stages = tuple(request.seconds.get(STAGE_METRIC[stage]) for stage in STAGES)
    rules = tuple(findings(request))
    return LiveRow(
        number=number,
        trace_id=request.trace_id,
        span_id=request.span_id,
        arrived=request.start_ns * 1e-9,
        ended=request.end_ns * 1e-9,
        outcome=request.outcome,
        bottleneck=request.bottleneck,
        stages=stages,
        seconds=request.seconds,
        queue_by=tuple(_figure(own.get(name)) for name in QUEUE_CAUSES.values()),
        stall_by=tuple(_figure(own.get(name)) for name in STALL_CAUSES.values()),
        stall=_figure(own.get(semconv.STALL_TIME)),
        rules=rules,
        packed=_packed(number, request, stages, bool(rules)),
    )


def _packed(number: int, request: SeenRequest, stages: tuple[float | None, ...], broke: bool) -> bytes:
    """Return the row as a JSON array, in the order of ``FIELDS`` in live.js; times in milliseconds."""
    own, e2e = request.attributes, request.seconds.get("e2e")
    # Time that no known stage explains is drawn as a piece of its own, never added to a stage.
    rest = (e2e or 0.0) - sum(length or 0.0 for length in stages)
    # Encoded once per request, not once per page and tick.
    return orjson.dumps(
        [
            number,
            request.trace_id,
            request.span_id,
            _text(own.get(semconv.REQUEST_ID)),
            request.name,
            _text(own.get(semconv.GEN_AI_REQUEST_MODEL)),
            _text(next((own[name] for name in TENANT if own.get(name) is not None), None)),
            request.start_ns // 1_000_000,
            (request.end_ns - request.start_ns) // 1000 / 1000,
            request.outcome,
            request.bottleneck,
            [_milliseconds(length) for length in (*stages, rest if rest > NOISE else None)],
            _milliseconds(request.seconds.get("ttft")),
            _milliseconds(request.seconds.get("tpot")),
            request.input_tokens,
            request.output_tokens,
            int(broke),
            _milliseconds(_figure(own.get(semconv.STALL_TIME))),
            _text(own.get(semconv.BOTTLENECK_CAUSE)),
        ]
    )


def _milliseconds(value: float | None) -> float | None:
    return None if value is None else round(value * 1000, 3)


def _figure(raw: Any) -> float | None:
    return float(raw) if isinstance(raw, (int, float)) and raw >= 0 else None


def _text(raw: Any) -> str | None:
    # Our own spans keep this limit; foreign ones need not.
    return None if raw is None else str(raw)[:256]
