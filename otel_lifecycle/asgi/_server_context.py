"""The context the server called the middleware in, put back while the server itself is called.

Inside its ``receive`` and ``send`` a server resumes reading and may start the next request of the connection; what it
starts there runs in the context it finds (uvicorn: a long body, or pipelining).  That request would join
ours.  The "http send" and "http receive" spans of an instrumentation around us would become children of our request,
too.  A span that the app has opened since then stays current, as it would without us.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import get_current_span

from otel_lifecycle._request.context import without_request

Result = TypeVar("Result")


class ServerContext:
    """The context outside our request.  Make it before the request becomes current, and call :meth:`enter` afterwards.

    ``spans``: whether an instrumentation around us has a span of its own, which has to see every message.
    """

    __slots__ = ("_outside", "_own", "spans")

    def __init__(self) -> None:
        self._outside = get_current()
        self._own = get_current_span(self._outside)
        self.spans = self._own.get_span_context().is_valid

    def enter(self) -> None:
        """Note that the current span is now the request's."""
        self._own = get_current_span()

    async def call(self, function: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        """Await ``function(*arguments)`` there."""
        # Attached in this task, not run in a task of its own: a cancellation of the app must reach the server.
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
        # Another current span is one that the app opened: keep it, and take out only the request.
        return self._outside if get_current_span(here) is self._own else without_request(here, self._outside)
