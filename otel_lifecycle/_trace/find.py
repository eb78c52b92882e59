"""From a name to the spans of its trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from otel_lifecycle import semconv
from otel_lifecycle._table.errors import Unusable
from otel_lifecycle._table.requests.from_span import is_request, verdict_of
from otel_lifecycle._table.row import TableRow, row_of
from otel_lifecycle._table.sources.reader import Opener, Reader
from otel_lifecycle._table.sources.spans import Span
from otel_lifecycle._table.sources.tally import ReadingTally

# The whole trace is held in memory to build its tree.
MAX_SPANS: Final = 5000
"""Spans of one trace that are looked at."""
# A shorter beginning matches many traces.
SHORTEST: Final = 6
"""Characters of a trace id, at least, that stand for the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A request and every span of its trace, the request's own among them.

    ``row``: as in the table; ``attributes``: of the span over those of its resource.
    """

    row: TableRow
    attributes: Mapping[str, Any]
    span: Span
    spans: Sequence[Span]
    others: int


def found_of(span: Span, spans: Sequence[Span], others: int, shape: str) -> Found:
    """Return a request by its span and the spans of its trace."""
    judged = verdict_of(span, shape)
    row = row_of(span, judged) if span.row is None else span.row
    return Found(row=row, attributes={**span.resource, **judged.attributes}, span=span, spans=spans, others=others)


def find(
    name: str,
    sources: Sequence[str],
    shape: str,
    tally: ReadingTally,
    progress: Callable[[int], None] | None,
    pipe: Opener | None = None,
) -> Found:
    """Return the request that ``name`` means: a trace id or its beginning, a span id, or a request id.

    If a trace has several, this is the one with that span id, else the longest.  The sources are read up to three
    times; for standard input that needs ``pipe``.  Raises Unusable if there is no such request.
    """
    spans = _spans(name, Reader(sources, tally, everything=True, progress=progress, pipe=pipe))
    traces = {span.trace_id for span in spans}
    if len(traces) > 1:
        raise Unusable(f"{name} stands for {len(traces)} traces: {', '.join(sorted(traces)[:5])}")
    if not spans:
        # A tally of its own: the same bytes must not be counted twice in the notes.
        trace_id = _trace_of(name, Reader(sources, ReadingTally(), pipe=pipe))
        if trace_id is None:
            raise Unusable(f"no trace, span or request {name!r} in {', '.join(sources)}")
        spans = _spans(trace_id, Reader(sources, tally, everything=True, progress=progress, pipe=pipe))
    return _chosen(name, spans, shape)


def only_request(sources: Sequence[str], shape: str, tally: ReadingTally, pipe: Opener | None = None) -> Found:
    """Return the one request that some sources hold; Unusable, with their names, where there are more."""
    names: list[str] = []
    total = 0
    for item in Reader(sources, tally, pipe=pipe):
        if isinstance(item, Span) and is_request(item):
            total += 1
            if len(names) < 5:
                names.append(item.trace_id)
    if total == 0:
        raise Unusable(f"no request in {', '.join(sources)}")
    if total > 1:
        raise Unusable(f"{total:,} requests in it; name one: otel-lifecycle view {names[0]} {' '.join(sources)}")
    return find(names[0], sources, shape, tally, None, pipe)


def _spans(name: str, reader: Reader) -> list[Span]:
    wanted = name.lower()
    # It cannot be a trace id, so the source need not be read for it.
    if len(wanted) < SHORTEST or set(wanted) - set("0123456789abcdef"):
        return []
    found = [item for item in reader if isinstance(item, Span) and item.trace_id.startswith(wanted)]
    return found[:MAX_SPANS]


def _trace_of(name: str, reader: Reader) -> str | None:
    """Return the trace of a span id or a request id."""
    for item in reader:
        if not isinstance(item, Span):
            continue
        if item.span_id == name.lower() or str(item.attributes.get(semconv.REQUEST_ID)) == name:
            return item.trace_id
    return None


def _chosen(name: str, spans: Sequence[Span], shape: str) -> Found:
    requests = [span for span in spans if is_request(span)]
    if not requests:
        raise Unusable(f"no request among the {len(spans)} spans of trace {spans[0].trace_id}")
    named = [
        span
        for span in requests
        if name.lower() == span.span_id or name == str(span.attributes.get(semconv.REQUEST_ID))
    ]
    # The longest: a gateway's request encloses those of the servers behind it.
    span = max(named or requests, key=lambda span: span.end_ns - span.start_ns)
    return found_of(span, spans, len(requests) - 1, shape)
