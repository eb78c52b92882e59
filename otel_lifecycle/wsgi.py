"""WSGI: each request of the chosen routes, from its arrival in the process to the end of its response (PEP 3333).

    app.wsgi_app = LifecycleMiddleware(app.wsgi_app, routes=["/v1/chat/completions"])       # Flask
    application = LifecycleMiddleware(get_wsgi_application(), routes=["/v1/*"])              # Django

The request is current while the app runs and while each part of its body is made.  WSGI has no message for a client
that left: the server closes the body before its end.  Where a server only iterates, or an app answers in one piece, a
departure cannot be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

from opentelemetry.context import attach, get_current
from opentelemetry.trace import TracerProvider

from otel_lifecycle._core.endings import COMPLETE, Terminal, cancellation, failure, of_status, read_status
from otel_lifecycle._core.text import is_a, shown
from otel_lifecycle._guard import guarded
from otel_lifecycle._http.body_tokens import BodyTokens
from otel_lifecycle._http.caller import caller_context
from otel_lifecycle._http.reading import headers_in, plain_bytes, plain_text, served_at, text_in
from otel_lifecycle._http.routes import OPENAI_ROUTES, Route, RouteTable, Tokens
from otel_lifecycle._http.server_timing import NAME, server_timing
from otel_lifecycle._request.context import detach_own
from otel_lifecycle.driver import Driver
from otel_lifecycle.errors import ConfigurationError

__all__ = ["OPENAI_ROUTES", "LifecycleMiddleware", "Route"]

Environ: TypeAlias = "dict[str, Any]"
StartResponse: TypeAlias = "Callable[..., Callable[[bytes], Any]]"

ENVIRON_KEY: Final = "otel_lifecycle.request"
"""Marks the environ of a request that is followed, so that a nested middleware skips it."""


MAX_DIGITS: Final = 16
"""A length with more digits is none that a body can have."""


class WsgiMiddleware:
    """Makes each request of the given routes an inference request; everything else passes untouched.

    ``routes``, ``tokens``, ``shape``, ``server_timing``, ``tenant_header`` and ``conditions``: as for
    :class:`otel_lifecycle.asgi.LifecycleMiddleware`.  With ``server_timing`` the header tells the stages that are over
    when the app starts its response: WSGI cannot hold it back.

    Raises ConfigurationError for an argument that makes no sense.
    """

    def __init__(
        self,
        app: Callable[..., Any],
        *,
        routes: Iterable[Any] = (),
        tokens: Tokens = None,
        shape: str = "default",
        server_timing: bool = False,
        tenant_header: str | None = None,
        tracer_provider: TracerProvider | None = None,
        **conditions: Any,
    ) -> None:
        if not callable(app):
            raise ConfigurationError(f"app is {shown(app)}; it must be a WSGI application")
        self.app = app
        self._server_timing = server_timing
        self._table = RouteTable(
            routes,
            conditions,
            tokens=tokens,
            shape=shape,
            tenant_header=tenant_header,
            tracer_provider=tracer_provider,
        )

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        route = None if ENVIRON_KEY in environ else self._route_of(environ)
        if route is None:
            return self.app(environ, start_response)  # type: ignore[no-any-return]  # the app's own body
        parent = caller_context(environ)
        place = served_at(environ.get("SERVER_NAME"), environ.get("SERVER_PORT"))
        driver = self._table.begin(route, _headers_of(environ), parent=parent, place=place)
        environ[ENVIRON_KEY] = True
        response = _WsgiResponse(driver, self._table.tokens_of(route), start_response, timed=self._server_timing)
        # The baggage of the headers is current too, unless the request was joined and has its own.
        # Detached before the body: a server may iterate it in another thread, or between parts of other requests.
        token = attach(parent if driver.owned else get_current())
        try:
            body = driver.run(self.app, environ, response.start)
        finally:
            detach_own(token)
        # The server copies such a body from the file to the socket itself, and recognises it by its class.
        if type(body) is environ.get("wsgi.file_wrapper"):
            response.exhausted()
            return body  # type: ignore[no-any-return]  # the app's own body
        return (_SizedBody if hasattr(type(body), "__len__") else _WsgiBody)(body, response)

    def _route_of(self, environ: Environ) -> Route | None:
        return self._table.find(text_in(environ, "REQUEST_METHOD"), text_in(environ, "PATH_INFO"))


LifecycleMiddleware = WsgiMiddleware
"""Its public name, the same as that of the ASGI middleware; a class name is unique in the package."""


class _WsgiResponse:
    """What is known of one response, and how it ends the request."""

    __slots__ = ("_bytes", "_counter", "_length", "_sent", "_start", "_status", "_timed", "driver")

    def __init__(self, driver: Driver, tokens: Tokens, start: StartResponse, *, timed: bool) -> None:
        self.driver = driver
        self._counter = None if tokens is None else BodyTokens(driver, tokens)
        self._start = start
        self._timed = timed
        self._status: int | None = None
        self._length: int | None = None
        self._bytes = 0
        self._sent = False

    def start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], Any]:
        """Stand in for the server's ``start_response``."""
        guarded("a response", self._begin, status, headers)
        # Pass on only what was given: another server's start_response may not take more arguments.
        write = self._start(status, headers) if exc_info is None else self._start(status, headers, exc_info)

        # The write() of PEP 3333 for old apps: its parts are parts of the body, too.
        def watched(data: bytes) -> Any:
            guarded("a response", self.took, data)
            result = write(data)
            guarded("a response", self.delivered)
            return result

        return watched

    def _begin(self, status: str, headers: list[tuple[str, str]]) -> None:
        self._status = read_status(status)
        # As ASGI has them: one reader serves both.
        named = headers_in({"headers": headers}) if is_a(headers, (list, tuple)) else []
        # closed() compares the bytes with it: WSGI has no other sign that a body was complete when it was closed.
        length = {name.lower(): value for name, value in named}.get(b"content-length", b"")
        self._length = int(length) if length.isdigit() and len(length) < MAX_DIGITS else None
        if self._counter is not None:
            self._counter.begin(self._status or 0, named)
        value = server_timing(self.driver) if self._timed else None
        if value is not None and type(headers) is list:
            # In place, because this list goes to the server next. PEP 3333 allows no other type.
            headers.append((NAME, value))

    def took(self, data: bytes) -> None:
        """A part of the body goes to the server; when it asks for the next one, this one has been sent."""
        part = plain_bytes(data)
        self._bytes += len(part)
        if self._counter is not None:
            # A server may stop asking at the announced length, and then the iteration does not end.
            self._counter.feed(part, last=self._bytes == self._length)

    def delivered(self) -> None:
        """The first byte is out."""
        if self._bytes and not self._sent:
            self._sent = True
            self.driver.mark("delivered")

    def exhausted(self) -> None:
        """The body is at its end."""
        if self._counter is not None and self._bytes != self._length:
            self._counter.feed(b"", last=True)
        terminal = self._terminal()
        if terminal == COMPLETE:
            self.driver.answered()
        else:
            self.driver.end(terminal)

    def _terminal(self) -> Terminal:
        refusal = None if self._counter is None else self._counter.refusal
        if refusal or self._status is None:
            return failure(refusal)
        # The framework made a 500 of what came out of the engine, which says more than the status.
        raised = self.driver.raised if self._status >= 500 else None
        return raised or of_status(self._status)

    def closed(self) -> None:
        """The server closed the body: the client left, unless all that was announced is out."""
        if self._length is not None and self._bytes >= self._length:
            self.exhausted()
        elif not self.driver.ended:
            self.driver.mark("client_disconnected")
            self.driver.end(cancellation("client_disconnected"))


