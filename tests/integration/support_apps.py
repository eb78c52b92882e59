"""The same handlers in each framework: what a server's author would write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import otel_lifecycle as lifecycle
from otel_lifecycle.asgi import LifecycleMiddleware
from tests.integration.support_http import PATH
from tests.support.telemetry import Telemetry

Mark = Callable[[], None]


def mark_boundaries() -> None:
    """Pass the queue and preprocessing, as a handler does."""
    request = lifecycle.current()
    with request.stage("queue"):
        pass
    with request.stage("preprocessing"):
        pass


async def tokens(count: int = 3, pause: float = 0.005) -> AsyncIterator[str]:
    """An engine that puts out tokens."""
    for index in range(count):
        await asyncio.sleep(pause)
        yield f"t{index} "


def sync_tokens(count: int = 3, pause: float = 0.005) -> Iterator[str]:
    """A blocking engine that puts out tokens."""
    for index in range(count):
        time.sleep(pause)
        yield f"t{index} "


async def answer_stream(count: int = 3) -> AsyncIterator[str]:
    """A handler's body: boundaries and tokens of the current request."""
    mark_boundaries()
    async for token in lifecycle.current().stream(tokens(count)):
        yield token


def sync_answer_stream(count: int = 3) -> Iterator[str]:
    """The same, for a framework that iterates it in a thread."""
    mark_boundaries()
    yield from lifecycle.current().stream(sync_tokens(count))


def starlette_app(middleware: list[Any] | None = None) -> Any:
    """Starlette with /json, /sync and the streaming route."""

    async def stream(request: Request) -> Response:
        await request.json()
        lifecycle.current().set(model="tiny")
        return StreamingResponse(answer_stream())

    async def sync_stream(request: Request) -> Response:
        await request.json()
        lifecycle.current().set(model="tiny")
        return StreamingResponse(sync_answer_stream())

    async def whole(request: Request) -> Response:
        await request.json()
        lifecycle.current().set(model="tiny")
        mark_boundaries()
        return JSONResponse({"text": "t0 t1 t2 "})

    return Starlette(
        routes=[
            Route(PATH, stream, methods=["POST"]),
            Route("/sync", sync_stream, methods=["POST"]),
            Route("/json", whole, methods=["POST"]),
        ],
        middleware=middleware,
    )


def fastapi_app(middleware: list[Any] | None = None) -> Any:
    """FastAPI with the same three routes; the middleware goes in by ``add_middleware``."""
    from fastapi import Body, FastAPI

    app = FastAPI(middleware=middleware)

    @app.post(PATH)
    async def stream(body: dict[str, Any] = Body()) -> StreamingResponse:  # noqa: B008  # FastAPI's own way
        lifecycle.current().set(model="tiny")
        return StreamingResponse(answer_stream())

    @app.post("/sync")
    def sync_stream(body: dict[str, Any] = Body()) -> StreamingResponse:  # noqa: B008  # FastAPI's own way
        lifecycle.current().set(model="tiny")
        return StreamingResponse(sync_answer_stream())

    @app.post("/json")
    def whole(body: dict[str, Any] = Body()) -> dict[str, str]:  # noqa: B008  # FastAPI's own way
        lifecycle.current().set(model="tiny")
        mark_boundaries()
        return {"text": "t0 t1 t2 "}

    return app


def litestar_app(middleware: list[Any] | None = None) -> Any:
    """Litestar with the same three routes."""
    from litestar import Litestar, post
    from litestar import Request as LitestarRequest
    from litestar.response import Stream

    @post(PATH, status_code=200)
    async def stream(request: LitestarRequest[Any, Any, Any]) -> Stream:
        await request.json()
        lifecycle.current().set(model="tiny")
        return Stream(answer_stream())

    @post("/sync", status_code=200)
    async def sync_stream(request: LitestarRequest[Any, Any, Any]) -> Stream:
        await request.json()
        lifecycle.current().set(model="tiny")
        return Stream(sync_answer_stream())

    @post("/json", status_code=200)
    async def whole(request: LitestarRequest[Any, Any, Any]) -> dict[str, str]:
        await request.json()
        lifecycle.current().set(model="tiny")
        mark_boundaries()
        return {"text": "t0 t1 t2 "}

    # Litestar looks annotations up by name; these live in this function alone.
    names = {"Any": Any, "LitestarRequest": LitestarRequest, "Stream": Stream}
    return Litestar(
        [stream, sync_stream, whole], middleware=middleware or [], openapi_config=None, signature_namespace=names
    )


class PassThrough(BaseHTTPMiddleware):
    """The middleware many apps have, which does nothing here but be one."""

    async def dispatch(self, request: Request, call_next: Any) -> Response:
        """Pass the request on."""
        response: Response = await call_next(request)
        return response


class Spec24:
    """A server of ASGI 2.4 on top of one of 2.3: ``send`` raises OSError once the client has left.

    ``pause``: seconds between whoever receives hearing of it and ``send`` raising.
    """

    def __init__(self, app: Any, pause: float = 0.0) -> None:
        self.app = app
        self.pause = pause

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection."""
        scope["asgi"] = {**scope["asgi"], "spec_version": "2.4"}
        gone = asyncio.Event()
        refuses = asyncio.Event()
        read = asyncio.Event()

        async def watch() -> None:
            await read.wait()
            while (await receive())["type"] != "http.disconnect":
                pass
            gone.set()
            if self.pause:
                await asyncio.sleep(self.pause)
            refuses.set()

        async def receive_once() -> Any:
            if read.is_set():
                await gone.wait()
                return {"type": "http.disconnect"}
            message = await receive()
            if not message.get("more_body"):
                read.set()
            return message

        async def send_or_raise(message: Any) -> None:
            if refuses.is_set():
                raise OSError("the client has gone")
            await send(message)

        watcher = asyncio.create_task(watch())
        try:
            await self.app(scope, receive_once, send_or_raise)
        finally:
            watcher.cancel()


def bare(telemetry: Telemetry, handler: Any) -> Any:
    """A Starlette around one handler, with the middleware in its stack."""
    return stack(telemetry, handler, [])


def stack(telemetry: Telemetry, handler: Any, above: list[Any], below: list[Any] | None = None) -> Any:
    """A Starlette around one handler; other middleware above and below ours."""
    ours = Middleware(LifecycleMiddleware, routes=[PATH], tracer_provider=telemetry.tracer_provider)
    middleware = [*map(Middleware, above), ours, *map(Middleware, below or [])]
    return Starlette(routes=[Route(PATH, handler, methods=["POST"])], middleware=middleware)
