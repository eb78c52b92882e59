"""``serving``: one request of a server that has no adapter, from its headers to the end of its handler.

    async def handler(http):                                            # aiohttp, Tornado, Sanic, a raw socket
        async with lifecycle.serving(http.headers, model="smollm2") as request:
            async for token in request.stream(engine.generate(await http.text())):
                await response.write(token)                             # a client that left: cancelled

It opens the request under the trace that the headers carry and makes it current in the block.  The end of the block is
the end of the request: a normal one completes it, and an exception ends it by the table of endings.  A broken
connection is the client's, unless it came out of ``stream()`` or ``stage()``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, TypeAlias

from opentelemetry.context import attach
from opentelemetry.trace import TracerProvider

from otel_lifecycle._http.caller import caller_context
from otel_lifecycle._request.clock import NOW, AtNs
from otel_lifecycle._request.context import detach_own
from otel_lifecycle.driver import Active, Driver, begin
from otel_lifecycle.types import Request

Headers: TypeAlias = "Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None"
"""A mapping or pairs, names in any case, text or bytes; a WSGI environ and gRPC metadata too."""


class Serving:
    """The block that :func:`serving` returns, ``with`` and ``async with``; entered once."""

    __slots__ = ("_active", "_arguments", "_driver", "_headers", "_token")

    def __init__(self, headers: Headers, arguments: dict[str, Any]) -> None:
        self._headers = headers
        self._arguments = arguments
        self._token: object = None
        self._driver: Driver | None = None
        self._active: Active | None = None

    def __enter__(self) -> Request:
        conditions = self._arguments.pop("conditions")
        parent = caller_context(self._headers)
        self._driver = driver = begin(conditions, parent=parent, **self._arguments)
        # The baggage that the headers carry is current too, unless the request was joined and has its own.
        self._token = attach(parent) if driver.owned else None
        self._active = driver.active()
        self._active.__enter__()
        return driver.request

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._active is None or self._driver is None:
            return
        # The reverse order of __enter__: each detach needs its own context on top.
        self._active.leave()
        if self._token is not None:
            detach_own(self._token)
        if error is None:
            self._driver.answered()
        else:
            self._driver.leave(error)

    async def __aenter__(self) -> Request:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


def serving(
    headers: Headers = None,
    *,
    deadline: float | None = None,
    shape: str = "default",
    arrived_at_ns: AtNs = NOW,
    previous: object = None,
    tracer_provider: TracerProvider | None = None,
    **conditions: Any,
) -> Serving:
    """Return a block, sync or async, that serves one request; entering it gives the request's handle.

    ``headers``: where the caller's trace is looked for: a mapping or pairs, any case, text or bytes, a WSGI environ or
    gRPC metadata.  ``deadline``: seconds after arrival from which a cancellation is a timeout; nothing is enforced.
    ``conditions`` and the rest: as for :func:`otel_lifecycle.request`.  Where an unended request is current, the block
    acts on that one and leaves its end to its owner.  Do not ``yield`` inside the block: the request would stay current
    for the consumer; in a generator use ``with lifecycle.request(parent=headers)`` and ``request.stream()``.

    Raises ConfigurationError for a shape that does not exist.  A condition that cannot be is a violation.
    """
    arguments = {
        "shape": shape,
        "arrived_at_ns": arrived_at_ns,
        "previous": previous,
        "tracer_provider": tracer_provider,
        "conditions": {**conditions, "deadline": deadline},
    }
    return Serving(headers, arguments)
