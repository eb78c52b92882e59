"""What a request's time went into: bars of the waterfall, token times, stalls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from otel_lifecycle import semconv
from otel_lifecycle._cli.requests.from_span import token_offsets
from otel_lifecycle._cli.requests.model import STAGE_METRIC, STAGES, Request
from otel_lifecycle._cli.sources.spans import Span
from otel_lifecycle._cli.trace.find import Found

STALL: Final = 5.0
"""A gap so many times the median gap, and at least :data:`STALL_S`, is shown as a stall."""
STALL_S: Final = 0.05
SKEW_NS: Final = 50_000_000
"""Clocks that are so far apart show."""
MAX_BARS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of the waterfall: seconds after arrival, how deep it is nested, and the colour it has."""

    name: str
    start: float
    end: float
    depth: int
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A gap between two tokens that stands out: after which token, from when, how long."""

    token: int
    start: float
    length: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """A request taken apart.  ``tokens``: seconds after arrival, empty where the span only sums them up."""

    found: Found
    bars: tuple[Bar, ...]
    tokens: tuple[float, ...]
    stalls: tuple[Stall, ...]
    skewed: int

    @property
    def request(self) -> Request:
        """The request itself."""
        return self.found.request


def anatomy(found: Found) -> Anatomy:
    """Take a request apart."""
    tokens = tuple(_tokens(found))
    bars = tuple(_bars(found))[:MAX_BARS]
    by_id = {span.span_id: span for span in found.spans}
    skewed = sum(_contradicts(span, by_id.get(span.parent_id)) for span in found.spans)
    return Anatomy(found=found, bars=bars, tokens=tokens, stalls=tuple(_stalls(tokens)), skewed=skewed)


def _contradicts(span: Span, parent: Span | None) -> bool:
    """Return whether a span cannot be where it says: it begins before its parent, or is a stage that outlasts it.

    That a child outlasts its parent is in order; so is a gateway's span that is wider than the request.
    """
    if parent is None:
        return False
    late = semconv.STAGE in span.attributes and span.end_ns > parent.end_ns + SKEW_NS
    return late or span.start_ns < parent.start_ns - SKEW_NS


def _tokens(found: Found) -> Iterator[float]:
    """Yield the time of every token: from its event, or from the offsets after the first."""
    request = found.request
    told = [event.time_ns for event in found.span.events if event.name in {"first_token", "token"}]
    if len(told) > 1:
        yield from ((time - request.start_ns) * 1e-9 for time in told)
    elif "ttft" in request.seconds:
        yield from (request.seconds["ttft"] + offset * 1e-6 for offset in token_offsets(request.attributes))


def _stalls(tokens: tuple[float, ...]) -> Iterator[Stall]:
    gaps = [later - earlier for earlier, later in pairwise(tokens)]
    if len(gaps) < 2:
        return
    median = sorted(gaps)[len(gaps) // 2]
    for number, gap in enumerate(gaps):
        if gap >= STALL_S and gap >= STALL * median:
            yield Stall(token=number + 1, start=tokens[number], length=gap)


def _bars(found: Found) -> Iterator[Bar]:
    """Yield the request, then its children in the order they began, nested; spans of other services, too."""
    children: dict[str, list[Span]] = {}
    for span in found.spans:
        children.setdefault(span.parent_id, []).append(span)
    yield _bar(found.span, 0, found, "muted")
    below = list(_below(found.span.span_id, 1, children, found))
    if not any(bar.colour in STAGES for bar in below):
        yield from _from_durations(found.request)
    yield from below
    known = {found.span.span_id, *(span.span_id for span in found.spans if _is_below(span, found))}
    for span in sorted(found.spans, key=lambda span: span.start_ns):
        if span.span_id not in known:
            yield _bar(span, 0, found, "other")


def _is_below(span: Span, found: Found) -> bool:
    parents = {one.span_id: one.parent_id for one in found.spans}
    at, steps = span.parent_id, 0
    while at and steps < len(parents):
        if at == found.span.span_id:
            return True
        at, steps = parents.get(at, ""), steps + 1
    return False


def _below(parent: str, depth: int, children: dict[str, list[Span]], found: Found) -> Iterator[Bar]:
    # A cycle of parents is no tree; it ends at this depth.
    if depth > 20:
        return
    for span in sorted(children.get(parent, ()), key=lambda span: span.start_ns):
        stage = str(span.attributes.get(semconv.STAGE, ""))
        known = stage in STAGES or stage == "preempted"
        yield _bar(span, depth, found, stage if known else "other")
        yield from _below(span.span_id, depth + 1, children, found)


def _bar(span: Span, depth: int, found: Found, colour: str) -> Bar:
    arrival = found.request.start_ns
    return Bar(
        name=span.name,
        start=(span.start_ns - arrival) * 1e-9,
        end=(max(span.end_ns, span.start_ns) - arrival) * 1e-9,
        depth=depth,
        colour=colour,
    )


def _from_durations(request: Request) -> Iterator[Bar]:
    """Yield the stages of a request whose stage spans are not at hand, one after the other."""
    at = 0.0
    for stage in STAGES:
        length = request.seconds.get(STAGE_METRIC[stage])
        if length is None:
            return
        yield Bar(name=stage, start=at, end=at + length, depth=1, colour=stage)
        at += length
