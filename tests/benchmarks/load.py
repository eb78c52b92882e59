"""Load from this machine to this machine: bare HTTP over asyncio, cheap enough not to be what is measured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import nan
from time import perf_counter

HOST = "127.0.0.1"
MARK = b"data: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a window of a load took: CPU of the server, wall time, and the latency of each answer, in seconds."""

    cpu: float
    wall: float
    latencies: list[float]
    tokens: int

    @property
    def cpu_per_token(self) -> float:
        """CPU seconds of the server a token."""
        return self.cpu / self.tokens

    @property
    def throughput(self) -> float:
        """Tokens a second."""
        return self.tokens / self.wall

    @property
    def p99(self) -> float:
        """The latency that 99 of 100 answers do not exceed; nan where none ended in the window."""
        ranked = sorted(self.latencies)
        return ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))] if ranked else nan


class _Answer(asyncio.Protocol):
    """Sends one request and counts frames until the server closes."""

    def __init__(self, request: bytes, seen: Callable[[int], None]) -> None:
        self.done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.body = bytearray()
        self.frames = 0
        self._tail = b""
        self._request = request
        self._seen = seen
        self._began = perf_counter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count frames, those that were cut in two as well; keep the beginning."""
        frames = (self._tail + data).count(MARK)
        self.frames += frames
        self._seen(frames)
        self._tail = (self._tail + data)[1 - len(MARK) :]
        if len(self.body) < 1000:
            self.body += data

    def connection_lost(self, error: Exception | None) -> None:
        """Tell how long it took."""
        if not self.done.done():
            self.done.set_result(perf_counter() - self._began)


def _nobody(frames: int) -> None:
    """Count nothing."""


async def fetch(port: int, method: str, path: str, seen: Callable[[int], None] = _nobody) -> _Answer:
    """Make one request and return when its answer is complete; ``seen`` is told how many frames have come."""
    request = f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
    _, answer = await asyncio.get_running_loop().create_connection(lambda: _Answer(request, seen), HOST, port)
    await answer.done
    return answer


async def server_cpu(port: int) -> float:
    """Return the CPU seconds the server has taken."""
    answer = await fetch(port, "GET", "/cpu")
    return int(bytes(answer.body).rpartition(b"\r\n\r\n")[2]) / 1e9


class SteadyLoad:
    """So many streams of one server without a break, seen in windows.

    ``mode``: how the server answers.  The first answer of each stream is shorter by a share of its own, so that ends
    are spread over time as those of a server are.
    """

    def __init__(self, port: int, mode: str, streams: int, tokens: int) -> None:
        self._port = port
        self._mode = mode
        self._streams = streams
        self._tokens = tokens
        self._frames = 0
        self._latencies: list[float] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._since = (0.0, 0.0)

    async def begin(self) -> None:
        """Start the streams, and wait until each has ended an answer."""
        lengths = [max(1, self._tokens * (number + 1) // self._streams) for number in range(self._streams)]
        firsts = [asyncio.Event() for _ in lengths]
        self._tasks = [
            asyncio.create_task(self._stream(length, first)) for length, first in zip(lengths, firsts, strict=True)
        ]
        await asyncio.gather(*(first.wait() for first in firsts))

    async def open_window(self) -> None:
        """Begin a window."""
        self._since = await server_cpu(self._port), perf_counter()
        self._frames, self._latencies = 0, []

    async def close_window(self) -> Load:
        """Return what has come since the window was opened; RuntimeError where a stream has failed."""
        cpu, now = await server_cpu(self._port), perf_counter()
        for task in self._tasks:
            if task.done():
                raise RuntimeError("a stream of the load has failed") from task.exception()
        return Load(cpu=cpu - self._since[0], wall=now - self._since[1], latencies=self._latencies, tokens=self._frames)

    async def end(self) -> None:
        """Stop the streams where they are."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def _stream(self, tokens: int, first: asyncio.Event) -> None:
        while True:
            answer = await fetch(self._port, "POST", f"/answer/{self._mode}/{tokens}", self._count)
            if answer.frames != tokens:
                raise AssertionError(f"{answer.frames} frames of {tokens}: {bytes(answer.body[:200])!r}")
            if first.is_set():
                self._latencies.append(await answer.done)
            first.set()
            tokens = self._tokens

    def _count(self, frames: int) -> None:
        self._frames += frames
