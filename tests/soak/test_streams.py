"""2,000 streams at once on one event loop, a third of which are left early."""

from __future__ import annotations

import asyncio
import gc
import resource
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from otel_lifecycle._runtime import runtime
from tests.faults.running import total
from tests.faults.servers import Server, serving
from tests.support.otlp_receiver import HttpReceiver
from tests.support.telemetry import Telemetry

STREAMS = 2000
TOKENS = 12
LEAVE_AT = 5
WAYS = ("close", "cancel", "raise", "forget")
"""How a third of the consumers leave, in turn."""


class LeftError(Exception):
    """A consumer that had enough."""


async def generate(slots: asyncio.Semaphore) -> AsyncGenerator[int, None]:
    """Make tokens, each when the loop comes round again."""
    for number in range(TOKENS):
        async with slots:
            await asyncio.sleep(0)
        yield number


async def serve(telemetry: Telemetry, slots: asyncio.Semaphore) -> AsyncGenerator[int, None]:
    """Serve one stream as a server would."""
    request = telemetry.request(model="tiny")
    with request:
        with request.stage("queue"):
            await slots.acquire()
            slots.release()
        with request.stage("preprocessing"):
            await asyncio.sleep(0)
        async for token in request.stream(generate(slots)):
            yield token


async def consume(number: int, telemetry: Telemetry, slots: asyncio.Semaphore) -> None:
    """Read a stream to its end, or leave it in the middle in one of the ways there are."""
    way = WAYS[number // 3 % len(WAYS)] if number % 3 == 0 else None
    answer = serve(telemetry, slots)
    async for token in answer:
        if token != LEAVE_AT or way is None:
            continue
        if way == "close":
            await answer.aclose()
        elif way == "cancel":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        elif way == "raise":
            await answer.athrow(LeftError())
        return


async def everybody(telemetry: Telemetry) -> list[BaseException | None]:
    """Run them all; collect what reached the consumers."""
    slots = asyncio.Semaphore(64)
    results = await asyncio.gather(
        *(consume(number, telemetry, slots) for number in range(STREAMS)), return_exceptions=True
    )
    # Forgotten generators are closed by the loop once they are garbage.
    gc.collect()
    await asyncio.sleep(0.1)
    await asyncio.get_running_loop().shutdown_asyncgens()
    return results


def test_two_thousand_streams_with_a_third_leaving(telemetry: Telemetry) -> None:
    """One outcome each: two thirds completed, the leavers as they left; nothing active, nothing illegal."""
    results = asyncio.run(everybody(telemetry))
    left = Counter(WAYS[number // 3 % len(WAYS)] for number in range(0, STREAMS, 3))
    assert Counter(type(result) for result in results if result is not None) == {
        asyncio.CancelledError: left["cancel"],
        LeftError: left["raise"],
    }
    outcomes = Counter(span["attributes"]["inference.outcome"] for span in telemetry.spans("chat tiny"))
    assert outcomes == {
        "completed": STREAMS - sum(left.values()),
        "cancelled": left["close"] + left["cancel"] + left["forget"],
        "failed": left["raise"],
    }
    points = telemetry.points()
    counted = {
        name: sum(p["value"] or 0 for p in points if p["metric"] == name)
        for name in ("inference.requests", "inference.active_requests")
    }
    assert counted == {"inference.requests": STREAMS, "inference.active_requests": 0}
    output = sum(
        point["value"] or 0
        for point in points
        if point["metric"] == "inference.tokens" and point["attributes"]["inference.token.direction"] == "output"
    )
    assert output == (STREAMS - sum(left.values())) * TOKENS + sum(left.values()) * (LEAVE_AT + 1)
    assert [point for point in points if point["metric"] == "inference.transition.violations"] == []
    assert [one for one in runtime().snapshot() if one.assessor is telemetry.processor] == []


async def fetch(server: Server, leave: bool) -> bool:
    """Ask for a stream over HTTP and read it to its end, or close the connection at the first token."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /?tokens=20&gap=0.2 HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n")
    try:
        if leave:
            await reader.readuntil(b"token 0")
            return True
        return b"token 19" in await reader.read()
    finally:
        writer.close()


async def fetch_all(server: Server) -> list[bool]:
    """Ask for all streams at once."""
    return await asyncio.gather(*(fetch(server, number % 3 == 0) for number in range(STREAMS)))


@pytest.mark.slow
def test_two_thousand_connections_with_a_third_leaving(otlp_http: HttpReceiver, tmp_path: Path) -> None:
    """The same over real HTTP, with uvicorn: who stays gets the whole answer, every request is counted once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    try:
        with serving(otlp_http, "uvicorn", tmp_path / "log", OTEL_BSP_MAX_QUEUE_SIZE=20_000) as server:
            server.get()
            answers = asyncio.run(fetch_all(server))
            otlp_http.wait_for(lambda: total(otlp_http) == STREAMS + 1, 60)
            otlp_http.wait_for(lambda: total(otlp_http, "inference.active_requests") == 0, 60)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(answers)
    stayed = sum(1 for number in range(STREAMS) if number % 3)
    assert total(otlp_http, inference__outcome="completed") >= stayed + 1
    assert total(otlp_http, "inference.transition.violations") == 0
