"""What the drop-in for Ollama's Python client relies on, checked with 0.6.3.

``Client._request`` and ``AsyncClient._request`` are the one private name: every method of a client goes through them,
those that the package binds to its default client at import included.  The route in their arguments says what is asked.

| event | source |
|---|---|
| arrive | the call |
| first_token, token | a part of the stream with text; a whole answer is one ``output`` |
| preprocessing, prefill, decode | ``load_duration``, ``prompt_eval_duration``, ``eval_duration`` of the last part |
| queue | what remains |
| end | the last part; an exception; a stream that is closed before it |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from opentelemetry.trace import TracerProvider

from otel_lifecycle import driver
from otel_lifecycle.driver import Driver
from otel_lifecycle.integrations._hooks import Hooks, observe
from otel_lifecycle.openai import FrameFeed

SHAPE: Final = "preprocess_first"
ROUTES: Final[Mapping[str, tuple[str, str]]] = {
    "/api/chat": ("chat", SHAPE),
    "/api/generate": ("text_completion", SHAPE),
    "/api/embed": ("embeddings", "pooling"),
    "/api/embeddings": ("embeddings", "pooling"),
}
"""Each route that is a request -> its operation and shape; others list, pull or delete models."""


def patch(hooks: Hooks, tracer_provider: TracerProvider | None) -> None:
    """Wrap the methods that every call goes through; EngineMismatch if one is missing."""
    from ollama import AsyncClient, Client

    calls = _Calls(tracer_provider)
    hooks.wrap(Client, "_request", calls.sync)
    hooks.wrap(AsyncClient, "_request", calls.asynchronous)


class _Calls:
    """How calls of a client become requests."""

    def __init__(self, tracer_provider: TracerProvider | None) -> None:
        self._tracer_provider = tracer_provider

    def sync(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method of the blocking client with a request around it."""

        def request(client: Any, kind: Any, *arguments: Any, stream: bool = False, **named: Any) -> Any:
            drive = observe(self.begin, client, *arguments, **named)
            if not drive:
                return original(client, kind, *arguments, stream=stream, **named)
            try:
                with drive.active():
                    result = original(client, kind, *arguments, stream=stream, **named)
            except BaseException as error:
                _broke(drive, error)
                raise
            return _taken(drive, result, stream=stream)

        return request

    def asynchronous(self, original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return the method of the asynchronous client with a request around it."""

        async def request(client: Any, kind: Any, *arguments: Any, stream: bool = False, **named: Any) -> Any:
            drive = observe(self.begin, client, *arguments, **named)
            if not drive:
                return await original(client, kind, *arguments, stream=stream, **named)
            try:
                async with drive.active():
                    result = await original(client, kind, *arguments, stream=stream, **named)
            except BaseException as error:
                _broke(drive, error)
                raise
            return _taken(drive, result, stream=stream)

        return request

    def begin(self, client: Any, _method: str = "", route: str = "", **named: Any) -> Driver | None:
        """Open the request of one call, or join the current one; None for a call that is none."""
        if route not in ROUTES:
            return None
        operation, shape = ROUTES[route]
        conditions = {**_asked(named.get("json")), **_where(client), "operation": operation, "provider": "ollama"}
        drive = driver.begin(conditions, shape=shape, tracer_provider=self._tracer_provider)
        if not drive.owned:
            drive.suggest(**conditions)
            drive.follow_shape(shape)
        return drive


def _asked(body: object) -> dict[str, object]:
    """Return what the body of a call says about its request."""
    asked = body if isinstance(body, Mapping) else {}
    options = asked.get("options")
    limit = options.get("num_predict") if isinstance(options, Mapping) else None
    told: dict[str, object] = {name: asked[name] for name in ("model", "stream") if asked.get(name)}
    # Negative limits mean none.
    if isinstance(limit, int) and limit > 0:
        told["max_tokens"] = limit
    return told


def _where(client: Any) -> dict[str, object]:
    """Return where the server is: the address of the HTTP client below, if it is one as of today."""
    base = getattr(getattr(client, "_client", None), "base_url", None)
    told = {"server_address": getattr(base, "host", None), "server_port": getattr(base, "port", None)}
    return {name: value for name, value in told.items() if value is not None}


def _taken(drive: Driver, result: Any, *, stream: bool) -> Any:
    """Return what the call gave: a stream with its parts marked, or a whole answer, which is the end."""
    feed = FrameFeed(drive.reader())

    def read(part: Any) -> None:
        observe(feed, part)

    if hasattr(result, "embeddings") or hasattr(result, "embedding"):
        # Embeddings: there are no tokens to read, and the older of the two routes counts nothing.
        drive.usage(input_tokens=getattr(result, "prompt_eval_count", None))
        drive.answered()
        return result
    if stream:
        return drive.stream(result, read=read, eager=True)
    read(result)
    drive.answered()
    return result


def _broke(drive: Driver, error: BaseException) -> None:
    # Inside: a connection that cannot be made, or broke, is the engine's and not that of a client of ours.
    drive.end(drive.terminal_for(error, inside=True))
