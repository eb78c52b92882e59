"""A finished request, as every layer above sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from otel_lifecycle._cli.sources.spans import SpanLink

STAGES: Final = ("queue", "preprocessing", "prefill", "decode")
"""The stages in the order a request passes them; the unit of every figure here is the second."""

DURATIONS: Final = ("queue_wait", "preprocessing", "prefill", "decode_time", "ttft", "tpot", "token_span", "e2e")
"""The durations of the contract, under their names there."""

STAGE_METRIC: Final = {
    "queue": "queue_wait",
    "preprocessing": "preprocessing",
    "prefill": "prefill",
    "decode": "decode_time",
}
"""The stage -> the duration that is the time in it."""


# A float64 beyond this bound does not convert to DuckDB's BIGINT or numpy's int64.
LARGEST: Final = 2.0**63
"""Larger figures are left out: no count has more bits, and no duration is as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """Something illegal: what kind, in which state, at which event, and how many seconds after arrival."""

    kind: str
    state: str | None = None
    event: str | None = None
    offset: float | None = None
    rule: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRequest:
    """One request.

    ``attributes`` are those of the span over those of its resource.  ``seconds``: the durations that are known.
    ``shares``: of every stage, where the request completed with each boundary.  ``itl``: p50, p95, p99 and max of its
    gaps, as far as known.  ``marks``: (event, seconds after arrival) of the boundaries.  ``legal``: None where it is
    unknown (events were dropped).  ``links``: the span's.
    """

    trace_id: str
    span_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    outcome: str
    failure_stage: str | None
    reason: str | None
    seconds: Mapping[str, float]
    shares: Mapping[str, float]
    bottleneck: str | None
    dominant_share: float | None
    itl: Mapping[str, float]
    marks: tuple[tuple[str, float], ...]
    input_tokens: int | None
    output_tokens: int | None
    legal: bool | None
    breaches: tuple[Breach, ...]
    links: tuple[SpanLink, ...] = ()
