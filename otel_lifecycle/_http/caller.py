"""The context that a server's request belongs under."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from opentelemetry.context import Context, get_current
from opentelemetry.trace import INVALID_SPAN, get_current_span, set_span_in_context

from otel_lifecycle import _propagation
from otel_lifecycle._log import say

_WSGI: Final = "http_"


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
    try:
        carried = _propagation.extract(_by_name(headers))
    except Exception as error:  # noqa: BLE001  # a propagator or headers that fail cost the parent, not the request
        say("caller", "a propagator failed; the request has no parent", level=logging.ERROR, error=error)
        return here
    # Equal trace ids: an instrumentation around us has gone on from these headers, and its span lies in between.
    theirs = get_current_span(carried).get_span_context()
    ours = get_current_span(here).get_span_context()
    if ours.is_valid and (not theirs.is_valid or theirs.trace_id == ours.trace_id):
        return here
    # The headers win.  What they do not carry, such as values of the app's own, stays.
    return Context({**here, **carried})


def text_of(value: Any) -> str:
    """Return a header's name or value as text; on the wire it is Latin-1."""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _by_name(headers: Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in _pairs(headers):
        if isinstance(name, (str, bytes)) and isinstance(value, (str, bytes)):
            key = text_of(name).lower()
            key = key[len(_WSGI) :].replace("_", "-") if key.startswith(_WSGI) else key
            found.setdefault(key, []).append(text_of(value))
    return found


def _pairs(headers: Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None) -> Iterator[tuple[Any, Any]]:
    """Iterate over pairs; a mapping may have lists as values, and ``items()`` of a multi-mapping repeats a name."""
    if headers is None:
        return
    for name, value in headers.items() if isinstance(headers, Mapping) or hasattr(headers, "items") else headers:
        for one in value if isinstance(value, (list, tuple)) else (value,):
            yield name, one
