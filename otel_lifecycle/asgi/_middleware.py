"""``LifecycleMiddleware``: plain ASGI, so that nothing is buffered and a client that leaves is seen.

It opens the request and makes it current while the app runs.  ``_disconnect_watch`` wraps the server's ``receive``,
``_sender`` its ``send``, and ``_response`` decides from what both see how the request ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final, TypeAlias

from opentelemetry.context import Context, attach, create_key, detach, get_value, set_value
from opentelemetry.trace import TracerProvider

from otel_lifecycle._core.text import shown
from otel_lifecycle._http.caller import caller_context
from otel_lifecycle._http.reading import headers_in, served_at, text_in, value_in
from otel_lifecycle._http.routes import Route, RouteTable, Tokens
from otel_lifecycle._request.conditions import SERVER_CONDITIONS
from otel_lifecycle.asgi._disconnect_watch import DisconnectWatch, Message, Receive, Send
from otel_lifecycle.asgi._lifespan import live
from otel_lifecycle.asgi._response import HttpResponse
from otel_lifecycle.asgi._sender import ResponseSender
from otel_lifecycle.asgi._server_context import ServerContext
from otel_lifecycle.asgi._websocket import SocketRequests
from otel_lifecycle.driver import Driver
from otel_lifecycle.errors import ConfigurationError

# As loose as this because each framework has types of its own for scopes and messages.
App: TypeAlias = "Callable[[Any, Any, Any], Awaitable[None]]"

SCOPE_KEY: Final = "otel_lifecycle.request"
"""Marks the scope of a request that is followed, so that a nested middleware skips it."""
# In the context besides the scope: an app that is called in process gets a new scope, but the same context.
_FOLLOWED: Final = create_key("otel_lifecycle-exchange")


class LifecycleMiddleware:
    """Makes each request of the given routes an inference request; everything else passes untouched.

    ``app.add_middleware(LifecycleMiddleware, routes=["/v1/chat/completions"])``

    A request arrives when this is called, before its body is read, under the parent that its headers carry.  It is
    current while the app runs: the handler finds it by ``lifecycle.current()``, may mark its boundaries, ``set()`` what
    it learns and end it by itself.  A client that leaves is noted when it does, once the app has read its body;
    ``delivered`` is the first byte of the answer.  Where nobody else ends it, it ends with its response: answered, it
    is complete, and boundaries that nobody marked pass at an unknown time; 429 is a failure by rate_limited, 503 by
    queue_full, any other error by its exception or status; torn down, or given up by an app that was told that its
    client left, it is cancelled.

    ``routes``: paths, patterns and :class:`Route` objects; without any, nothing is followed.  ``tokens``: from one
    part of a streamed body (an event, or a chunk where there are none), or from a whole body of JSON, as bytes, to
    how many tokens are in it (0, n, or None for unknown); ``"openai"`` reads the frames of an OpenAI-compatible
    server with all they tell, an error inside a 200 too.  A handler that marks its own tokens needs none of it.
    ``server_timing``: send the stages up to the first byte as a ``Server-Timing`` header; the head of a response then
    waits for its first byte.  ``tenant_header``: the header that says whose request it is.  The rest: conditions of
    every route that does not give its own, named as for :func:`otel_lifecycle.request`.

    Raises ConfigurationError for an argument that makes no sense.
    """

    def __init__(
        self,
        app: App,
        *,
        routes: Iterable[Any] = (),
        tokens: Tokens = None,
        shape: str = "default",
        server_timing: bool = False,
        tenant_header: str | None = None,
        tracer_provider: TracerProvider | None = None,
        model: str | None = None,
        operation: str | None = None,
        provider: str | None = None,
        engine: str | None = None,
        dtype: str | None = None,
        backend: str | None = None,
        backend_version: str | None = None,
        revision: str | None = None,
        cache_policy: str | None = None,
        role: str | None = None,
        traffic: str | None = None,
        workload: str | None = None,
        unit: str | None = None,
        deadline: float | None = None,
        server_address: str | None = None,
        server_port: int | None = None,
    ) -> None:
        # Parameters one by one, not **conditions: the typed add_middleware() of Starlette refuses those.
        given = locals()
        conditions = {name: given[name] for name in SERVER_CONDITIONS}
        if not callable(app):
            raise ConfigurationError(f"app is {shown(app)}; it must be an ASGI application")
        self.app = app
        self._server_timing = server_timing
        self._table = RouteTable(
            routes, conditions, tokens=tokens, shape=shape, tenant_header=tenant_header, tracer_provider=tracer_provider
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection."""
        kind = text_in(scope, "type")
        if kind == "lifespan":
            await live(self.app, scope, receive, send)
            return
        # The cheap questions first: every request of the server passes here.
        route = None if not self._table.routes or value_in(scope, SCOPE_KEY) is not None else self._route_of(scope)
        if route is None:
            await self.app(scope, receive, send)
        elif kind == "websocket":
            await self._serve_socket(route, scope, receive, send)
        else:
            await self._serve_http(route, scope, receive, send)

    def _route_of(self, scope: Message) -> Route | None:
        kind, path, root = text_in(scope, "type"), text_in(scope, "path"), text_in(scope, "root_path")
        if kind == "http":
            return self._table.find(text_in(scope, "method"), path, root)
        return self._table.find_websocket(path, root) if kind == "websocket" else None

    async def _serve_http(self, route: Route, scope: Message, receive: Receive, send: Send) -> None:
        # An app that calls a second one in its own process has two requests: the outer one is not joined then.
        join = get_value(_FOLLOWED) is None
        headers = headers_in(scope)
        parent = caller_context(headers)
        driver = self._table.begin(route, headers, parent=parent, join=join, place=_place(scope))
        if not driver:
            await self.app(scope, receive, send)
            return
        response = HttpResponse(driver, self._table.tokens_of(route))
        _mark(scope)
        server = ServerContext()
        watch = DisconnectWatch(receive, server, response.client_left, empty=_is_empty(headers))
        sender = ResponseSender(send, server, response, driver if self._server_timing else None)

        async def app() -> None:
            await self.app(scope, watch.receive, sender.send)
            # An app that returns without a body leaves the held head; the server has to see what the app sent.
            await sender.release()

        try:
            # A request that was joined has its context; ours brings the baggage that the headers carry.
            context = set_value(_FOLLOWED, True, parent if driver.owned else None)
            await _in_context(app, driver, context, server, response.leave)
        finally:
            watch.close()

    async def _serve_socket(self, route: Route, scope: Message, receive: Receive, send: Send) -> None:
        _mark(scope)
        headers = headers_in(scope)
        parent, place = caller_context(headers), _place(scope)
        open_request = partial(self._table.begin, route, headers, parent=parent, join=False, place=place)
        requests = SocketRequests(open_request, route, self._table.tokens_of(route), receive, send)
        error: BaseException | None = None
        try:
            await self.app(scope, requests.receive, requests.send)
        except BaseException as raised:
            error = raised
            raise
        finally:
            # In finally and not in except, because a handler that returns normally has left its request, too.
            requests.leave(error)


