"""The parts of a request's time: bars of the waterfall, token times, stalls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from otel_lifecycle import semconv
from otel_lifecycle._table.requests.model import STAGE_METRIC, STAGES
from otel_lifecycle._table.row import TableRow
from otel_lifecycle._table.sources.spans import Span
from otel_lifecycle._trace.find import Found
from otel_lifecycle._trace.neighbours import ExplainedStall, NeighbourTrack, explained, neighbours_of

# Wider than within one process: caller and server are different hosts, and NTP keeps them within milliseconds.
TWO_HOSTS_SKEW_NS: Final = 50_000_000
"""Clocks further apart than this are reported."""
# A terminal and a page stay readable; agents have thousands of spans in a trace.
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
class Caller:
    """The span that called the request: seconds it spent before the request arrived, and after it ended."""

    name: str
    span_id: str
    before: float
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """A request taken apart.  ``tokens``: seconds after arrival, empty where the span only sums them up.

    ``neighbours``: the requests beside it that the source holds, those it blames first.
    """

    found: Found
    caller: Caller | None
    bars: tuple[Bar, ...]
    tokens: tuple[float, ...]
    stalls: tuple[ExplainedStall, ...]
    neighbours: tuple[NeighbourTrack, ...]
    skewed: int

    @property
    def row(self) -> TableRow:
        """The request's row of the table."""
        return self.found.row

    @property
    def shares(self) -> dict[str, float]:
        """The share of each stage, as far as known."""
        told = {stage: self.row.get(f"share_{stage}") for stage in STAGES}
        return {stage: part for stage, part in told.items() if part is not None}


def anatomy(found: Found, source: Iterable[object] = (), shape: str = "default") -> Anatomy:
    """Take a request apart; ``source``: everything that was read, for its neighbours."""
    row = found.row
    bars = tuple(_bars(found))[:MAX_BARS]
    by_id = {span.span_id: span for span in found.spans}
    others = neighbours_of(found.span, row, source, shape)
    known = _all_there(row, others)
    preempted = [(bar.start, bar.end) for bar in bars if bar.colour == "preempted"]
    return Anatomy(
        found=found,
        caller=_caller(found, by_id.get(found.span.parent_id)),
        bars=bars,
        tokens=tuple(row.get("tokens") or ()),
        stalls=tuple(explained(stall, preempted, others, known) for stall in row.get("stalls") or ()),
        neighbours=others,
        skewed=sum(_contradicts(span, by_id.get(span.parent_id)) for span in found.spans),
    )


def _all_there(row: TableRow, others: tuple[NeighbourTrack, ...]) -> bool:
    """Whether the source has every request that the span blames for a stall, or the span blames none."""
    blamed = {(link["trace_id"], link["span_id"]) for link in row.get("links") or () if link["reason"] == "stall"}
    if blamed:
        return blamed <= {(other.trace_id, other.span_id) for other in others}
    return bool(row.get("stall_prefill") == 0)


def _caller(found: Found, span: Span | None) -> Caller | None:
    if span is None or span is found.span:
        return None
    return Caller(
        name=span.name,
        span_id=span.span_id,
        # Clocks of two hosts may disagree, but no caller waits a negative time.
        before=max(0, found.row["arrival_ns"] - span.start_ns) * 1e-9,
        after=max(0, span.end_ns - found.row["end_ns"]) * 1e-9,
    )


def _contradicts(span: Span, parent: Span | None) -> bool:
    """Return whether a span's times are impossible: it begins before its parent, or is a stage that outlasts it.

    Other children may outlast their parent, and a gateway's span may be wider than the request.
    """
    if parent is None:
        return False
    late = semconv.STAGE in span.attributes and span.end_ns > parent.end_ns + TWO_HOSTS_SKEW_NS
    return late or span.start_ns < parent.start_ns - TWO_HOSTS_SKEW_NS


def _bars(found: Found) -> Iterator[Bar]:
    """Yield the spans around the request, outermost first, then the request and its children, nested.

    Each span stands under its parent, in the order they began; spans that are related to none of them come last.
    """
    tree = Tree(found)
    top = tree.callers[0] if tree.callers else found.span
    shown = {span.span_id for span, _ in tree.below(top)}
    yield from (bar for span, depth in tree.below(top) for bar in _with_stages(span, depth, found, tree))
    for span in sorted(found.spans, key=lambda span: span.start_ns):
        # A parent that was not sampled leaves its children without a place in the tree.
        if span.span_id not in shown:
            yield _bar(span, 0, found, "other")


class Tree:
    """The spans of a trace by their parents.  ``callers``: those around the request, outermost first."""

    def __init__(self, found: Found) -> None:
        self._children: dict[str, list[Span]] = {}
        for span in sorted(found.spans, key=lambda span: span.start_ns):
            self._children.setdefault(span.parent_id, []).append(span)
        by_id = {span.span_id: span for span in found.spans}
        self.callers: list[Span] = []
        at = by_id.get(found.span.parent_id)
        # Broken spans can form a cycle of parents.
        while at is not None and at.span_id != found.span.span_id and at not in self.callers:
            self.callers.insert(0, at)
            at = by_id.get(at.parent_id)

    def below(self, top: Span) -> Iterator[tuple[Span, int]]:
        """Yield a span and what is below it, with the depth of each."""
        seen, pending = set[str](), [(top, 0)]
        while pending:
            span, depth = pending.pop()
            if span.span_id in seen:
                continue
            seen.add(span.span_id)
            yield span, depth
            pending += [(child, depth + 1) for child in reversed(self._children.get(span.span_id, ()))]

    def has_stages(self, span: Span) -> bool:
        """Return whether stage spans are among the children of a span."""
        return any(child.attributes.get(semconv.STAGE) in STAGES for child in self._children.get(span.span_id, ()))


def _with_stages(span: Span, depth: int, found: Found, tree: Tree) -> Iterator[Bar]:
    """Yield the bar of a span; behind that of the request its stages, where they have no spans of their own."""
    stage = str(span.attributes.get(semconv.STAGE, ""))
    known = stage in STAGES or stage == "preempted"
    yield _bar(span, depth, found, "muted" if span is found.span else stage if known else "other")
    if span is found.span and not tree.has_stages(span):
        yield from _from_durations(found.row, depth + 1)


def _bar(span: Span, depth: int, found: Found, colour: str) -> Bar:
    arrival = found.row["arrival_ns"]
    return Bar(
        name=span.name,
        start=(span.start_ns - arrival) * 1e-9,
        end=(max(span.end_ns, span.start_ns) - arrival) * 1e-9,
        depth=depth,
        colour=colour,
    )


def _from_durations(row: TableRow, depth: int) -> Iterator[Bar]:
    """Yield the stages of a request without stage spans, one after the other."""
    at = 0.0
    for stage in STAGES:
        length = row.get(STAGE_METRIC[stage])
        # After an unknown stage the next one has no start.
        if length is None:
            return
        yield Bar(name=stage, start=at, end=at + length, depth=depth, colour=stage)
        at += length
