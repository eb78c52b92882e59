"""What is around the middleware: an HTTP instrumentation whose spans shall be as they are without us."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from opentelemetry.context import attach, detach
from opentelemetry.trace import Span, get_current_span, set_span_in_context

from otel_lifecycle._log import say
from otel_lifecycle.errors import LifecycleError

Result = TypeVar("Result")


def guarded(place: str, look: Callable[..., None], *arguments: Any) -> None:
    """Look at what passes by; what goes wrong in it is said and goes no further, unless the processor is strict."""
    try:
        look(*arguments)
    except LifecycleError:
        raise
    except Exception as error:  # noqa: BLE001  # the app's response must not fail for our sake
        say(place, f"{place} could not be read", level=logging.ERROR, error=error)


class Around:
    """The span that was current where the middleware was called, current again while the server is called.

    Otherwise the "http send" and "http receive" spans of an instrumentation around us would come to lie in our request.
    A span that the app has made since stays current, as it would without us.
    """

    __slots__ = ("_outside", "_own")

    def __init__(self, own: Span) -> None:
        outside = get_current_span()
        self._own = own
        self._outside = outside if outside is not own and outside.get_span_context().is_valid else None

    async def call(self, function: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        """Await ``function(*arguments)`` there."""
        if self._outside is None or get_current_span() is not self._own:
            return await function(*arguments)
        token = attach(set_span_in_context(self._outside))
        try:
            return await function(*arguments)
        finally:
            detach(token)
