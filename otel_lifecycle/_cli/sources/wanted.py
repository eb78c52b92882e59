"""Which spans and metrics the layers above want, decided before anything is decoded for good."""

from __future__ import annotations

from typing import Final

from otel_lifecycle import semconv

ARRIVE: Final = "arrive"
"""The event that makes any span, whoever made it, a lifecycle span."""

MARKS: Final = frozenset({semconv.OUTCOME, semconv.STARTUP_PHASE})
"""Attributes that a span of ours bears: a finished request, or a phase of the cold start."""

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
"""What no span tells: resources, tokens produced in vain, every single gap, and cold-start phases."""
