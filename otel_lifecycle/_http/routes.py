"""Which requests of a server are inference requests, and what their route alone says about them.

A path is compiled to a pattern at set-up, so that a request costs one match for each route.  A route that cannot be
right is refused at set-up, too: a route that never matches would only show as missing telemetry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from opentelemetry.context import Context
from opentelemetry.trace import TracerProvider

from otel_lifecycle._core.lifecycle import get_shape
from otel_lifecycle._core.text import is_a, shown
from otel_lifecycle._http.caller import text_of
from otel_lifecycle._request.conditions import CONDITIONS, check_names, check_role, given, read_condition
from otel_lifecycle._request.streams import Counter
from otel_lifecycle.driver import Driver, begin
from otel_lifecycle.errors import ConfigurationError, InvalidValue

Tokens: TypeAlias = "Counter | Literal['openai'] | None"
"""How the tokens of a body are counted: by a callable, as frames of an OpenAI-compatible server, or not."""

OPENAI: Final = "openai"
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
BODILESS: Final = frozenset({"HEAD", "OPTIONS", "TRACE", "CONNECT"})
"""Methods that ask for no answer: a route that names no method does not match them."""

# A field name, RFC 9110, section 5.6.2.
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# A segment, or a parameter in braces that stands for one.
_PART: Final = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}|[^{}*?#\s]+")


Rule: TypeAlias = "Callable[[str | bytes], Any]"
"""From the text or bytes of one message to what it means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Which messages of a WebSocket begin and end a request.

    ``begins``: from a received message to whether it begins a request, as a bool or as a mapping of conditions (named
    as for :func:`otel_lifecycle.request`); left out, every message does.  ``ends``: from a message that was sent to
    whether it is the last of its answer, as a bool or as the engine's finish reason; left out, an answer is over when
    the app asks for the next message.  ``cancels``: from a received message to whether the client gives up the request
    that is open; left out, none does.  A request that is still open when the next one begins is over.
    """

    begins: Rule | None = None
    ends: Rule | None = None
    cancels: Rule | None = None


class Route:
    """One route whose requests are followed, and the conditions they have in common.

    ``path``: ``"/v1/chat/completions"``, exactly that; ``"/models/{name}/infer"``, where a name in braces stands for
    one segment; ``"/v1/*"``, everything below; ``"POST /generate"``, of one method; or a compiled pattern that has to
    match the whole path.  The path is the one below ``root_path``, without the query.  ``methods``: left out, every
    method that asks for an answer (not HEAD, OPTIONS, TRACE or CONNECT).  ``tokens``: how the tokens of a response are
    counted; see :class:`otel_lifecycle.asgi.LifecycleMiddleware`.  ``messages``: makes it a route of WebSockets (ASGI
    only), each with any number of requests.  ``shape`` and the rest: as for :func:`otel_lifecycle.request`.

    Raises ConfigurationError for a path, method, counter, shape or condition that makes no sense.
    """

    __slots__ = ("conditions", "messages", "methods", "path", "pattern", "shape", "tokens")

    def __init__(
        self,
        path: str | re.Pattern[str],
        *,
        methods: Iterable[str] | None = None,
        tokens: Tokens = None,
        shape: str | None = None,
        messages: Messages | None = None,
        **conditions: Any,
    ) -> None:
        named, self.path = _split_method(path)
        if named is not None and methods is not None:
            raise ConfigurationError(f"the route {shown(path)} names a method, and methods= does too; give one of them")
        self.methods = _check_methods(methods if named is None else (named,))
        self.pattern = _compile(self.path)
        self.tokens = check_tokens(tokens)
        self.shape = None if shape is None else get_shape(shape).name
        self.messages = _check_messages(messages, self.methods, path)
        self.conditions = check_conditions(conditions)

    def matches(self, method: str, path: str) -> bool:
        """Return whether a request of this method for this path is one of the route's."""
        allowed = method not in BODILESS if self.methods is None else method in self.methods
        return allowed and self.pattern.fullmatch(path) is not None

    def __repr__(self) -> str:
        path = self.path if isinstance(self.path, str) else self.path.pattern
        return f"<Route {'|'.join(sorted(self.methods)) + ' ' if self.methods else ''}{path}>"


