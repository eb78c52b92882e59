"""When samples were taken, and in which trace.

How it works.  A sample waits in a buffer until it is folded, and must then look as if it had been recorded at once: an
exemplar has the time and the trace of the request, not those of the thread that collects.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import time_ns
from typing import TypeAlias

from opentelemetry.context import Context, get_current
from opentelemetry.trace import NonRecordingSpan, SpanContext, get_current_span, set_span_in_context

Labels: TypeAlias = Mapping[str, "str | bool"]
"""Attributes of a metric: strings and booleans under non-empty names."""


class Moment:
    """When samples were taken, and the trace they belong to.

    All samples of a request share one moment.  It keeps the span's identity and not the span, because it can wait for
    the next collection.  The context that the SDK wants is made when somebody asks for it: where the request was not
    sampled, usually nobody does.
    """

    __slots__ = ("_context", "sampled", "span_context", "time_unix_nano")

    def __init__(self, span_context: SpanContext, time_unix_nano: int) -> None:
        self.span_context = span_context
        self.time_unix_nano = time_unix_nano
        # The bit itself: `TraceFlags.sampled` is a Python property, and this runs for every request.
        self.sampled: bool = bool(span_context.trace_flags & 1) and span_context.is_valid
        self._context: Context | None = None

    @property
    def context(self) -> Context:
        """A context in which the span is current, and nothing else is."""
        if self._context is None:
            self._context = set_span_in_context(NonRecordingSpan(self.span_context), Context())
        return self._context


def now_in(context: Context | None) -> Moment:
    """Return the present moment in the trace of a context; None is the current context."""
    span = get_current_span(get_current() if context is None else context)
    return Moment(span.get_span_context(), time_ns())
