"""What is around the middleware: a server, and perhaps an HTTP instrumentation, that shall not find our request."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import Span, get_current_span

from otel_lifecycle._log import say
from otel_lifecycle._request.context import without_request
from otel_lifecycle.errors import LifecycleError

Result = TypeVar("Result")


def guarded(place: str, look: Callable[..., object], *arguments: Any) -> None:
    """Look at what passes by; what goes wrong in it is said and goes no further, unless the processor is strict."""
    try:
        look(*arguments)
    except LifecycleError:
        raise
    except Exception as error:  # noqa: BLE001  # the app's response must not fail for our sake
        say(place, f"{place} could not be read", level=logging.ERROR, error=error)


class Around:
    """The context the middleware was called in, current again while the server is called.

    Within its ``receive`` and ``send`` a server resumes reading and starts the next request of the connection, and what
    it starts there goes on in the context it finds (uvicorn: a long body, or pipelining).  That request would take ours
    for its own.  The "http send" and "http receive" spans of an instrumentation around us would come to lie in ours,
    too.  A span that the app has made since stays current, as it would without us.

    ``spans``: whether there is such an instrumentation.
    """

    __slots__ = ("_outside", "_own", "spans")

    def __init__(self, own: Span) -> None:
        outside = get_current_span()
        self._own = own
        self._outside = get_current()
        self.spans = outside is not own and outside.get_span_context().is_valid

    async def call(self, function: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        """Await ``function(*arguments)`` there."""
        token = attach(self._context())
        try:
            result = await function(*arguments)
        except GeneratorExit:
            # The event loop is gone, and the context with it: there is nothing to detach from.
            raise
        except BaseException:
            detach(token)
            raise
        detach(token)
        return result

    def _context(self) -> Context:
        here = get_current()
        return self._outside if get_current_span(here) is self._own else without_request(here, self._outside)
