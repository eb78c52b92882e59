"""Which spans and metrics the layers above want, decided before anything is decoded for good."""

from __future__ import annotations

from typing import Final

from otel_lifecycle import semconv
from otel_lifecycle._table.sources import engine_spans

ARRIVE: Final = "arrive"
"""The event that makes any span, of any library, a lifecycle span."""

MARKS: Final = frozenset({semconv.OUTCOME, semconv.STARTUP_PHASE, *engine_spans.MARKS})
"""Attributes of a finished request, of a phase of the cold start, or of a request span that an engine wrote itself."""

# Everything that spans tell as well is left out, so that no request is counted by both.
METRICS: Final = frozenset(
    {
        semconv.CACHE_USAGE.name,
        semconv.MEMORY_USED.name,
        semconv.DEVICE_UTILIZATION.name,
        semconv.TOKENS.name,
        semconv.CANCEL_LAG.name,
        semconv.INTER_TOKEN_LATENCY.name,
        semconv.STARTUP_DURATION.name,
    }
)
"""What spans do not contain: resources, wasted tokens, every single gap, and cold-start phases."""
