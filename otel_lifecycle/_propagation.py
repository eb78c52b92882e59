"""Trace context that leaves the process with a request, comes back with an attempt, or names another request.

How it works.  The app's own propagators read and write headers; W3C ``traceparent`` is always written too.  What comes
from outside may be anything, so a carrier that cannot be read carries nothing and never fails the request.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    Link,
    NonRecordingSpan,
    SpanContext,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_lifecycle import semconv
from otel_lifecycle._core.interference import Interference
from otel_lifecycle._core.text import is_a
from otel_lifecycle._log import say
from otel_lifecycle._runtime import Neighbour, runtime

# The app may use any propagators; the carrier of one attempt must be readable by the next one whatever they are.
_W3C: Final = TraceContextTextMapPropagator()

MAX_HEADERS: Final = 4096
"""Headers looked at.  Servers refuse more than a few hundred; a WSGI environ begins with the process's variables."""


def parent_context(carrier: object, here: Context) -> Context:
    """Return the context that a request belongs under: what its headers carry, on top of what is current.

    ``carrier``: a context; or headers of any kind: a mapping, pairs, a WSGI environ (``HTTP_TRACEPARENT``), or the
    metadata of gRPC; in any case, as text or bytes, with one value or several.

    Where an HTTP instrumentation has gone on from the same headers already, its span is current in their trace, and
    stays the parent.  Whatever cannot be read carries nothing.
    """
    if type(carrier) is Context:
        return carrier
    try:
        carried = propagate.extract(_headers(carrier))
    except Exception as error:  # noqa: BLE001  # a propagator that fails, or a carrier whose methods raise
        say("propagation", "the parent could not be read; the request has none", level=logging.ERROR, error=error)
        return here
    theirs = get_current_span(carried).get_span_context()
    ours = get_current_span(here).get_span_context()
    if ours.is_valid and (not theirs.is_valid or theirs.trace_id == ours.trace_id):
        return here
    # What was carried wins, so its span is the parent; all else that is current stays.
    return Context({**here, **carried})


def _headers(carrier: object) -> dict[str, list[str]]:
    """Return headers by their names in lower case."""
    # The headers of some frameworks are not Mapping and have items(), which repeats a name.
    items: Any = getattr(carrier, "items", None)
    pairs: Iterable[Any] = carrier if items is None else items()  # type: ignore[assignment]  # it may be anything
    headers: dict[str, list[str]] = {}
    for name, value in itertools.islice(pairs, MAX_HEADERS):
        key = _text(name).lower()
        if key.startswith("http_"):
            # How WSGI spells a header.
            key = key[5:].replace("_", "-")
        values: Any = value if is_a(value, (list, tuple)) else (value,)
        headers.setdefault(key, []).extend(_text(one) for one in values if is_a(one, (str, bytes)))
    return headers


def _text(value: object) -> str:
    if is_a(value, bytes):
        # HTTP headers are latin-1, which decodes any bytes without an error.
        return bytes.decode(value, "latin-1")  # type: ignore[arg-type]  # bytes by the line above
    return str.__str__(value) if is_a(value, str) else ""


def inject(span_context: SpanContext, base: Context | None = None) -> dict[str, str]:
    """Return the headers that carry a span's context: W3C ``traceparent`` and those of the app's propagators."""
    context = set_span_in_context(NonRecordingSpan(span_context), base)
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    # Last, so that its `traceparent` stands whatever a propagator of the app wrote there.
    _W3C.inject(carrier, context)
    return carrier


def extract(carrier: Mapping[str, Any]) -> Context:
    """Return the context that headers carry, by the app's propagators."""
    return propagate.extract(carrier)


def link_to(previous: object) -> Link | None:
    """Return a link to the attempt before: a span context, or the carrier of one.  None for anything else."""
    if is_a(previous, Mapping):
        try:
            previous = get_current_span(_W3C.extract(previous, Context())).get_span_context()
        except Exception:  # noqa: BLE001  # a carrier that came as JSON may hold anything; it links nothing then
            return None
    return Link(previous) if type(previous) is SpanContext and previous.is_valid else None


def links_to_culprits(interference: Interference | None) -> list[Link]:
    """Return links to the requests that held one.

    A culprit that is not sampled has no trace to link to: it is left out, and its time still counts.  Its
    request id may belong to another tenant: a switch leaves it out.
    """
    links: list[Link] = []
    for culprit in () if interference is None else interference.culprits:
        # The logs of the runtime know requests by nothing else, and those whose span no processor saw not at all.
        context, request_id = cast("Neighbour | None", culprit.who) or (INVALID_SPAN_CONTEXT, None)
        if context.trace_flags.sampled:
            attributes: dict[str, str | float] = {
                semconv.LINK_REASON: culprit.reason,
                semconv.LINK_TIME: culprit.time / 1e9,
            }
            if request_id is not None and runtime().engines.name_culprits:
                attributes[semconv.REQUEST_ID] = request_id
            links.append(Link(context, attributes))
    return links
