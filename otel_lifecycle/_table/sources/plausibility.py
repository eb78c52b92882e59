"""Impossible attribute values of a request: they are counted and left out, and the rest of the span is used."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from otel_lifecycle import semconv
from otel_lifecycle._table.sources.spans import MetricPoint, Span
from otel_lifecycle._table.sources.wanted import ARRIVE

EARLIEST: Final = 946_684_800.0
"""The year 2000, in epoch seconds: an earlier time is a clock that was never set."""
LONGEST_S: Final = 1e10
"""Seconds that no duration reaches: three hundred years, more than the clock of a span covers."""
MOST: Final = 2.0**53
"""The largest count: beyond it, a float cannot hold every integer."""

_DURATIONS: Final = (
    semconv.QUEUE_WAIT,
    semconv.PREPROCESSING,
    semconv.PREFILL,
    semconv.DECODE_TIME,
    semconv.TTFT,
    semconv.TPOT,
    semconv.TOKEN_SPAN,
    semconv.E2E,
    semconv.PREEMPTED,
    semconv.ITL_P50,
    semconv.ITL_P95,
    semconv.ITL_P99,
    semconv.ITL_MAX,
)
_COUNTS: Final = (
    semconv.GEN_AI_USAGE_INPUT_TOKENS,
    semconv.GEN_AI_USAGE_OUTPUT_TOKENS,
    semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS,
    semconv.STREAMED_TOKENS,
    semconv.PREEMPTIONS,
    semconv.VIOLATIONS,
    semconv.ITL_COUNT,
    semconv.BATCH_SIZE,
    semconv.CONCURRENCY,
)
_SHARES: Final = (
    semconv.DOMINANT_SHARE,
    *(semconv.SHARE_PREFIX + stage for stage in ("queue", "preprocessing", "prefill", "decode")),
)
LIMITS: Final = (
    *((name, LONGEST_S) for name in _DURATIONS),
    *((name, MOST) for name in _COUNTS),
    # A float that was divided may be off in its last digit.
    *((name, 1.0 + 1e-9) for name in _SHARES),
)
"""Attribute -> the most it can be; the least is 0."""


def doubtful(span: Span) -> list[str]:
    """Return the attributes of a span that have impossible values."""
    attributes, found = span.attributes, []
    for name, most in LIMITS:
        value = attributes.get(name)
        # The type as it is: a bool is an int to isinstance.
        if value is not None and not (type(value) in _NUMBERS and 0 <= value <= most):
            found.append(name)
    return found


_NUMBERS: Final = frozenset({int, float})


def without(span: Span, names: list[str]) -> Span:
    """Return the span without some attributes; a row that holds them is not used, either."""
    return replace(
        span, attributes={key: value for key, value in span.attributes.items() if key not in names}, row=None
    )


def sound(point: MetricPoint) -> bool:
    """Return whether a metric point is plausible: finite, no negative count, and one bucket more than edges or none."""
    if not all(value is None or math.isfinite(value) for value in (point.value, point.total)):
        return False
    counts = (point.count or 0, *point.buckets)
    # The data model has a bucket above the last edge; a histogram may also come without any buckets.
    return min(counts) >= 0 and max(counts) <= MOST and len(point.buckets) in {0, len(point.edges) + 1}


def lost_outcome(span: Span) -> bool:
    """Return whether a span is a request of ours that lost its outcome to an attribute limit."""
    # A limit of the SDK, the Collector or the backend removed it; stages and start-up phases never have an outcome.
    if span.scope != semconv.SCOPE or not span.attributes.keys().isdisjoint(_NOT_LOST):
        return False
    return any(event.name == ARRIVE for event in span.events)


_NOT_LOST: Final = frozenset({semconv.OUTCOME, semconv.STAGE, semconv.STARTUP_PHASE})
