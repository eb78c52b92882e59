"""Trace context that leaves the process with a request and comes back with an attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_W3C = TraceContextTextMapPropagator()


def inject(span_context: SpanContext, base: Context | None = None) -> dict[str, str]:
    """Return the headers that carry a span's context: W3C ``traceparent`` always, the app's propagators besides."""
    context = set_span_in_context(NonRecordingSpan(span_context), base)
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    _W3C.inject(carrier, context)
    return carrier


def extract(carrier: Mapping[str, Any]) -> Context:
    """Return the context that headers carry, by the app's propagators."""
    return propagate.extract(carrier)


def link_to(previous: object) -> Link | None:
    """Return a link to the attempt before: a span context, or the carrier of one.  None of anything else."""
    if isinstance(previous, Mapping):
        try:
            previous = get_current_span(_W3C.extract(previous, Context())).get_span_context()
        except Exception:  # noqa: BLE001  # a carrier that came as JSON may hold anything; it links nothing then
            return None
    return Link(previous) if isinstance(previous, SpanContext) and previous.is_valid else None
