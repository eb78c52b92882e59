"""The context that a server's request belongs under."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.context import Context, get_current
from opentelemetry.trace import INVALID_SPAN, get_current_span, set_span_in_context

from otel_lifecycle._propagation import parent_context


def caller_context(headers: Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None) -> Context:
    """Return what the headers of a request carry, on top of what is current.

    ``headers``: a mapping or pairs, names in any case, text or bytes; a WSGI environ (``HTTP_TRACEPARENT``) too.

    An HTTP instrumentation around us may have continued the trace of the headers already: then its span is current and
    belongs to that trace, and the request goes below it.  A current span of another trace, such as that of the
    server's start, is not the request's caller.  Where the headers carry nothing, the current span is the best there
    is.  A span that has ended belongs to an earlier request of the connection: a server that was called inside that
    request went on in its context.
    """
    here = get_current()
    # end_time is public on the SDK's spans.  The API's spans have none and count as running.
    if getattr(get_current_span(here), "end_time", None) is not None:
        here = set_span_in_context(INVALID_SPAN, here)
    return parent_context(() if headers is None else headers, here)


def text_of(value: Any) -> str:
    """Return a header's name or value as text; on the wire it is Latin-1."""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
