"""The times of a request's tokens, and the stalls between them."""

from __future__ import annotations

from collections.abc import Mapping
from operator import sub
from typing import Any, NamedTuple

from otel_lifecycle._core.stalls import limit, usual_gap
from otel_lifecycle._table.requests.from_span import token_offsets
from otel_lifecycle._table.sources.spans import Span


class TokenStall(NamedTuple):
    """A stall: the number of the token before it, its start in seconds after arrival, and its length in seconds."""

    token: int
    start: float
    length: float


def times_of_tokens(span: Span, arrival_ns: int, ttft: float | None, attributes: Mapping[str, Any]) -> list[float]:
    """Return when each token came, in seconds after arrival: from its event, or from the offsets after the first.

    ``attributes``: of the request, with the packed offsets.
    """
    told = [event.time_ns for event in span.events if event.name in {"token", "first_token"}]
    # Events hold nanoseconds; packed offsets are cut to microseconds.
    if len(told) > 1:
        return [(time - arrival_ns) * 1e-9 for time in told]
    # Offsets count from the first token, so without its time they have no place after arrival.
    return [] if ttft is None else [ttft + offset * 1e-6 for offset in token_offsets(attributes)]


def token_stalls(tokens: list[float]) -> list[TokenStall]:
    """Return the stalls between tokens, by the same rule as at the end of a live request."""
    # Integers as in a live request, so that the limit decides equally on both.
    times = [round(time * 1e9) for time in tokens]
    gaps = list(map(sub, times[1:], times))
    usual = usual_gap(sorted(gaps))
    # Too few gaps to know what is usual, so none is called a stall.
    if usual is None:
        return []
    above, base = limit(round(usual)), round(usual)
    return [
        TokenStall(number, (times[number - 1] + base) * 1e-9, (gap - base) * 1e-9)
        for number, gap in enumerate(gaps, 1)
        if gap > above
    ]