class RouteTable:
    """The routes of a middleware with what they have in common: it finds the route of a request and opens it.

    ``tenant_header``: the name of the header that says whose request it is.  ``conditions``: those of every route that
    does not give its own.
    """

    __slots__ = ("_conditions", "_provider", "_shape", "_tenant_header", "_tokens", "routes")

    def __init__(
        self,
        routes: Iterable[Any],
        conditions: Mapping[str, Any],
        *,
        tokens: Tokens = None,
        shape: str = "default",
        tenant_header: str | None = None,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        self.routes = read_routes(routes)
        self._tokens = check_tokens(tokens)
        self._shape = get_shape(shape).name
        self._conditions = check_conditions(conditions)
        self._tenant_header = _check_header(tenant_header)
        self._provider = tracer_provider

    def find(self, method: str, path: str, root: str = "") -> Route | None:
        """Return the first route of HTTP that matches; ``root``: what the app is mounted below."""
        # A linear search: a server has a handful of routes, and their order decides between two that match.
        below = _below(path, root)
        return next((one for one in self.routes if one.messages is None and one.matches(method, below)), None)

    def find_websocket(self, path: str, root: str = "") -> Route | None:
        """Return the first route of WebSockets that matches."""
        below = _below(path, root)
        return next((one for one in self.routes if one.messages is not None and one.pattern.fullmatch(below)), None)

    def tokens_of(self, route: Route) -> Tokens:
        """Return how the tokens of this route's bodies are counted."""
        own: Tokens = route.tokens
        return own or self._tokens

    def begin(
        self,
        route: Route,
        headers: Iterable[tuple[Any, Any]],
        *,
        parent: Context,
        join: bool = True,
        more: Mapping[str, Any] | None = None,
        place: Mapping[str, Any] | None = None,
    ) -> Driver:
        """Open a request of this route, or join the current one.

        ``headers``: pairs of bytes or text.  ``place``: where the server received it, unless the conditions say that.
        """
        tenant = None if self._tenant_header is None else _value_of(headers, self._tenant_header)
        own = {} if tenant is None else {"tenant": tenant}
        # Later entries win: the route over the middleware, and what the request itself says over both.
        return begin(
            {**(place or {}), **self._conditions, **route.conditions, **own, **(more or {})},
            join=join,
            shape=route.shape or self._shape,
            parent=parent,
            tracer_provider=self._provider,
        )


def _below(path: str, root: str) -> str:
    # Servers disagree on whether the path includes root_path; uvicorn includes it since 0.26.  Both forms match.
    root = root.rstrip("/")
    inside = root and path.startswith(root) and path[len(root) :].startswith("/")
    return path[len(root) :] if inside else path


def _value_of(headers: Iterable[tuple[Any, Any]], wanted: str) -> str | None:
    return next((text_of(value) for name, value in headers if text_of(name).lower() == wanted), None)


def read_routes(routes: object) -> tuple[Route, ...]:
    """Return the middleware's argument as routes; ConfigurationError for anything that is not a route."""
    listed = items_of(routes, f"routes is {shown(routes)}; it must be a list of paths, patterns and Routes")
    return tuple(route if is_a(route, Route) else Route(route) for route in listed)


def items_of(values: Any, refusal: str) -> list[Any]:
    """Return the items of a list given at set-up; ConfigurationError with that message where it is none."""
    try:
        if is_a(values, (str, bytes, re.Pattern, Route, Mapping)):
            raise TypeError
        return list(values)
    except Exception as error:
        raise ConfigurationError(refusal) from error


def check_tokens(tokens: Any) -> Any:
    """Return how tokens are counted; ConfigurationError unless it is a callable, ``"openai"`` or None."""
    if tokens is None or callable(tokens) or (is_a(tokens, str) and str.__eq__(tokens, OPENAI)):
        return tokens
    raise ConfigurationError(f"tokens is {shown(tokens)}; it must be a callable or {OPENAI!r}")


def check_conditions(conditions: Mapping[str, Any]) -> dict[str, object]:
    """Return the conditions that were given, each read once; ConfigurationError for one that cannot be."""
    check_names(conditions)
    values = given(conditions)
    check_role(values.get("role", "whole"))
    try:
        for name, value in values.items():
            if not CONDITIONS[name].server:
                raise ConfigurationError(f"{name} differs from request to request: set() it on lifecycle.current()")
            read_condition(name, value)
    except InvalidValue as error:
        raise ConfigurationError(str(error)) from error
    return values


def _check_messages(messages: Any, methods: frozenset[str] | None, path: object) -> Messages | None:
    if messages is None:
        return None
    if not is_a(messages, Messages) or methods is not None:
        raise ConfigurationError(
            f"messages of the route {shown(path)} is {shown(messages)}; it must be Messages(...) without a method"
        )
    rules: dict[str, object] = {name: getattr(messages, name) for name in ("begins", "ends", "cancels")}
    for name, rule in rules.items():
        if rule is not None and not callable(rule):
            raise ConfigurationError(f"{name} of the route {shown(path)} is {shown(rule)}; it must be a callable")
    checked: Messages = messages
    return checked


def _check_header(name: Any) -> str | None:
    if name is None:
        return None
    if not is_a(name, str) or not _HEADER.fullmatch(name):
        raise ConfigurationError(f"tenant_header is {shown(name)}; it must be the name of a header")
    return str.lower(name)


def _split_method(path: Any) -> tuple[str | None, str | re.Pattern[str]]:
    if is_a(path, re.Pattern):
        if not is_a(path.pattern, str):
            raise ConfigurationError(f"the route {shown(path)} is a pattern of bytes; a path is text")
        return None, path
    if not is_a(path, str):
        raise ConfigurationError(f"the route {shown(path)} is a {type(path).__name__}; it must be a path or a pattern")
    method, space, rest = path.partition(" ")
    return (method, rest.strip()) if space else (None, path)


def _check_methods(methods: object) -> frozenset[str] | None:
    if methods is None:
        return None
    listed = items_of(methods, f"methods is {shown(methods)}; it must be a list such as ['POST']")
    names = [str.upper(method) if is_a(method, str) else "" for method in listed]
    unknown = [method for method, name in zip(listed, names, strict=True) if name not in METHODS]
    if unknown or not names:
        raise ConfigurationError(f"no method {shown(unknown[0] if unknown else '')}; there are {', '.join(METHODS)}")
    return frozenset(names)


def _compile(path: str | re.Pattern[str]) -> re.Pattern[str]:
    if isinstance(path, re.Pattern):
        return path
    below = path.endswith("/*")
    parts = (path[:-1] if below else path).split("/")
    if not path.startswith("/") or not all(_PART.fullmatch(part) for part in parts[1:] if part):
        raise ConfigurationError(
            f"the route {shown(path)} is not a path; it begins with /, has no query, and takes {{name}} for a segment "
            "and /* at its end"
        )
    # DOTALL, because a path arrives decoded: %0A in it is a line break by now.
    inner = "/".join("[^/]+" if part.startswith("{") else re.escape(part) for part in parts)
    return re.compile(inner + (".+" if below else ""), re.DOTALL)


OPENAI_ROUTES: Final = (
    Route("POST /v1/chat/completions", operation="chat", tokens=OPENAI),
    Route("POST /v1/completions", operation="text_completion", tokens=OPENAI),
    Route("POST /v1/embeddings", operation="embeddings", tokens=OPENAI, shape="pooling"),
)
"""The routes of an OpenAI-compatible server, their tokens counted from the frames they send."""
