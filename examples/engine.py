"""llama.cpp with continuous batching, behind an asynchronous face: slots, tokens in, frames out.

Nothing in here knows of OpenTelemetry; it is the engine that ``llama_server.py`` instruments.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import xllamacpp

Frame = dict[str, Any]
"""A chunk of a chat completion, as OpenAI shapes it."""


BATCH: Final = 128
"""Tokens that one step takes in at most, unless told otherwise; a request that arrives meanwhile waits for its end."""


CACHE_MIB: Final = 128
"""Memory for the state of past prompts."""


class Engine:
    """A loaded model that decodes for as many requests at once as it has slots, each of ``context`` tokens.

    Long inputs are worked off in pieces of ``batch`` tokens; between two of them the other slots get a token each.
    """

    def __init__(self, model: Path, *, name: str, slots: int = 2, context: int = 2048, batch: int = BATCH) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = str(model)
        params.n_parallel = slots
        # llama.cpp divides its context among the slots.
        params.n_ctx = slots * context
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = _threads()
        params.n_batch = batch
        # llama.cpp keeps the state of past prompts in memory, up to 8 GiB of it by default.
        params.cache_ram_mib = CACHE_MIB
        # A free port.  Its HTTP side is used for the chat template and the tokenizer only.
        params.port = 0
        params.verbosity = 0
        self.name = name
        self.slots = slots
        self.context = context
        self._server = xllamacpp.Server(params)
        # Without the proxies of the environment, because the server is in this process.
        self._http = httpx.AsyncClient(base_url=self._server.listening_address, trust_env=False)
        # A thread for each slot, because handle_completions() returns only when its request has ended.
        self._threads = ThreadPoolExecutor(max_workers=slots, thread_name_prefix="llama")
        self._free = asyncio.Semaphore(slots)

    async def slot(self, timeout: float | None = None) -> Slot:
        """Wait for a free slot, the first come first; TimeoutError after ``timeout`` seconds."""
        try:
            await asyncio.wait_for(self._free.acquire(), timeout)
        except asyncio.TimeoutError:
            raise TimeoutError from None  # the same class from Python 3.11 on only
        return Slot(self)

    async def tokenize(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Lay a conversation out as the model was trained on it, and return its tokens."""
        laid_out = await self._http.post("/apply-template", json={"messages": list(messages)})
        prompt = laid_out.raise_for_status().json()["prompt"]
        tokens = await self._http.post(
            "/tokenize", json={"content": prompt, "add_special": True, "parse_special": True}
        )
        return [int(token) for token in tokens.raise_for_status().json()["tokens"]]

    async def aclose(self) -> None:
        """Stop taking requests and free the model."""
        await self._http.aclose()
        self._threads.shutdown(wait=True)
        # Its destructor stops the engine, after the threads that are in it have returned.
        del self._server

    def _run(self, body: Frame, each: Callable[[Frame], bool]) -> None:
        self._server.handle_completions(body, each)


class Slot(contextlib.AbstractContextManager["Slot"]):
    """A place in the running batch.

    Leaving its block stops what runs in it.  llama.cpp checks once a token, so the place becomes free a moment later,
    when the request has really stopped; nobody waits for that.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._run: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def __exit__(self, *raised: object) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._run is None:
            self._engine._free.release()
        else:
            self._run.add_done_callback(lambda _: self._engine._free.release())

    def generate(self, tokens: Sequence[int], *, timeout: float | None = None, **options: Any) -> AsyncIterator[Frame]:
        """Start generating and return the frames as they come; TimeoutError in place of one after ``timeout`` seconds.

        ``options`` are llama.cpp's own: ``max_tokens``, ``temperature``, ``grammar``, and so on.
        """
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Frame | Exception | None] = asyncio.Queue()

        def put(item: Frame | Exception | None) -> None:
            # An asyncio queue may be filled on the thread of its loop only.
            loop.call_soon_threadsafe(arrived.put_nowait, item)

        def each(frame: Frame) -> bool:
            put(frame)
            # llama.cpp stops the request when its callback returns True; a call in the process cannot cancel otherwise.
            return self._stopped

        def run() -> None:
            try:
                self._engine._run({"prompt": list(tokens), "stream": True, **options}, each)
            except Exception as error:  # noqa: BLE001  it is raised where the frames are read
                put(error)
            put(None)

        self._run = loop.run_in_executor(self._engine._threads, run)
        if timeout is not None:
            self._timer = loop.call_later(timeout, arrived.put_nowait, TimeoutError())
        return self._frames(arrived)

    async def _frames(self, arrived: asyncio.Queue[Frame | Exception | None]) -> AsyncIterator[Frame]:
        while (item := await arrived.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield self._as_chat(item)

    def _as_chat(self, frame: Frame) -> Frame:
        """Turn a frame of a completion into one of a chat; an error frame stays what it is."""
        if "choices" not in frame:
            return frame
        choices = [
            {
                "index": choice["index"],
                "delta": {"content": choice["text"]} if choice["text"] else {},
                "finish_reason": choice["finish_reason"],
            }
            for choice in frame["choices"]
        ]
        return {**frame, "object": "chat.completion.chunk", "model": self._engine.name, "choices": choices}


def role_frame(name: str) -> Frame:
    """Return the frame a chat begins with: it says who speaks, and holds no token."""
    choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    return {"object": "chat.completion.chunk", "created": int(time.time()), "model": name, "choices": [choice]}


def _threads() -> int:
    """Half of the processors we may use: the server needs some too, and llama.cpp's threads wait for the slowest."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
    return max(1, usable // 2)
