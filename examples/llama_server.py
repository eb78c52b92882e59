"""A real model behind an OpenAI-style streaming endpoint, instrumented from arrival to the last token.

    python -m examples.llama_server            # spans and metrics go where OTEL_EXPORTER_OTLP_ENDPOINT points
    python -m examples.llama_server --model my.gguf --port 8000

The lines that make the telemetry are marked; everything else would be there without it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import uvicorn
from fastapi import FastAPI, Header
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

import otel_lifecycle as lifecycle
from examples import model
from examples.engine import Engine, role_frame
from otel_lifecycle.openai import FrameFeed

GRACE: Final = 5
"""Seconds that running requests get when the server is told to stop; then they are cancelled."""


class Message(BaseModel):
    """One turn of the conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Chat(BaseModel):
    """The part of OpenAI's request that this server knows, and the options of llama.cpp it lets through."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int = Field(default=128, ge=1)
    temperature: float = Field(default=0.0, ge=0.0)
    stream: Literal[True] = True
    timeout: float | None = Field(default=None, gt=0, description="seconds the whole answer may take")
    ignore_eos: bool = Field(default=False, description="go on to max_tokens whatever the model says")
    grammar: str | None = Field(default=None, description="what the answer must look like, in llama.cpp's GBNF")


class InputTooLong(ValueError):
    """An input that does not fit a slot together with the answer asked for."""


def create_app(engine: Engine) -> FastAPI:
    """Build the server around an engine, which is closed when the server stops."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with contextlib.aclosing(engine):
            yield

    app = FastAPI(title="llama.cpp, instrumented", lifespan=lifespan)

    @app.post("/v1/chat/completions")
    async def chat(body: Chat, x_request_id: str | None = Header(default=None)) -> StreamingResponse:
        # Here and not in the generator, which may start later, or never if the client has left by then.
        request = lifecycle.request(  # ⟵ arrive
            model=engine.name,
            provider="llama.cpp",
            request_id=x_request_id,
            max_tokens=body.max_tokens,
            stream=True,
            deadline=body.timeout,
            concurrency=engine.slots,
        )
        return StreamingResponse(events(engine, body, request), media_type="text/event-stream")

    return app


async def events(engine: Engine, body: Chat, request: Any) -> AsyncIterator[str]:
    """Answer one request with server-sent events; the status has been sent by then, so an error is an event too."""
    try:
        async for frame in answer(engine, body, request):
            yield sse(frame)
    except TimeoutError:
        yield sse({"error": {"type": "timeout", "code": 408, "message": f"not done within {body.timeout} s"}})
    except InputTooLong as error:
        yield sse(
            {"error": {"type": "invalid_request_error", "code": "context_length_exceeded", "message": str(error)}}
        )
    yield "data: [DONE]\n\n"


async def answer(engine: Engine, body: Chat, request: Any) -> AsyncIterator[dict[str, Any]]:
    """Take a request through its stages."""
    loop = asyncio.get_running_loop()
    deadline = None if body.timeout is None else loop.time() + body.timeout
    with request:  # ⟵ leaving it: complete, cancel, timeout or fail
        with request.stage("queue"):  # ⟵ leaving it: admit
            slot = await engine.slot(timeout=body.timeout)
        with slot:
            with request.stage("preprocessing"):  # ⟵ leaving it: input_ready
                tokens = await engine.tokenize([message.model_dump() for message in body.messages])
                request.set(input_tokens=len(tokens))  # ⟵
                if len(tokens) + body.max_tokens > engine.context:
                    request.fail("input_too_long")  # ⟵
                    raise InputTooLong(f"{len(tokens)} tokens and {body.max_tokens} to come exceed {engine.context}")
            # Before the first token, as OpenAI does it.  FrameFeed does not count it.
            yield role_frame(engine.name)
            frames = slot.generate(
                tokens,
                timeout=None if deadline is None else deadline - loop.time(),
                **body.model_dump(include={"max_tokens", "temperature", "grammar", "ignore_eos"}, exclude_none=True),
            )
            async for frame in request.stream(frames, tokens=FrameFeed(request)):  # ⟵ first_token, token, token, …
                yield frame


def error_frame(code: str, message: str) -> dict[str, Any]:
    """Say what went wrong as OpenAI does."""
    return {"error": {"type": "invalid_request_error", "code": code, "message": message}}


def sse(frame: dict[str, Any]) -> str:
    """Send a frame as a server-sent event."""
    return f"data: {json.dumps(frame)}\n\n"


def load(path: Path) -> Engine:
    """Load a model, and record how long that took."""
    with lifecycle.startup("load_model"):  # ⟵ a cold start, apart from requests
        return Engine(path, name=model.NAME if path.name == model.FILE else path.stem)


@contextlib.contextmanager
def served(engine: Engine) -> Iterator[str]:
    """Serve in a thread on a free port, for the demo and its tests; gives the address."""
    config = uvicorn.Config(
        create_app(engine), host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=GRACE
    )
    server = uvicorn.Server(config)
    # A thread of this process, so that the demo reads the server's spans from memory.
    thread = threading.Thread(target=server.run, name="server")
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description="Serve a GGUF model with OpenTelemetry inside.")
    parser.add_argument("--model", type=Path, help="a GGUF file; without it a small one is fetched once")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    lifecycle.configure(service_name="llama-server")  # ⟵ providers and OTLP, from the OTEL_* variables
    try:
        engine = load(model.find(arguments.model))
        uvicorn.run(create_app(engine), host=arguments.host, port=arguments.port, timeout_graceful_shutdown=GRACE)
    finally:
        lifecycle.shutdown()


if __name__ == "__main__":
    main()
