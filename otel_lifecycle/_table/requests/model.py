"""What every layer calls the parts of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
