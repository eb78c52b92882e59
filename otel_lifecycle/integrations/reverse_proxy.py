"""A reverse proxy in front of an engine that is not Python: llama-server, Ollama, TGI, TensorRT-LLM, a gateway.

``otel-lifecycle proxy --to http://127.0.0.1:11434`` serves it; :func:`proxy_app` is the same as an ASGI app.  Bodies
pass byte for byte and piece by piece, in both directions: a piece is read from the engine when the client has taken
the one before, so that a slow client costs no memory.  What passes is read by :class:`LifecycleMiddleware`: tokens,
usage, errors inside a 200, and a client that leaves, which closes the connection to the engine.

From outside an engine only arrival, output and end can be seen.  Queue, preprocessing and prefill pass at unknown
times, so those stages are absent; TTFT, ITL, TPOT and E2E stand.  On its own routes Ollama says at the end how long
loading, prefill and decode took: there these stages are derived, and the queue is what remains.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import httpx
from opentelemetry import propagate
from opentelemetry.trace import TracerProvider

import otel_lifecycle as lifecycle
from otel_lifecycle._log import say
from otel_lifecycle.asgi import LifecycleMiddleware, Route
from otel_lifecycle.errors import ConfigurationError

Header: TypeAlias = "tuple[bytes, bytes]"
Message: TypeAlias = "dict[str, Any]"
Receive: TypeAlias = "Callable[[], Awaitable[Message]]"
Send: TypeAlias = "Callable[[Message], Awaitable[None]]"

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers of one connection (RFC 9110, section 7.6.1); those that ``Connection`` names go with them."""

VIA: Final = (b"via", b"1.1 otel-lifecycle")
MAX_READ: Final = 256 * 1024
"""Bytes of a request body that are held to read the model from; a longer body passes unread."""

CONNECT_TIMEOUT_S: Final = 10.0
"""For the connection to the engine; an answer may take as long as it takes."""

GENERATING: Final = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/api/chat": "chat",
    "/api/generate": "text_completion",
}
"""Routes that generate, and their operation."""

OLLAMA: Final = ("/api/chat", "/api/generate")
"""Routes of Ollama's own."""

POOLING: Final = (
    "/v1/embeddings",
    "/api/embed",
    "/api/embeddings",
    "/v1/rerank",
    "/rerank",
    "/v1/score",
    "/v1/pooling",
)
_MAX_TOKENS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")


def proxy_app(
    upstream: str,
    *,
    provider: str | None = None,
    backend: str | None = None,
    tracer_provider: TracerProvider | None = None,
) -> LifecycleMiddleware:
    """Return the proxy in front of ``upstream``, the engine's base URL, as an ASGI app.

    ``provider``: ``gen_ai.provider.name``; ``backend``: ``inference.backend.name``; both absent unless given.
    Raises ConfigurationError for what is not an http or https URL.
    """
    routes = [
        Route(
            f"POST {path}",
            tokens="openai",
            operation=operation,
            provider=provider,
            backend=backend,
            # Ollama loads the model before a request queues for it, and its last line says how long each stage took.
            shape="preprocess_first" if path in OLLAMA else "default",
        )
        for path, operation in GENERATING.items()
    ]
    routes += [
        Route(f"POST {path}", shape="pooling", operation="embeddings", provider=provider, backend=backend)
        for path in POOLING
    ]
    return LifecycleMiddleware(ReverseProxy(upstream), routes=routes, tracer_provider=tracer_provider)


class ReverseProxy:
    """The bare proxy: an ASGI app that passes every HTTP request on and marks nothing but what the request says."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigurationError("the engine's address must be a URL such as http://127.0.0.1:11434")
        self._base = httpx.URL(upstream)
        self._client: httpx.AsyncClient | None = None

    def _connected(self) -> httpx.AsyncClient:
        # Made by the first request, because a client belongs to the event loop it is first used on.
        if self._client is None:
            # No proxy, netrc or cookie of the environment: what the client sent is what the engine gets.
            self._client = httpx.AsyncClient(
                trust_env=False,
                timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
                # No limit of connections: it would queue requests here, where nobody looks for a queue.
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            )
        return self._client

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            # The proxy speaks HTTP only.  Closing before accepting answers the handshake with 403.
            await send({"type": "websocket.close", "code": 1003})

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                if self._client is not None:
                    await self._client.aclose()
                return

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass one request on until its answer is out or its client has left, whichever comes first."""
        body = _RequestBody(receive)
        work = asyncio.ensure_future(self._exchange(scope, body, send))
        gone = asyncio.ensure_future(body.client_gone())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Cancelling the exchange closes the connection to the engine, which is how the engine learns of it.
            # Both, whichever came first: nothing of this request may outlive it.
            for task in (work, gone):
                task.cancel()
            results = await asyncio.gather(work, gone, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]

    async def _exchange(self, scope: Message, body: _RequestBody, send: Send) -> None:
        target = scope.get("raw_path") or scope["path"].encode()
        if not target.startswith(b"/"):
            await _answer(send, 400, "the request target must be a path")
            return
        _note(await body.beginning())
        request = httpx.Request(
            scope["method"],
            self._url(target, scope.get("query_string", b"")),
            headers=self._headers(scope),
            content=body.pieces() if body.has_any else None,
        )
        try:
            response = await self._connected().send(request, stream=True)
        except httpx.TransportError as error:
            await _refuse(send, error)
            return
        try:
            await _pass_on(response, send)
        except httpx.TransportError:
            # The engine broke off: the client must see a broken answer too, not a short one.
            lifecycle.current().fail("engine_error")
            raise
        finally:
            await response.aclose()

    def _url(self, target: bytes, query: bytes) -> httpx.URL:
        # The path as the client wrote it, so that its percent-encoding reaches the engine unchanged.
        path = self._base.raw_path.partition(b"?")[0].rstrip(b"/") + target
        return self._base.copy_with(raw_path=path + (b"?" + query if query else b""))

    def _headers(self, scope: Message) -> list[Header]:
        kept = [(name, value) for name, value in _end_to_end(scope["headers"]) if name != b"host"]
        carrier: dict[str, str] = {}
        # The current span is the request's: what the engine traces becomes its child, not the client's.
        propagate.inject(carrier)
        if carrier:
            ours = {name.lower().encode(): value.encode() for name, value in carrier.items()}
            kept = [(name, value) for name, value in kept if name not in ours] + list(ours.items())
        return [(b"host", self._base.netloc), *kept, VIA]


