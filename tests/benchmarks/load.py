"""Load from this machine to this machine: bare HTTP over asyncio, cheap enough not to be what is measured."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import perf_counter

HOST = "127.0.0.1"
MARK = b"data: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one batch of streams took: CPU of the server, wall time, and the latency of each answer, in seconds."""

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
        """The latency that 99 of 100 answers do not exceed."""
        ranked = sorted(self.latencies)
        return ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))]


class _Answer(asyncio.Protocol):
    """Sends one request and counts frames until the server closes."""

    def __init__(self, request: bytes) -> None:
        self.done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.body = bytearray()
        self.frames = 0
        self._tail = b""
        self._request = request
        self._began = perf_counter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count frames, those that were cut in two as well; keep the beginning."""
        self.frames += (self._tail + data).count(MARK)
        self._tail = (self._tail + data)[1 - len(MARK) :]
        if len(self.body) < 1000:
            self.body += data

    def connection_lost(self, error: Exception | None) -> None:
        """Tell how long it took."""
        if not self.done.done():
            self.done.set_result(perf_counter() - self._began)


async def fetch(port: int, method: str, path: str) -> _Answer:
    """Make one request and return when its answer is complete."""
    request = f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
    _, answer = await asyncio.get_running_loop().create_connection(lambda: _Answer(request), HOST, port)
    await answer.done
    return answer


async def server_cpu(port: int) -> float:
    """Return the CPU seconds the server has taken."""
    answer = await fetch(port, "GET", "/cpu")
    return int(bytes(answer.body).rpartition(b"\r\n\r\n")[2]) / 1e9


async def batch(port: int, mode: str, *, streams: int, tokens: int, answers: int) -> Load:
    """Fetch ``answers`` answers of ``tokens`` tokens, ``streams`` of them at a time."""
    path, left = f"/answer/{mode}/{tokens}", iter(range(answers))
    latencies: list[float] = []

    async def one_after_another() -> None:
        for _ in left:
            answer = await fetch(port, "POST", path)
            if answer.frames != tokens:
                raise AssertionError(f"{answer.frames} frames of {tokens}: {bytes(answer.body[:200])!r}")
            latencies.append(await answer.done)

    before, began = await server_cpu(port), perf_counter()
    await asyncio.gather(*(one_after_another() for _ in range(streams)))
    wall = perf_counter() - began
    return Load(cpu=await server_cpu(port) - before, wall=wall, latencies=latencies, tokens=answers * tokens)
