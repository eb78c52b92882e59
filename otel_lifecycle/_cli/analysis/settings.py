"""How a workload is gathered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_lifecycle import semconv
from otel_lifecycle._core.outcome import DOMINANCE_THRESHOLD
from otel_lifecycle._core.slo import Slo

OPEN: Final = (-1, 2**63 - 1)
"""The two ends of a window that are open, in epoch nanoseconds: nothing lies beyond them."""
CLASS_LENGTH: Final = 4096
"""Input tokens at and above which a context is long."""
EARLIEST: Final = 946_684_800.0
"""The year 2000, in epoch seconds: an earlier time is a clock that was never set."""

SHORT: Final = {
    "model": semconv.GEN_AI_REQUEST_MODEL,
    "operation": semconv.GEN_AI_OPERATION_NAME,
    "provider": semconv.GEN_AI_PROVIDER_NAME,
    "backend": semconv.BACKEND_NAME,
    "revision": semconv.MODEL_REVISION,
    "dtype": semconv.MODEL_DTYPE,
    "workload": semconv.WORKLOAD,
    "batch_size": semconv.BATCH_SIZE,
    "concurrency": semconv.CONCURRENCY,
    "cache_policy": semconv.CACHE_POLICY,
    "traffic": semconv.TRAFFIC,
    "outcome": semconv.OUTCOME,
    "bottleneck": semconv.BOTTLENECK,
    "service": "service.name",
    "version": "service.version",
}
"""Short names of attributes to group by; any other key is the attribute itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSettings:
    """How a workload is gathered.

    ``window``: only requests whose end lies in it, in epoch nanoseconds (after start, up to and with end); an end of it
    that is one of :data:`OPEN` is the first arrival or the last end of the requests kept.
    """

    group_by: str | None = None
    slo: Slo | None = None
    window: tuple[int, int] | None = None
    long_context: int = CLASS_LENGTH
    shape: str = "default"
    threshold: float = DOMINANCE_THRESHOLD
