"""Ended spans of the SDK made in one step, for stages: they are known only when their request has ended.

Checked with opentelemetry-sdk 1.31.1 and 1.45.1.

How it works.  Starting and ending a span by the tracer asks a sampler, makes a context and a span that can be written
to, and copies it when it ends.  For the stages of a request this is the largest part of what its end costs, and nothing
comes of it: a child of a sampled span is sampled, and nobody writes to a span that is over.  So the first span of a
name is made by the tracer, and the further ones have its parts with their own identity and times, and go straight to
the processors, as an ended span does.

This is done only where nobody can tell the difference.  Each condition is looked at again when the tracer's processors
change: every processor sees ends alone, by its class; the sampler is one of the SDK's, and samples the children of
sampled spans; the SDK does not count its own spans.  Three private names tell (``_span_processors``,
``_local_parent_sampled``, ``_tracer_metrics``).  If one is gone, or a span made in this way lacks a part of the one
that the tracer made, all spans are the tracer's, which costs more and looks the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from opentelemetry.context import Context
from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, sampling
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.trace import Span, SpanContext, Tracer

from otel_lifecycle._sdk_traces import PARTS, HandingOn, hidden_hooks, same_part

# Their hooks for the start of a span are empty, in all versions.
_EXPORTING: Final = frozenset({BatchSpanProcessor, SimpleSpanProcessor})
_FORWARDING: Final = frozenset({sdk.SynchronousMultiSpanProcessor, sdk.ConcurrentMultiSpanProcessor})
_NOT_COUNTED: Final = frozenset({"NoneType", "NoOpTracerMetrics"})


Child: TypeAlias = tuple[str, Mapping[str, str], int, int]
"""Name, attributes, and when it began and ended, epoch nanoseconds.  All of one name have the same attributes."""


class _Pattern(NamedTuple):
    """The parts that all spans of one name share."""

    resource: Any
    attributes: Mapping[str, Any]
    kind: Any
    status: Any
    scope: Any


_Known: TypeAlias = "tuple[Any, Any, dict[str, _Pattern | None] | None]"
_NONE: Final[_Known] = (None, None, None)


class ChildSpans:
    """Ended children of a tracer's sampled spans.  ``tracer``: where they come from where no shorter way is known."""

    __slots__ = ("_known", "_tracer")

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        # The real tracer and its processors when they were looked at; the patterns of spans by their name, None where
        # all spans are the tracer's.  One tuple, replaced as a whole: no thread sees patterns of another tracer.
        self._known = _NONE

    def add(self, parent: Span, context: Context, children: Iterable[Child]) -> None:
        """Make children of a span; ``context`` is one in which it is current."""
        of = parent.get_span_context()
        real, _, patterns = self._look() if of.trace_flags & 1 else _NONE
        for child in children:
            pattern = None if patterns is None else patterns.get(child[0])
            if pattern is None:
                span = self._start_and_end(context, child)
                if patterns is not None and child[0] not in patterns:
                    patterns[child[0]] = _pattern_of(span)
                continue
            own = SpanContext(of.trace_id, real.id_generator.generate_span_id(), False, of.trace_flags, of.trace_state)
            real.span_processor.on_end(_ended(child, own, of, pattern))

    def _start_and_end(self, context: Context, child: Child) -> Span:
        name, attributes, start, end = child
        # A copy: a sampler gets it, which may be anybody's.
        span = self._tracer.start_span(name, context, attributes=dict(attributes), start_time=start)
        span.end(end)
        return span

    def _look(self) -> _Known:
        """Return the real tracer, its processors, and the patterns; none where somebody could tell the difference."""
        real: Any = self._tracer.real() if isinstance(self._tracer, Standing) else self._tracer
        processors = getattr(getattr(real, "span_processor", None), "_span_processors", None)
        if processors is None:
            return _NONE
        known = self._known
        if known[0] is not real or known[1] is not processors:
            self._known = known = (real, processors, {} if _may_be_made_of_parts(real, processors) else None)
        return known


class Standing:
    """A tracer that stands for another one, which may be replaced."""

    def real(self) -> Any:
        """Return the tracer that makes the spans now."""
        raise NotImplementedError


def _may_be_made_of_parts(tracer: Any, processors: Any) -> bool:
    try:
        return (
            type(tracer) is sdk.Tracer
            and type(tracer.span_processor) in _FORWARDING
            and all(map(_sees_ends_alone, processors))
            and _samples_children(tracer.sampler)
            # Absent in older SDKs, which have no such metrics.
            and type(getattr(tracer, "_tracer_metrics", None)).__name__ in _NOT_COUNTED
        )
    except AttributeError:
        return False


def _sees_ends_alone(processor: Any) -> bool:
    """Return whether a processor does nothing with a span before it has ended."""
    if isinstance(processor, HandingOn):
        return processor.marks_only_claims and (processor.behind is None or _sees_ends_alone(processor.behind))
    kind = type(processor)
    before = ("on_start", *hidden_hooks())
    return kind in _EXPORTING or all(getattr(kind, hook) is getattr(SpanProcessor, hook) for hook in before)


def _samples_children(sampler: Any) -> bool:
    """Return whether a sampler, whose class must be the SDK's own, samples every child of a sampled local span."""
    if type(sampler) is sampling.TraceIdRatioBased:
        # By the id of the trace, which they share.
        return True
    child = (
        sampler._local_parent_sampled if type(sampler).should_sample is sampling.ParentBased.should_sample else sampler
    )
    return child is sampling.ALWAYS_ON


def _ended(child: Child, own: SpanContext, parent: SpanContext | None, pattern: _Pattern) -> ReadableSpan:
    return ReadableSpan(
        name=child[0],
        context=own,
        parent=parent,
        resource=pattern.resource,
        # A copy: processors of some write to it, although they should not.
        attributes=dict(pattern.attributes),
        kind=pattern.kind,
        status=pattern.status,
        start_time=child[2],
        end_time=child[3],
        instrumentation_scope=pattern.scope,
    )


def _pattern_of(span: Any) -> _Pattern | None:
    """Return what further spans share with one that the tracer has made; None if that is not all there is to it."""
    try:
        attributes = dict(span.attributes)
        pattern = _Pattern(span.resource, attributes, span.kind, span.status, span.instrumentation_scope)
        copy = _ended((span.name, {}, span.start_time, span.end_time), span.context, span.parent, pattern)
        whole = all(same_part(getattr(copy, part), getattr(span, part)) for part in PARTS)
    except Exception:  # noqa: BLE001  # whatever it is, this SDK is not one that is known
        return None
    return pattern if whole and not span.dropped_attributes else None
