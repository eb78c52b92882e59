"""A small OpenAI-style HTTP server for an engine that has none: completions, streamed or whole.

Runs in the engine's environment.  ``/engine`` tells what the engine itself measured of each request.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


@dataclass(slots=True)
class Job:
    """One request, and the tokens the engine has made for it; None ends them.  ``handle``: what the engine gave."""

    name: str
    choices: int
    streams: bool
    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[list[int] | None] = field(default_factory=asyncio.Queue)
    handle: Any = None
    done: bool = False
    cancelled: bool = False
    last_step: int = 0

    def put(self, tokens: list[int] | None) -> None:
        """Hand tokens to the event loop, from the engine's thread."""
        self.loop.call_soon_threadsafe(self.queue.put_nowait, tokens)


class ServedEngine(ABC):
    """An engine behind the server.  ``figures``: for each request, what the engine measured of it."""

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, Any]] = {}
        self.evictions = 0

    @abstractmethod
    def too_long(self, prompt: str) -> bool:
        """Whether a prompt is refused."""

    @abstractmethod
    def add(self, body: dict[str, Any], job: Job) -> None:
        """Give a request to the engine."""

    @abstractmethod
    def cancel(self, job: Job) -> None:
        """Tell the engine that nobody waits for a request any more."""

    @abstractmethod
    def text(self, tokens: list[int]) -> str:
        """Return tokens as text."""


def serve(engine: ServedEngine, port: int) -> None:
    """Serve until interrupted."""
    uvicorn.run(_app(engine), host="127.0.0.1", port=port, log_level="warning")


def _app(engine: ServedEngine) -> Starlette:
    async def completions(request: Request) -> Response:
        body = await request.json()
        if engine.too_long(body["prompt"]):
            return JSONResponse({"error": {"message": "the prompt is too long"}}, status_code=400)
        loop = asyncio.get_running_loop()
        job = Job(request.headers["x-request-id"], body.get("n", 1), bool(body.get("stream")), loop)
        await asyncio.to_thread(engine.add, body, job)
        if job.streams:
            return StreamingResponse(_frames(engine, job), media_type="text/event-stream")
        return await _whole(engine, job, request)

    async def figures(_request: Request) -> Response:
        return JSONResponse({"requests": engine.figures, "evictions": engine.evictions})

    async def health(_request: Request) -> Response:
        return Response()

    routes = [
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/engine", figures),
        Route("/health", health),
    ]
    return Starlette(routes=routes)


async def _frames(engine: ServedEngine, job: Job) -> AsyncIterator[str]:
    try:
        while (tokens := await job.queue.get()) is not None:
            choice = {"index": 0, "text": engine.text(tokens)}
            yield f"data: {json.dumps({'id': job.name, 'choices': [choice]})}\n\n"
        yield "data: [DONE]\n\n"
    finally:
        _leave(engine, job)


async def _whole(engine: ServedEngine, job: Job, request: Request) -> Response:
    tokens: list[int] = []
    while True:
        try:
            part = await asyncio.wait_for(job.queue.get(), 0.05)
        except asyncio.TimeoutError:
            if await request.is_disconnected():
                _leave(engine, job)
                return Response(status_code=499)
            continue
        if part is None:
            break
        tokens += part
    choices = [{"index": i, "text": engine.text(tokens)} for i in range(job.choices)]
    usage = {"completion_tokens": engine.figures[job.name].get("tokens")}
    return JSONResponse({"id": job.name, "choices": choices, "usage": usage})


def _leave(engine: ServedEngine, job: Job) -> None:
    if not job.done:
        job.cancelled = True
        engine.cancel(job)
