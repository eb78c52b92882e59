"""From a span to the verdict on its request.

Our own span carries its verdict, which is what the process counted and Prometheus shows; it is taken as it is.  A
foreign span carries events only; the core judges them here as the processor does, and writes the same attributes.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from otel_lifecycle import semconv
from otel_lifecycle._core.lifecycle import BOUNDARIES, TERMINAL_EVENTS
from otel_lifecycle._core.outcome import DOMINANCE_THRESHOLD
from otel_lifecycle._core.workload import QUANTILES, quantile
from otel_lifecycle._table.requests.foreign import Judged, is_foreign, judge
from otel_lifecycle._table.requests.model import LARGEST, Breach
from otel_lifecycle._table.sources.plausibility import lost_outcome
from otel_lifecycle._table.sources.spans import ReadEvent, Span

_ITL: Final = (
    ("p50", semconv.ITL_P50),
    ("p95", semconv.ITL_P95),
    ("p99", semconv.ITL_P99),
    ("max", semconv.ITL_MAX),
)
MARKS: Final = frozenset({*BOUNDARIES, *TERMINAL_EVENTS, "output", "preempt", "resume"})
_MICRO: Final = 1e-6
_NANO: Final = 1e-9
MOST_UNTOLD: Final = 100_000
"""Violations of one request that are counted without their events; a damaged span may state any number."""
_CUT: Final = 1.5e-6
"""An offset is cut to a microsecond, so a gap, or any quantile of gaps, is off by less than one."""


def is_request(span: Span) -> bool:
    """Return whether a span is a request: it has a verdict, or its lifecycle events."""
    # The cheap tests come first: the last two rebuild the span in the SDK's form.
    return semconv.OUTCOME in span.attributes or (bool(span.events) and (is_foreign(span) or lost_outcome(span)))


def verdict_of(span: Span, shape: str = "default", threshold: float = DOMINANCE_THRESHOLD) -> Judged:
    """Return the verdict on a request span, with all attributes that are the span's own."""
    # A second judgement here could contradict the counters and spans that the process exported.
    if semconv.OUTCOME in span.attributes:
        return Judged(attributes=span.attributes, breaches=_told_breaches(span))
    judged = judge(span, shape, threshold)
    if lost_outcome(span):
        # Tokens and violations are on the span as sums, so only its boundaries are judged again.
        own = {key: value for key, value in judged.attributes.items() if key not in _OWN}
        return Judged(attributes={**own, **span.attributes}, breaches=_told_breaches(span))
    return replace(judged, attributes={**span.attributes, **judged.attributes})


_OWN: Final = frozenset(
    {
        semconv.LEGAL,
        semconv.VIOLATIONS,
        semconv.STREAMED_TOKENS,
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS,
        semconv.TPOT,
        semconv.TOKEN_SPAN,
    }
)
"""What only the process knew: its span keeps neither single tokens nor illegal events."""


def arrival_of(span: Span) -> int:
    """Return when the request arrived: at the event, or at the start of a span without one."""
    for event in span.events:
        if event.name == "arrive":
            return event.time_ns
    return span.start_ns


def _told_breaches(span: Span) -> tuple[Breach, ...]:
    """Return the violations that the span's own process recorded on it."""
    events = [event for event in span.events if event.name == semconv.VIOLATION_SPAN_EVENT]
    # The SDK keeps 128 events, so the count can exceed the events; the rest stays without a place.
    untold = min(max((_whole(span.attributes.get(semconv.VIOLATIONS)) or 0) - len(events), 0), MOST_UNTOLD)
    arrival = arrival_of(span) if events else span.start_ns
    return tuple([_told_breach(event, arrival) for event in events]) + (Breach(kind=semconv.OTHER),) * untold


def _told_breach(event: ReadEvent, arrival: int) -> Breach:
    told = event.attributes
    return Breach(
        kind=str(told.get(semconv.VIOLATION_KIND) or semconv.OTHER),
        state=_text(told.get(semconv.VIOLATION_STATE)),
        event=_text(told.get(semconv.VIOLATION_EVENT)),
        offset=None if told.get(semconv.TIME_KNOWN) is False else (event.time_ns - arrival) * _NANO,
    )


def token_offsets(attributes: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the time of each token after the first, in microseconds, of all chunks and choices; empty if not recorded.

    On the span they are base64 of little-endian 32-bit integers.
    """
    offsets = attributes.get(semconv.TOKEN_OFFSETS)
    if not isinstance(offsets, str):
        return ()
    try:
        # A limit of attribute lengths cuts the text anywhere: four characters are three bytes, four bytes a time.
        packed = b64decode(offsets[: len(offsets) // 4 * 4], validate=True)
    except ValueError:  # Another library's attribute of that name.
        return ()
    whole = len(packed) // 4
    return struct.unpack(f"<{whole}I", packed[: 4 * whole])


def offset_gaps(own: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the gaps between single tokens of one choice; none where the offsets of all tokens do not show them.

    Offsets do not show which tokens came in one chunk, nor to which choice a token belongs.  If the process counted a
    gap between all neighbours, there was one choice and no chunk.  If it counted fewer, the gaps between tokens that
    came alone are used, provided that their quantiles are those that the process recorded.
    """
    told, times = own.get(semconv.ITL_COUNT), token_offsets(own)
    if not times or not told:
        return ()
    if told == len(times) - 1:
        return tuple((later - earlier) * _MICRO for earlier, later in pairwise(times))
    gaps = _between_single(times)
    return gaps if told == len(gaps) and _agree(gaps, own) else ()


def _between_single(times: Sequence[int]) -> tuple[float, ...]:
    """Return the gaps between tokens that came alone: a chunk's tokens all have its time."""
    sizes = Counter(times)
    return tuple(
        (later - earlier) * _MICRO for earlier, later in pairwise(times) if sizes[earlier] == sizes[later] == 1
    )


def _agree(gaps: Sequence[float], own: Mapping[str, Any]) -> bool:
    """Return whether gaps have these quantiles, up to the microsecond that their offsets are cut to."""
    ordered = sorted(gaps)
    ranks = {"max": 1.0, **QUANTILES}
    known = ((ranks[name], _number(own.get(attribute))) for name, attribute in _ITL)
    return all(told is None or abs((quantile(ordered, q) or 0.0) - told) <= _CUT for q, told in known)


def _number(raw: Any) -> float | None:
    """Return a finite number that is not negative; a duration that is anything else is not a duration."""
    if type(raw) is float or type(raw) is int:  # which a bool is not
        return float(raw) if 0 <= raw <= LARGEST else None
    return None


def _whole(raw: Any) -> int | None:
    number = _number(raw)
    return None if number is None else int(number)


def _text(raw: Any) -> str | None:
    return None if raw is None else str(raw)
