"""How a workload is gathered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_lifecycle._core.outcome import DOMINANCE_THRESHOLD
from otel_lifecycle._core.slo import Slo

OPEN: Final = (-1, 2**63 - 1)
"""The two ends of a window that are open, in epoch nanoseconds: nothing lies beyond them."""
CLASS_LENGTH: Final = 4096
"""Input tokens at and above which a context is long."""


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
