"""Tokens that a backend produces after its request has ended: each of them wasted, together one violation."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, set_span_in_context

from otel_lifecycle import _registry
from otel_lifecycle._core.values import whole
from otel_lifecycle._request.clock import NOW, on_axis
from otel_lifecycle.errors import LifecycleError

if TYPE_CHECKING:
    from otel_lifecycle._request.record import Record

TOKEN_EVENTS: Final = frozenset({"token", "first_token"})

SETTLED_NS: Final = 10 * 10**9
"""After the last token past the end, how long until its lag is recorded."""


def take_late(record: Record, event: str, at_ns: Any, count: Any) -> None:
    """Take an event that came after the end: a token is wasted, anything else a violation."""
    if event in TOKEN_EVENTS:
        late_token(record, count, at_ns, event)
    else:
        record.after_end(event)


def late_token(record: Record, count: Any, at_ns: Any = NOW, event: str = "token") -> None:
    """Count tokens that came after the end; nothing is counted after a shutdown."""
    if record.silenced:
        return
    record.late_at = record.late_last = perf_counter_ns()
    if at_ns is not NOW:
        try:
            record.late_last = on_axis(at_ns, record.offset, "token", record.state) or record.late_last
        except LifecycleError as error:
            record.violate(error)
    record.late_count += whole(count) or 0
    record.reopen()
    if not record.late_told or record.checker.strict:
        record.late_told = True
        record.after_end(event)


def count_wasted(record: Record) -> None:
    """Count the tokens that came after the end since they were last counted."""
    with record.lock:
        late, record.late = record.late, []
        if late:
            # From a thread that was in the middle of token() when the request ended.
            late_token(record, len(late))
        count, record.late_count = record.late_count, 0
    if count and record.assessor is not None:
        record.assessor.record_wasted(count, record.labels, exemplar_context(record))


def flush(record: Record) -> None:
    """Record the tokens that came after the end, and the lag of the last of them."""
    count_wasted(record)
    with record.lock:
        last, record.late_at = record.late_at and record.late_last, 0
        _registry.close_request(record.ticket)
    if last and record.assessor is not None:
        lag = max(0, last - record.timeline.times.get("terminal", record.ended_at))
        record.assessor.record_lag(lag, record.labels, exemplar_context(record))


def exemplar_context(record: Record) -> Context:
    """Return a context whose current span is the request's, for exemplars."""
    if record.span_context is None:
        record.span_context = set_span_in_context(NonRecordingSpan(record.span.get_span_context()), Context())
    return record.span_context
