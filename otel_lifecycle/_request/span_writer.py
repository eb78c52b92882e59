"""The spans of one request: the request span, from its start to its end, and the spans of its stages.

What the lifecycle has to say is written at the end and at once.  A span keeps 128 events and drops the oldest, so what
a server adds to the span itself must not push ours out; and a stage whose boundary is unknown gets no span, which
nobody knows before.  Conditions are written when they are given, so that a sampler and other processors see them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from time import perf_counter_ns
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanKind,
    Status,
    StatusCode,
    get_current_span,
    set_span_in_context,
)

from otel_lifecycle import semconv
from otel_lifecycle._core.attributes import end_attributes
from otel_lifecycle._core.endings import error_type
from otel_lifecycle._core.interference import Interference
from otel_lifecycle._core.interruption import Interruption
from otel_lifecycle._core.labels import RequestLabels
from otel_lifecycle._core.lifecycle import PREEMPTED, STAGE_ORDER, Shape, Stage
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.token_offsets import TokenOffsets, offsets_of, token_offsets
from otel_lifecycle._core.tokens import Log
from otel_lifecycle._core.verdict import Finished, Verdict
from otel_lifecycle._log import say
from otel_lifecycle._propagation import links_to_culprits
from otel_lifecycle._request.kinds import RequestKind
from otel_lifecycle._request.span_events import SpanEvents
from otel_lifecycle._request.state import RequestState
from otel_lifecycle._request.tracers import TracerSource, span_kind

_SERVER: Final = SpanKind.SERVER  # reading a member of an enumeration calls a method

_ATTRIBUTES: Final = {stage: {semconv.STAGE: stage} for stage in STAGE_ORDER}
"""The attributes of the span of each stage."""


class LiveStage:
    """The span of a stage that a block is spent in; when it ``began``, and when the block was ``left`` last."""

    __slots__ = ("began", "left", "span")

    def __init__(self, span: Span, began: int) -> None:
        self.span = span
        self.left: int | None = None
        self.began = began

    def end(self, at: int, offset: int) -> None:
        """End it; not before its beginning, which lies ahead if the arrival that was given does."""
        self.span.end(max(at, self.began) + offset)


def start_request_span(
    source: TracerSource,
    parent: Context,
    claiming: Context,
    kind: RequestKind,
    link: Link | None,
    start_ns: int,
    choice: int | None = None,
) -> Span:
    """Start a request span in the context ``claiming``, ``parent`` with a claim, at epoch nanoseconds.

    ``choice``: which answer of a request the span is of.
    """
    # Integers for every time: the SDK takes a float, and the exporter then loses the whole batch.
    return source.tracer.start_span(
        kind.span_name,
        claiming,
        # An empty context, as in a server that is instrumented by nothing else, has no span.
        span_kind(get_current_span(parent).get_span_context()) if parent else _SERVER,
        # A copy: a sampler may change what it is given.  An answer has the shape of its request.
        {**kind.attributes} if choice is None else {**kind.conditions.attributes, semconv.CHOICE: choice},
        () if link is None else (link,),
        start_ns,
    )


class SpanWriter:
    """The spans of one request.  ``parent`` is the context it was opened in."""

    __slots__ = ("_exemplar", "_live", "_offset", "_source", "parent", "span")

    def __init__(self, source: TracerSource, parent: Context, offset: int, span: Span) -> None:
        self._source = source
        self._offset = offset
        self._exemplar: Context | None = None
        self._live: dict[str, LiveStage] = {}
        self.parent = parent
        self.span = span

    @property
    def provider(self) -> Any:
        """The tracer provider the spans come from."""
        return self._source.provider()

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes that are known now."""
        for name, value in attributes.items():
            self.span.set_attribute(name, value)

    def rename(self, labels: RequestLabels) -> None:
        """Name the span by the operation and model it has now."""
        self.span.update_name(self._source.span_name(labels.operation, labels.model))

    def record_exception(self, error: BaseException) -> None:
        """Record an exception with its message and stack, which are text by then: nothing keeps its frames alive."""
        try:
            self.span.record_exception(error)
        except Exception as fault:  # noqa: BLE001  # the exception is the server's, and so are the methods that raise
            say("exception", "an exception could not be recorded", error=fault)

    def exemplar_context(self) -> Context:
        """Return a context whose current span is the request's, for exemplars."""
        # Without it, a sample has no exemplar, or the trace of another request that is current on this thread.
        if self._exemplar is None:
            self._exemplar = set_span_in_context(NonRecordingSpan(self.span.get_span_context()), Context())
        return self._exemplar

    # The end.

    def write(
        self,
        state: RequestState,
        finished: Finished,
        verdict: Verdict,
        *,
        ended_at: int,
        token_times: bool = False,
        compat: str | None = None,
        usage: bool = True,
    ) -> None:
        """Write everything but the end of the request span; nothing of it for a span that is not recorded."""
        span = self.span
        if not span.is_recording():
            return
        apart = state.timeline.clocks_apart()
        self._add_events(state.events, finished, self.end_time(state, ended_at))
        span.set_attributes(end_attributes(finished, verdict, compat=compat, usage=usage))
        self._add_links(finished.interference)
        if token_times and finished.labels.unit is None:
            self._set_token_offsets(state.timeline)
        # A cancellation stays UNSET, as the conventions say. No description: it could hold what the client sent.
        if verdict.outcome in ("failed", "timed_out"):
            span.set_status(Status(StatusCode.ERROR))
        if not state.unmarked:
            # Nobody marks stages there: which one it was in when it ended is not known.
            stages = _stage_times(state.timeline, finished.report["timestamps"], apart)
            self._write_stages(stages, state.timeline.interruptions, apart=apart)

    def write_usual(
        self,
        state: RequestState,
        attributes: Mapping[str, Any],
        interference: Interference | None,
        *,
        ended_at: int,
        token_times: bool,
    ) -> None:
        """Write the same of a usual request, whose attributes are known: it completed, by one clock."""
        self._add_events(state.events, None, self.end_time(state, ended_at))
        self.span.set_attributes(attributes)
        self._add_links(interference)
        if token_times:
            self._set_token_offsets(state.timeline)
        # Every boundary is known, by one clock.
        times = state.timeline.times
        stages = [(stage, times[stage.entered], times[stage.left]) for stage in state.timeline.shape.stages]
        self._write_stages(stages)

    def write_plain(
        self,
        shape: Shape,
        times: Sequence[int],
        attributes: Mapping[str, Any],
        interference: Interference | None,
        tokens: Log | None,
    ) -> None:
        """Write the same of a request that stayed in its course; ``times``: of its events; ``tokens``: to be shown."""
        offset = self._offset
        for step, time in zip(shape.course, times, strict=False):
            self._add_event(step.event, None, time + offset)
        self.span.set_attributes(attributes)
        self._add_links(interference)
        if tokens is not None:
            self._set_offsets(offsets_of([tokens]))
        self._write_stages((stage, *bounds) for stage, bounds in zip(shape.stages, pairwise(times), strict=True))

    def _add_links(self, interference: Interference | None) -> None:
        for link in links_to_culprits(interference):
            # While the span records: an ended one takes no link.
            self.span.add_link(link.context, link.attributes)

    def end(self, state: RequestState, ended_at: int) -> None:
        """End the request span, at the terminal time, or ``ended_at`` where that is not known."""
        self.end_at(self.end_time(state, ended_at), ended_at)

    def end_at(self, end: int, ended_at: int) -> None:
        """End the request span at epoch nanoseconds, and before it the stages that are still open."""
        while self._live:
            # Taken off first, so that an end that is interrupted and repeated ends no stage twice.
            _, live = self._live.popitem()
            live.end(min(end - self._offset, live.left or ended_at), self._offset)
        self.span.end(end)

    def end_time(self, state: RequestState, ended_at: int) -> int:
        """Return the terminal time, epoch ns; ``ended_at`` where that is unknown, and never before the beginning."""
        timeline = state.timeline
        terminal = timeline.times.get("terminal")
        if terminal is None or ("terminal" in timeline.remote and timeline.clocks_apart()):
            terminal = ended_at
        began = state.opened if state.arrived is None else state.arrived
        # The SDK exports an end before the start as it is, and backends show negative lengths.
        end: int = max(terminal, began) + self._offset
        return end

    def _add_events(self, events: SpanEvents, finished: Finished | None, end: int) -> None:
        for name, time, attributes, exact in events.items:
            # An event that was stamped when it was marked may be noted long after times given for others.
            epoch_ns = time + self._offset if exact else min(time + self._offset, end)
            told = attributes if finished is None else _event_attributes(name, attributes, finished)
            self._add_event(name, told, epoch_ns)

    def _add_event(self, name: str, attributes: Mapping[str, Any] | None, epoch_ns: int) -> None:
        """Add one lifecycle event; the one place that decides what carries events."""
        self.span.add_event(name, attributes, epoch_ns)

    def _set_token_offsets(self, timeline: Timeline) -> None:
        self._set_offsets(token_offsets(timeline))

    def _set_offsets(self, offsets: TokenOffsets | None) -> None:
        """Set every token's offset from the first in one attribute, and how many have none there."""
        if offsets is not None:
            self.span.set_attribute(semconv.TOKEN_OFFSETS, offsets.packed)
            if offsets.dropped:
                self.span.set_attribute(semconv.TOKEN_OFFSETS_DROPPED, offsets.dropped)

    # Stages.

    def open_stage(self, stage: Stage, start: int) -> Span:
        """Return the live span of a stage, for a block that is spent in it: the parent of what is done there.

        A span made afterwards, as for a stage of bare marks, could be nobody's parent; a live one costs a quarter more.
        """
        live = self._live.get(stage.name)
        if live is None:
            context = set_span_in_context(self.span, self.parent)
            live = self._live[stage.name] = LiveStage(self._start_child(stage.name, stage.name, context, start), start)
        return live.span

    def left_stage(self, stage: Stage) -> None:
        """Note that a block of a stage was left: its end, if nothing better is known."""
        live = self._live.get(stage.name)
        if live is not None:
            live.left = perf_counter_ns()

    def start_phase(self, name: str, context: Context) -> Span:
        """Start the span of a part of a stage, that the server names."""
        return self._source.tracer.start_span(self._source.phase_name(name), context)

    def end_phase(self, span: Span, error: BaseException | None) -> None:
        """End the span of a part of a stage, which an exception may have left."""
        if isinstance(error, Exception):
            span.set_attribute(semconv.ERROR_TYPE, error_type(error))
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def _write_stages(
        self,
        stages: Iterable[tuple[Stage, int, int]],
        interruptions: Sequence[Interruption] = (),
        *,
        apart: bool = False,
    ) -> None:
        """Write one gross span for each stage, its interruptions as children."""
        context, offset = set_span_in_context(self.span, self.parent), self._offset
        over: list[tuple[str, Mapping[str, str], int, int]] = []
        for stage, start, end in stages:
            live = self._live.pop(stage.name, None) if self._live else None
            if live is None and not interruptions:
                over.append((stage.name, _ATTRIBUTES[stage.name], start + offset, end + offset))
                continue
            span = self._start_child(stage.name, stage.name, context, start) if live is None else live.span
            if span.is_recording():
                self._write_interruptions(interruptions, span, stage, apart)
            span.end((end if live is None else max(end, live.began)) + offset)
        self._source.children.add(self.span, context, over)

    def _start_child(self, name: str, stage: str, context: Context, start: int) -> Span:
        attributes, start_time = {semconv.STAGE: stage}, start + self._offset
        return self._source.tracer.start_span(name, context, attributes=attributes, start_time=start_time)

    def _write_interruptions(
        self, interruptions: Iterable[Interruption], parent: Span, stage: Stage, apart: bool
    ) -> None:
        context = set_span_in_context(parent, self.parent)
        for interruption in interruptions:
            start, end = interruption.start, interruption.end
            if interruption.state != stage.state or start is None or end is None or (apart and interruption.across):
                continue
            self._start_child(PREEMPTED, PREEMPTED, context, start).end(end + self._offset)


def _event_attributes(name: str, attributes: Mapping[str, Any] | None, finished: Finished) -> Mapping[str, Any] | None:
    if name == "fail" and finished.error_type is not None:
        return {**(attributes or {}), semconv.ERROR_TYPE: finished.error_type}
    if name in ("cancel", "timeout") and finished.reason is not None:
        return {**(attributes or {}), semconv.END_REASON: finished.reason}
    return attributes


def _stage_times(timeline: Timeline, times: Mapping[str, int], apart: bool) -> Iterator[tuple[Stage, int, int]]:
    """Yield each stage whose bounds are known by one clock, with its start and its end; ``times``: of the report."""
    remote = timeline.remote
    cut_state = timeline.interrupted if timeline.ended_in == PREEMPTED else timeline.ended_in
    for stage in timeline.shape.stages:
        left = "terminal" if stage.state == cut_state else stage.left
        if stage.entered not in times or left not in times or (left == "terminal" and stage.state != cut_state):
            continue
        if apart and (stage.entered in remote) != (left in remote):
            continue
        yield stage, times[stage.entered], times[left]
