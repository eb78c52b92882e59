"""Which request is current.

A request is current only inside ``stage()`` and ``active()``, during each step of ``stream`` and ``traced``, and in the
middleware.  The context holds its handle weakly: a context that a background task copied keeps no request alive.
"""

from __future__ import annotations

from contextvars import Token
from typing import Final

from opentelemetry.context import Context, create_key, detach, get_value, set_value
from opentelemetry.trace import Span, set_span_in_context

from otel_lifecycle._request.token_path import TokenPath
from otel_lifecycle._request.tracked import TrackedRequest

_REQUEST: Final = create_key("otel_lifecycle-request")


def context_of(tracked: TrackedRequest, base: Context | None = None, span: Span | None = None) -> Context:
    """Return a context in which the request is current, and its span or one of its children."""
    return set_value(_REQUEST, tracked.reference, set_span_in_context(span or tracked.span, base))


def is_current(tracked: TrackedRequest) -> bool:
    """Return whether the request is the current one."""
    # Comparing the references keeps the handle weakly held; a strong reference here could be its last one.
    return get_value(_REQUEST) is tracked.reference


def without_request(here: Context, outside: Context) -> Context:
    """Return a context with the request that was current outside this one, or with none."""
    return set_value(_REQUEST, outside.get(_REQUEST), here)


def handle_in_context() -> TokenPath | None:
    """Return the handle that is current, whether its request has ended or not."""
    reference = get_value(_REQUEST)
    return reference() if callable(reference) else None


def detach_own(token: object) -> None:
    """Detach what was attached around one await of ours; where the token is of another context, do nothing.

    The garbage collector, or a loop that ends, closes a discarded coroutine in any context.  What was attached is gone
    with its own context then, and ``detach`` would log that as an error.
    """
    if not isinstance(token, Token):
        detach(token)  # type: ignore[arg-type]  # of another runtime context than OpenTelemetry's own
        return
    try:
        token.var.reset(token)
    except ValueError:
        return
