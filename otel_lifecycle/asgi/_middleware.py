"""``LifecycleMiddleware``: plain ASGI, so that nothing is buffered and a client that leaves is seen."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final, TypeAlias

from opentelemetry.context import Context, attach, create_key, detach, get_current, get_value, set_value
from opentelemetry.trace import INVALID_SPAN, TracerProvider, get_current_span, set_span_in_context

from otel_lifecycle import _propagation, driver
from otel_lifecycle._core.lifecycle import get_shape
from otel_lifecycle._log import say
from otel_lifecycle._request.clock import Anchor, anchor
from otel_lifecycle.asgi._around import Around, guarded
from otel_lifecycle.asgi._exchange import Exchange
from otel_lifecycle.asgi._inbox import Inbox, Message
from otel_lifecycle.asgi._lifespan import live
from otel_lifecycle.asgi._routes import Route, Tokens, check_conditions, check_tokens, read_routes
from otel_lifecycle.driver import Driver
from otel_lifecycle.errors import ConfigurationError

Send: TypeAlias = "Callable[[Message], Awaitable[None]]"
# As loose as this because each framework has types of its own for scopes and messages.
App: TypeAlias = "Callable[[Any, Any, Any], Awaitable[None]]"

SCOPE_KEY: Final = "otel_lifecycle.request"
"""Where the middleware leaves word in the scope that it follows the request, for one of its kind further in."""
_FOLLOWED: Final = create_key("otel_lifecycle-exchange")


class LifecycleMiddleware:
    """Makes each HTTP request of the given routes an inference request; everything else passes untouched.

    ``app.add_middleware(LifecycleMiddleware, routes=["/v1/chat/completions"])``

    It arrives when this is called, before its body is read, under the parent that its headers carry.  It is current
    while the app runs: the handler finds it by ``lifecycle.current()``, may mark its boundaries, ``set()`` what it
    learns and end it by itself.  A client that leaves is noted when it does, once the app has read its body;
    ``delivered`` is the first byte of the answer.  Where nobody else has, it ends with its response: answered, it is
    complete, and boundaries that nobody marked pass at an unknown time; 429 is a failure by rate_limited, 503 by
    queue_full, any other error by its exception or status; torn down, or given up within half a second by an app that
    was told the client left, it is cancelled.

    ``routes``: paths, patterns and :class:`Route` objects; without any, nothing is followed.  ``tokens``: from one
    part of a streamed body (an event, or a chunk where there are none), or from a whole body of JSON, as bytes, to
    how many tokens are in it (0, n, or None for unknown); ``"openai"`` reads the frames of an OpenAI-compatible
    server with all they tell, an error inside a 200 too.  A handler that marks its own tokens needs none of it.  The
    rest: conditions of every route that does not give its own, named as for :func:`otel_lifecycle.request`.

    Raises ConfigurationError for anything here that makes no sense.
    """

    def __init__(
        self,
        app: App,
        *,
        routes: Iterable[Any] = (),
        tokens: Tokens = None,
        shape: str = "default",
        tracer_provider: TracerProvider | None = None,
        model: str | None = None,
        operation: str | None = None,
        provider: str | None = None,
        dtype: str | None = None,
        backend: str | None = None,
        backend_version: str | None = None,
        revision: str | None = None,
        cache_policy: str | None = None,
        role: str = "whole",
        traffic: str = "live",
        workload: str | None = None,
        deadline: float | None = None,
    ) -> None:
        if not callable(app):
            raise ConfigurationError(f"app is {app!r:.80}; it must be an ASGI application")
        self.app = app
        self._routes = read_routes(routes)
        self._tokens = check_tokens(tokens)
        self._shape = get_shape(shape).name
        self._conditions = check_conditions(
            {
                "model": model,
                "operation": operation,
                "provider": provider,
                "dtype": dtype,
                "backend": backend,
                "backend_version": backend_version,
                "revision": revision,
                "cache_policy": cache_policy,
                "role": role,
                "traffic": traffic,
                "workload": workload,
                "deadline": deadline,
            }
        )
        self._tracer_provider = tracer_provider

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await live(self.app, scope, receive, send)
            return
        route = self._route_of(scope)
        if route is None:
            await self.app(scope, receive, send)
            return
        started = anchor()
        # Of another exchange: an app that calls a second one in its own process has two requests.
        joins = not get_value(_FOLLOWED)
        here, parent = get_current(), _parent(scope)
        drive = self._open(route, parent, started, join=joins)
        if not drive:
            await self.app(scope, receive, send)
            return
        context = parent if drive.owned else here
        tokens = route.tokens or self._tokens
        exchange = Exchange(drive, tokens)
        scope[SCOPE_KEY] = True
        around = Around(drive.span)
        inbox = Inbox(receive, around, exchange.client_left, empty=_is_empty(scope))
        outbox = _Outbox(send, around, exchange)
        app = partial(self.app, scope, inbox.receive, outbox.send)
        try:
            await _in_context(app, drive.context(set_value(_FOLLOWED, True, context)), exchange)
        finally:
            inbox.close()

    def _route_of(self, scope: Message) -> Route | None:
        if scope["type"] != "http" or not self._routes or SCOPE_KEY in scope:
            return None
        path: str = scope["path"]
        root: str = scope.get("root_path", "").rstrip("/")
        if root and path.startswith(root) and path[len(root) :].startswith("/"):
            path = path[len(root) :]
        return next((route for route in self._routes if route.matches(scope["method"], path)), None)

    def _open(self, route: Route, context: Context, started: Anchor, *, join: bool) -> Driver:
        return driver.begin(
            {**self._conditions, **route.conditions},
            join=join,
            shape=route.shape or self._shape,
            tracer_provider=self._tracer_provider,
            started=started,
            parent=context,
        )


async def _in_context(app: Callable[[], Awaitable[None]], context: Context, exchange: Exchange) -> None:
    """Run the app with the request current, and take its end from what leaves the app."""
    token = attach(context)
    try:
        await app()
    except GeneratorExit as error:
        # The event loop is gone, and the context with it: there is nothing to detach from.
        exchange.leave(error)
        raise
    except BaseException as error:
        detach(token)
        exchange.leave(error)
        raise
    detach(token)
    exchange.leave(None)


class _Outbox:
    """The sending side: each message is looked at before and after the server takes it."""

    __slots__ = ("_around", "_exchange", "_send")

    def __init__(self, send: Send, around: Around, exchange: Exchange) -> None:
        self._send = send
        self._around = around
        self._exchange = exchange

    async def send(self, message: Message) -> None:
        """Pass a message on."""
        exchange = self._exchange
        # The middle of a stream that nobody counts tells nothing: it passes at the cost of this question.
        telling = not (exchange.quiet and message.get("more_body"))
        if telling:
            guarded("a response", exchange.sending, message)
        try:
            if message.get("more_body") and not self._around.spans:
                # The server starts nothing that outlives this call before the last part is sent.
                await self._send(message)
            else:
                await self._around.call(self._send, message)
        except OSError as error:
            guarded("a response", exchange.refused, message, error)
            raise
        if telling:
            guarded("a response", exchange.sent, message)


def _is_empty(scope: Message) -> bool:
    """Whether the headers of a request say that it has no body."""
    headers = {name.lower(): value for name, value in scope.get("headers", ())}
    return headers.get(b"content-length", b"0").strip() == b"0" and b"transfer-encoding" not in headers


def _parent(scope: Message) -> Context:
    """Return the context the request belongs under: what its headers carry, on top of what is current.

    Unless an HTTP instrumentation around us has gone on from the headers already: then its span is current, in their
    trace.  A current span of another trace, of the server's start say, is not the request's; of a request whose headers
    carry nothing it is the best there is.  One that has ended is of an earlier request of the connection: a server that
    was called within it has gone on in its context.
    """
    here = get_current()
    if getattr(get_current_span(here), "end_time", None) is not None:
        here = set_span_in_context(INVALID_SPAN, here)
    headers: dict[str, list[str]] = {}
    for name, value in scope.get("headers", ()):
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    try:
        carried = _propagation.extract(headers)
    except Exception as error:  # noqa: BLE001  # a propagator that fails costs the parent, not the request
        say("asgi.parent", "a propagator failed; the request has no parent", level=logging.ERROR, error=error)
        return here
    theirs = get_current_span(carried).get_span_context()
    ours = get_current_span(here).get_span_context()
    if ours.is_valid and (not theirs.is_valid or theirs.trace_id == ours.trace_id):
        return here
    return Context({**here, **carried})
