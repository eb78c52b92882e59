"""Which HTTP requests are inference requests, and what is known of them by their route alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

from otel_lifecycle._core.lifecycle import get_shape
from otel_lifecycle._request.conditions import check_names, check_role, given, read_condition
from otel_lifecycle._request.streams import Counter
from otel_lifecycle.errors import ConfigurationError, InvalidValue

Tokens: TypeAlias = "Counter | Literal['openai'] | None"
"""How the tokens of a body are counted: by a callable, as frames of an OpenAI-compatible server, or not."""

OPENAI: Final = "openai"
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
BODILESS: Final = frozenset({"HEAD", "OPTIONS", "TRACE", "CONNECT"})
"""Methods that ask for no answer: a route that names no method does not match them."""

# A segment, or a parameter in braces that stands for one.
_PART: Final = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}|[^{}*?#\s]+")


class Route:
    """One route whose requests are followed, and the conditions they have in common.

    ``path``: ``"/v1/chat/completions"``, exactly that; ``"/models/{name}/infer"``, where a name in braces stands for
    one segment; ``"/v1/*"``, everything below; ``"POST /generate"``, of one method; or a compiled pattern that has to
    match the whole path.  The path is the one below ``root_path``, without the query.  ``methods``: left out, every
    method that asks for an answer (not HEAD, OPTIONS, TRACE or CONNECT).  ``tokens``: how the tokens of a response are
    counted; see :class:`otel_lifecycle.asgi.LifecycleMiddleware`.  ``shape`` and the rest: as for
    :func:`otel_lifecycle.request`.

    Raises ConfigurationError for a path, method, counter, shape or condition that makes no sense.
    """

    __slots__ = ("conditions", "methods", "path", "pattern", "shape", "tokens")

    def __init__(
        self,
        path: str | re.Pattern[str],
        *,
        methods: Iterable[str] | None = None,
        tokens: Tokens = None,
        shape: str | None = None,
        **conditions: Any,
    ) -> None:
        named, self.path = _split_method(path)
        if named is not None and methods is not None:
            raise ConfigurationError(f"the route {path!r:.80} names a method, and methods= does too; give one of them")
        self.methods = _check_methods(methods if named is None else (named,))
        self.pattern = _compile(self.path)
        self.tokens = check_tokens(tokens)
        self.shape = None if shape is None else get_shape(shape).name
        self.conditions = check_conditions(conditions)

    def matches(self, method: str, path: str) -> bool:
        """Return whether a request of this method for this path is one of the route's."""
        allowed = method not in BODILESS if self.methods is None else method in self.methods
        return allowed and self.pattern.fullmatch(path) is not None

    def __repr__(self) -> str:
        path = self.path if isinstance(self.path, str) else self.path.pattern
        return f"<Route {'|'.join(sorted(self.methods)) + ' ' if self.methods else ''}{path}>"


def read_routes(routes: object) -> tuple[Route, ...]:
    """Return what the middleware was given as routes; ConfigurationError for what is none."""
    if isinstance(routes, (str, bytes, re.Pattern, Route, Mapping)) or not isinstance(routes, Iterable):
        raise ConfigurationError(f"routes is {routes!r:.80}; it must be a list of paths, patterns and Routes")
    return tuple(route if isinstance(route, Route) else Route(route) for route in routes)


def check_tokens(tokens: object) -> Any:
    """Return how tokens are counted; ConfigurationError unless it is a callable, ``"openai"`` or None."""
    if tokens is None or tokens == OPENAI or callable(tokens):
        return tokens
    raise ConfigurationError(f"tokens is {tokens!r:.80}; it must be a callable or {OPENAI!r}")


def check_conditions(conditions: Mapping[str, Any]) -> dict[str, object]:
    """Return the conditions that were given, each read once; ConfigurationError for one that cannot be."""
    check_names(conditions)
    values = given(conditions)
    check_role(values.get("role", "whole"))
    try:
        for name, value in values.items():
            if name in PER_REQUEST:
                raise ConfigurationError(f"{name} differs from request to request: set() it on lifecycle.current()")
            read_condition(name, value)
    except InvalidValue as error:
        raise ConfigurationError(str(error)) from error
    return values


PER_REQUEST: Final = frozenset({"request_id", "input_tokens", "output_tokens", "cached_tokens", "attempt"})


def _split_method(path: object) -> tuple[str | None, str | re.Pattern[str]]:
    if isinstance(path, re.Pattern):
        if not isinstance(path.pattern, str):
            raise ConfigurationError(f"the route {path!r:.80} is a pattern of bytes; a path is text")
        return None, path
    if not isinstance(path, str):
        raise ConfigurationError(f"the route {path!r:.80} is a {type(path).__name__}; it must be a path or a pattern")
    method, space, rest = path.partition(" ")
    return (method, rest.strip()) if space else (None, path)


def _check_methods(methods: object) -> frozenset[str] | None:
    if methods is None:
        return None
    if isinstance(methods, (str, bytes)) or not isinstance(methods, Iterable):
        raise ConfigurationError(f"methods is {methods!r:.80}; it must be a list such as ['POST']")
    names = [str(method).upper() for method in methods]
    unknown = [name for name in names if name not in METHODS]
    if unknown or not names:
        raise ConfigurationError(f"no method {unknown[0] if unknown else ''!r:.80}; there are {', '.join(METHODS)}")
    return frozenset(names)


def _compile(path: str | re.Pattern[str]) -> re.Pattern[str]:
    if isinstance(path, re.Pattern):
        return path
    below = path.endswith("/*")
    parts = (path[:-1] if below else path).split("/")
    if not path.startswith("/") or not all(_PART.fullmatch(part) for part in parts[1:] if part):
        raise ConfigurationError(
            f"the route {path!r:.80} is no path; it begins with /, has no query, and takes {{name}} for a segment "
            "and /* at its end"
        )
    inner = "/".join("[^/]+" if part.startswith("{") else re.escape(part) for part in parts)
    return re.compile(inner + (".+" if below else ""), re.DOTALL)


OPENAI_ROUTES: Final = (
    Route("POST /v1/chat/completions", operation="chat", tokens=OPENAI),
    Route("POST /v1/completions", operation="text_completion", tokens=OPENAI),
    Route("POST /v1/embeddings", operation="embeddings", tokens=OPENAI, shape="pooling"),
)
"""The routes of an OpenAI-compatible server, their tokens counted from the frames they send."""