class _RequestBody:
    """The body of a request: the beginning is read, and all of it passes on."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._held: list[bytes] = []
        self._ended = False
        self._all_read = asyncio.Event()
        self._left = asyncio.Event()

    @property
    def has_any(self) -> bool:
        return bool(self._held) or not self._ended

    async def beginning(self) -> bytes | None:
        """Return the whole body if it is short; None for a long one."""
        size = 0
        while not self._ended and size <= MAX_READ:
            piece = await self._next()
            size += len(piece)
            self._held.append(piece)
        # An empty body must not become a chunked one.
        self._held = [piece for piece in self._held if piece]
        return b"".join(self._held) if self._ended else None

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        held, self._held = self._held, []
        for piece in held:
            yield piece
        while not self._ended:
            piece = await self._next()
            if piece:
                yield piece

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._left.set()
            # The exchange is cancelled at this wait: half a body must not look like a whole one.
            await asyncio.Event().wait()
        self._ended = not message.get("more_body", False)
        if self._ended:
            self._all_read.set()
        return bytes(message.get("body") or b"")

    async def client_gone(self) -> None:
        """Return when the client has left."""
        all_read = asyncio.ensure_future(self._all_read.wait())
        left = asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait({all_read, left}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            all_read.cancel()
            left.cancel()
        while not self._left.is_set():
            if (await self._receive())["type"] == "http.disconnect":
                return


async def _pass_on(response: httpx.Response, send: Send) -> None:
    headers = [*_end_to_end(response.headers.raw), VIA]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    left = _length_of(response)
    # Raw, because a decoded body would not match its Content-Length and Content-Encoding.
    async for piece in response.aiter_raw():
        left = None if left is None else left - len(piece)
        # A client that counts is done with this piece, so the request has to end with it as well.
        await send({"type": "http.response.body", "body": piece, "more_body": left != 0})
    if left != 0:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _length_of(response: httpx.Response) -> int | None:
    """Return the length of the body that follows; None if the answer does not say, or has no body."""
    given = response.headers.get("content-length", "")
    return int(given) if given.isdecimal() and int(given) > 0 else None


def _end_to_end(headers: Iterable[Header]) -> list[Header]:
    """Return the headers without those that belong to one connection alone."""
    named = [(name.lower(), value) for name, value in headers]
    ours = {part.strip().lower() for name, value in named if name == b"connection" for part in value.split(b",")}
    return [(name, value) for name, value in named if name not in HOP_BY_HOP and name not in ours]


async def _refuse(send: Send, error: httpx.TransportError) -> None:
    """Answer for an engine that cannot be reached."""
    late = isinstance(error, httpx.TimeoutException)
    # Only the class of the error: its text may quote an address with credentials.
    say("proxy", f"the engine cannot be reached: {type(error).__name__}", level=logging.WARNING)
    await _answer(send, 504 if late else 502, "the engine cannot be reached")


async def _answer(send: Send, status: int, message: str) -> None:
    body = json.dumps({"error": {"message": message, "type": "proxy_error", "code": status}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _note(body: bytes | None) -> None:
    """Note what the request's own body says: the model, the limit of its answer, whether it is streamed."""
    request = lifecycle.current()
    if not body or not body.lstrip().startswith(b"{"):
        return
    try:
        asked = json.loads(body)
    # The engine gets the body all the same, and its answer says what is wrong with it.
    except (ValueError, RecursionError):
        return
    facts: dict[str, Any] = {}
    if isinstance(asked.get("model"), str):
        facts["model"] = asked["model"]
    limit = next((asked[name] for name in _MAX_TOKENS if type(asked.get(name)) is int), None)
    if limit is not None:
        facts["max_tokens"] = limit
    # Without the field nothing is noted: Ollama streams by default, the other engines do not.
    stream = asked.get("stream")
    if isinstance(stream, bool):
        facts["stream"] = stream
    request.set(**facts)