async def _in_context(
    app: Callable[[], Awaitable[None]],
    driver: Driver,
    context: Context,
    server: ServerContext,
    leave: Callable[[BaseException | None], None],
) -> None:
    """Run the app with the request current, and take its end from what leaves the app."""
    # Not a with block: after GeneratorExit nothing may be detached.
    followed = attach(context)
    active = driver.active()
    active.__enter__()
    server.enter()
    try:
        await app()
    except GeneratorExit as error:
        # The event loop is gone, and the context with it: there is nothing to detach from.
        leave(error)
        raise
    except BaseException as error:
        active.__exit__(None, None, None)
        detach(followed)
        leave(error)
        raise
    active.__exit__(None, None, None)
    detach(followed)
    leave(None)


def _is_empty(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the headers of a request say that it has no body."""
    known = {name.lower(): value for name, value in headers}
    return known.get(b"content-length", b"0").strip() == b"0" and b"transfer-encoding" not in known


def _place(scope: Message) -> dict[str, Any]:
    """Return where the server received a request: its address and port, or the path of its Unix socket."""
    server = value_in(scope, "server")
    return served_at(*server) if type(server) in (tuple, list) and len(server) == 2 else {}


def _mark(scope: Message) -> None:
    # In place, not in a copy: frameworks keep state in the scope that a server or an outer middleware reads.
    try:
        scope[SCOPE_KEY] = True
    except Exception:  # noqa: BLE001  # a scope that takes nothing: the context says that the request is followed
        return