class _WsgiBody:
    """The body of a response: the request is current while each part is made."""

    def __init__(self, body: Iterable[bytes], response: _WsgiResponse) -> None:
        self._body = body
        self._response = response
        self._parts: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        response = self._response
        guarded("a response", response.delivered)
        part: bytes | None = response.driver.run(self._next)
        if part is None:
            guarded("a response", response.exhausted)
            raise StopIteration
        guarded("a response", response.took, part)
        return part

    def _next(self) -> bytes | None:
        """Return the next part; None at the end, because an exception that leaves the driver ends the request by it."""
        # Not in the constructor: the first step of a generator, or __iter__, may do the work of the request.
        if self._parts is None:
            self._parts = iter(self._body)
        part: bytes | None = next(self._parts, None)
        return part

    def close(self) -> None:
        """Close the app's body, and end the request if the body was not at its end."""
        response = self._response
        # If the server does not ask again, close() is the only sign that it took the last part.
        guarded("a response", response.delivered)
        guarded("a response", response.closed)
        close = getattr(self._body, "close", None)
        if close is not None:
            close()


class _SizedBody(_WsgiBody):
    """A body with a known number of parts: a server takes the length of a single part as the response's length."""

    def __len__(self) -> int:
        return len(self._body)  # type: ignore[arg-type]  # made only of a body that has it


def _headers_of(environ: Environ) -> list[tuple[str, str]]:
    texts = [(plain_text(name), plain_text(value)) for name, value in environ.items() if is_a(value, str)]
    return [(name[len("HTTP_") :].replace("_", "-"), value) for name, value in texts if name[:5] == "HTTP_"]
