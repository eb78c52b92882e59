"""The HTTP side: OTLP in, the page and its events out."""

from __future__ import annotations

import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeAlias

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from otel_lifecycle._live.detail import detail_of, running_detail
from otel_lifecycle._live.guard import COOKIE, AccessRule, bearer
from otel_lifecycle._live.otlp_json_body import to_protobuf
from otel_lifecycle._live.page import live_page
from otel_lifecycle._live.receiver import Receiver, Signal
from otel_lifecycle._live.stream import Status, View, events

AsyncBytes: TypeAlias = AsyncIterator[bytes]
Answer: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

# The same limit as over gRPC.
MAX_BODY: Final = 64 * 2**20
MAX_PAGES: Final = 32
"""Pages that are kept up to date at the same time."""
SIGNALS: Final[dict[str, Signal]] = {"traces": "traces", "metrics": "metrics", "logs": "logs"}
PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"


class LiveSite:
    """The routes of one receiver; the page shows ``title`` and ``address``."""

    def __init__(self, receiver: Receiver, status: Status, *, shape: str, title: str, address: str) -> None:
        self._receiver = receiver
        self._status = status
        self._shape = shape
        self._title = title
        self._address = address
        self._pages = 0

    def app(self, guard: AccessRule) -> ASGIApp:
        """Return the application behind its guard."""
        routes = [
            Route("/", self.page),
            Route("/events", self.events),
            Route("/request/{trace}/{span}", self.request),
            Route("/v1/{signal}", self.export, methods=["POST"]),
        ]
        return Guarded(Starlette(routes=routes), guard)

    async def page(self, http: HttpRequest) -> Response:
        """Serve the page."""
        text, headers = live_page(self._title, self._address)
        answer = HTMLResponse(text, headers=headers)
        token = http.query_params.get("token")
        if token is not None:
            # EventSource cannot send a header, so the page authenticates by cookie.  The guard has checked the token.
            answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return answer

    async def events(self, http: HttpRequest) -> Response:
        """Serve the events of one page."""
        try:
            view = View.of(http.query_params)
        except ValueError as error:
            return PlainTextResponse(f"{error}\n", 400)
        if self._pages >= MAX_PAGES:
            return PlainTextResponse("too many pages are open\n", 503)

        async def counted() -> AsyncBytes:
            # Counted here, where the finally undoes it: pages that open at the same moment may exceed the limit.
            self._pages += 1
            try:
                async for event in events(self._receiver, view, self._status):
                    yield event
            finally:
                self._pages -= 1

        return StreamingResponse(counted(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def request(self, http: HttpRequest) -> Response:
        """Serve one request as a fragment of the page."""
        trace_id, span_id = http.path_params["trace"], http.path_params["span"]
        running = self._receiver.kept.running.get(span_id)
        if running is not None:
            return HTMLResponse(running_detail(running, time.time()))
        trace = self._receiver.kept.trace(trace_id)
        found = None if trace is None else detail_of(trace, span_id, self._shape)
        return PlainTextResponse("not kept\n", 404) if found is None else HTMLResponse(found)

    async def export(self, http: HttpRequest) -> Response:
        """Take a message of OTLP/HTTP."""
        signal = SIGNALS.get(http.path_params["signal"])
        kind = http.headers.get("content-type", "").partition(";")[0].strip()
        if signal is None:
            return PlainTextResponse("traces, metrics and logs are taken here\n", 404)
        if kind not in {PROTOBUF, JSON}:
            return PlainTextResponse(f"{kind or 'a body without a type'} is not OTLP\n", 415)
        try:
            body = await _body(http)
            self._receiver.take(signal, to_protobuf(signal, body) if kind == JSON else body)
        # Exporters do not retry a 400: the same bytes would fail again.
        except (ValueError, zlib.error) as error:
            return PlainTextResponse(f"{error}\n", 400)
        return Response(b"{}" if kind == JSON else b"", media_type=kind)


async def _body(http: HttpRequest) -> bytes:
    """Return the body, unpacked; ValueError for one that is too large."""
    body = bytearray()
    async for chunk in http.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise ValueError(f"more than {MAX_BODY >> 20} MiB in one message")
    if http.headers.get("content-encoding", "identity") not in {"gzip", "deflate"}:
        return bytes(body)
    # A few bytes can unpack to gigabytes, so the size is limited while unpacking.
    # 47 = 32 + 15: gzip and zlib headers alike, with the largest window.
    unpacker = zlib.decompressobj(wbits=47)
    unpacked = unpacker.decompress(bytes(body), MAX_BODY)
    if unpacker.unconsumed_tail:
        raise ValueError(f"more than {MAX_BODY >> 20} MiB in one message")
    return unpacked


class Guarded:
    """Answers only requests that the guard admits."""

    def __init__(self, app: ASGIApp, guard: AccessRule) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an exchange on, or refuse it."""
        if scope["type"] == "http" and (refusal := self._refusal(HttpRequest(scope))) is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, http: HttpRequest) -> Answer | None:
        headers: Headers = http.headers
        # The name comes first: a page under a rebound name learns nothing, whatever else it sends.
        host = headers.get("host", "")
        if not self._guard.knows(host):
            return PlainTextResponse(f"{host!r:.80} is not a name of this server\n", 421)
        if not self._guard.same_origin(headers.get("origin"), host):
            return PlainTextResponse("another page must not talk to this server\n", 403)
        given = bearer(headers) or http.query_params.get("token") or http.cookies.get(COOKIE)
        if not self._guard.admits(given):
            return PlainTextResponse("a token is needed\n", 401)
        return None
