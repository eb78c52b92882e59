"""The requests that the live page can show: bounded in number and bytes, the oldest are removed first.

A span is kept as the bytes it came in.  Decoded, ten thousand requests with their stages take some 250 MB; as bytes
they take 40, and only those that someone opens are decoded again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, TracesData
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

from otel_lifecycle._live.row import LiveRow

KEEP: Final = 10_000
"""Requests that are kept, unless the user chooses another number."""
# The second limit is for requests with long token offsets: a few of them take more memory than a thousand others.
MAX_BYTES: Final = 256 * 2**20
# The trace of an endless job must not displace all others.
MAX_SPANS: Final = 2_000
"""Spans of one trace that are kept."""
TRACES_PER_REQUEST: Final = 3
"""Traces kept for each request: those without one are kept too, for a request that may still follow."""
# A server that crashed never ends its requests; they must neither stay listed nor stay in memory.
MAX_OPEN: Final = 1_000
OPEN_S: Final = 900.0
"""After this time without an end, a request that showed a stage is not listed as running any more."""


@dataclass(frozen=True, slots=True)
class RawSpan:
    """A span as it came: the bytes of its resource and of itself, and the name of its scope."""

    resource: bytes
    scope: str
    span: bytes


@dataclass(slots=True)
class KeptTrace:
    """The spans of one trace, and the numbers of the requests among them."""

    spans: list[RawSpan] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    size: int = 0


@dataclass(slots=True, kw_only=True)
class RunningRequest:
    """A request that has shown finished stages and not its own end.

    ``stages``: (stage, start, end) in epoch seconds, in the order they ended.
    """

    trace_id: str
    span_id: str
    model: str | None
    seen: float
    stages: list[tuple[str, float, float]] = field(default_factory=list)


class Kept:
    """The requests and spans that are kept, and the count of those removed.

    ``rows``: by number, oldest first.  ``left``: requests that made room for others.  ``spans_left_out``: spans of
    traces that have too many.  ``gone``: the numbers of the rows that were removed last.
    """

    def __init__(self, keep: int = KEEP, max_bytes: int = MAX_BYTES) -> None:
        self._keep = keep
        self._max_bytes = max_bytes
        self._traces: OrderedDict[bytes, KeptTrace] = OrderedDict()
        self._size = 0
        self._last = 0
        self.rows: dict[int, LiveRow] = {}
        self.running: OrderedDict[str, RunningRequest] = OrderedDict()
        self.left = 0
        self.spans_left_out = 0
        self.gone: deque[int] = deque(maxlen=2 * keep)

    @property
    def last(self) -> int:
        """The number of the newest row."""
        return self._last

    def next_number(self) -> int:
        """Return the number of the next row."""
        self._last += 1
        return self._last

    def add_span(self, trace_id: bytes, raw: RawSpan) -> None:
        """Keep a span of a trace."""
        trace = self._traces.get(trace_id)
        if trace is None:
            trace = self._traces[trace_id] = KeptTrace()
        if len(trace.spans) >= MAX_SPANS:
            self.spans_left_out += 1
            return
        trace.spans.append(raw)
        # All spans of a batch share one bytes object for their resource, so it is not counted here.
        trace.size += len(raw.span)
        self._size += len(raw.span)

    def add_row(self, trace_id: bytes, row: LiveRow) -> None:
        """Keep a finished request, whose span has been added."""
        self.rows[row.number] = row
        self._traces.setdefault(trace_id, KeptTrace()).numbers.append(row.number)
        self.running.pop(row.span_id, None)

    def add_stage(self, request: RunningRequest) -> None:
        """Note a finished stage of a request that has not ended."""
        # A request keeps its place: stages arrive in any order, and the list on the page must not jump.
        known = self.running.setdefault(request.span_id, request)
        if known is not request:
            known.stages += request.stages
            known.seen = request.seen
        while len(self.running) > MAX_OPEN:
            self.running.popitem(last=False)

    def make_room(self, now: float) -> None:
        """Remove the oldest until the limits hold again; ``now`` in epoch seconds."""
        traces = self._traces
        while traces and (
            len(self.rows) > self._keep or self._size > self._max_bytes or len(traces) > TRACES_PER_REQUEST * self._keep
        ):
            # Whole traces are removed, in the order of their first span: half a waterfall would mislead.
            _, oldest = traces.popitem(last=False)
            self._size -= oldest.size
            for number in oldest.numbers:
                del self.rows[number]
                self.gone.append(number)
                self.left += 1
        for span_id in [key for key, one in self.running.items() if now - one.seen > OPEN_S]:
            del self.running[span_id]

    def ended(self, span_id: str, trace_id: bytes) -> bool:
        """Return whether a request of that span id has ended: its late stages do not make a running request."""
        trace = self._traces.get(trace_id)
        return trace is not None and any(self.rows[number].span_id == span_id for number in trace.numbers)

    def trace(self, trace_id: str) -> TracesData | None:
        """Return everything kept of a trace; None if it was removed or never received."""
        try:
            trace = self._traces.get(bytes.fromhex(trace_id))
        # The id comes from the address line of a browser.
        except ValueError:
            return None
        return None if trace is None else TracesData(resource_spans=list(_resource_spans(trace)))


def _resource_spans(trace: KeptTrace) -> Iterator[ResourceSpans]:
    for raw in trace.spans:
        made = ResourceSpans()
        made.resource.MergeFromString(raw.resource)
        scope = ScopeSpans()
        scope.scope.name = raw.scope
        scope.spans.append(ProtoSpan.FromString(raw.span))
        made.scope_spans.append(scope)
        yield made
