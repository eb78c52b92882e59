"""Threads, executors and trio: a handle may go anywhere, and what is current is current only where it was made so."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from contextvars import copy_context
from functools import partial
from typing import Any

import pytest
import trio
import trio.lowlevel

import otel_lifecycle as lifecycle
from tests.support.telemetry import Telemetry

THREADS = 8
EACH = 200


def outcomes(telemetry: Telemetry) -> dict[str, float]:
    """Return how many requests ended in which way, by the metrics."""
    counted: Counter[str] = Counter()
    for point in telemetry.points("inference.requests"):
        counted[point["attributes"]["inference.outcome"]] += int(point["value"] or 0)
    return dict(counted)


def active(telemetry: Telemetry) -> float:
    """Return how many requests are active, by the metrics."""
    return sum(point["value"] or 0 for point in telemetry.points("inference.active_requests"))


def in_decode(telemetry: Telemetry, **arguments: Any) -> Any:
    """Open a request and bring it to its first token."""
    request = telemetry.request(model="tiny", **arguments)
    request.admit()
    request.input_ready()
    request.first_token()
    return request


def together(work: Callable[[int], object], threads: int = THREADS) -> None:
    """Run the work in several threads that start at the same moment."""
    barrier = threading.Barrier(threads)

    def run(number: int) -> None:
        barrier.wait()
        work(number)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, range(threads)))


def test_threads_mark_tokens_of_one_request(telemetry: Telemetry) -> None:
    """Eight threads, one handle, hot path and chunks mixed: every token counted, in order of time, nothing violated."""
    request = in_decode(telemetry)

    def work(number: int) -> None:
        for _ in range(EACH):
            request.token() if number % 2 else request.token(2)

    together(work)
    request.complete()
    report = request.report
    assert report["output_tokens"] == 1 + THREADS // 2 * EACH * 3
    assert report["token_times"] == sorted(report["token_times"])
    assert telemetry.span("chat tiny")["attributes"]["inference.legal"] is True


def end_by(ends: list[Callable[[], None]], number: int) -> None:
    """End a request in one of several ways."""
    ends[number % len(ends)]()


def test_threads_end_one_request_together(telemetry: Telemetry) -> None:
    """Eight ends at once: one outcome, seven duplicate_terminal, one span."""
    for _ in range(20):
        request = in_decode(telemetry)
        ends = [request.complete, request.cancel, request.timeout, request.fail]
        together(partial(end_by, ends))
    assert sum(outcomes(telemetry).values()) == len(telemetry.spans("chat tiny")) == 20
    duplicates = telemetry.point("inference.transition.violations", inference__violation__kind="duplicate_terminal")
    assert duplicates["value"] == 20 * (THREADS - 1)


def test_threads_serve_their_own_requests(telemetry: Telemetry) -> None:
    """Requests of many threads at once are each counted once."""

    def work(number: int) -> None:
        for index in range(EACH):
            with in_decode(telemetry) as request:
                request.token()
                if index % 4 == 0:
                    request.cancel("client_disconnected")

    together(work)
    assert outcomes(telemetry) == {"completed": THREADS * EACH * 3 // 4, "cancelled": THREADS * EACH // 4}
    assert active(telemetry) == 0


def test_current_follows_the_context_into_threads(telemetry: Telemetry) -> None:
    """``to_thread`` and a copied context carry the current request; a bare executor does not, and marks nothing."""
    request = telemetry.request(model="tiny")

    async def serve() -> tuple[bool, bool, bool]:
        loop = asyncio.get_running_loop()
        with request.stage("queue"):
            kept = await asyncio.to_thread(lambda: lifecycle.current() is request)
            copied = await loop.run_in_executor(None, copy_context().run, lambda: lifecycle.current() is request)
            bare = await loop.run_in_executor(None, lambda: lifecycle.current() is request)
            await loop.run_in_executor(None, lambda: lifecycle.current().fail("out_of_memory"))
        return kept, copied, bare

    assert asyncio.run(serve()) == (True, True, False)
    assert request.report is None
    request.cancel()
    assert outcomes(telemetry) == {"cancelled": 1}


def test_stage_decorator_in_a_thread(telemetry: Telemetry) -> None:
    """A decorated function acts on the request of the context it is called in, in whichever thread."""

    @lifecycle.stage("preprocessing")
    def tokenize() -> str:
        return "ids"

    async def serve() -> None:
        with telemetry.request(model="tiny") as request:
            with request.stage("queue"):
                pass
            with request.stage("preprocessing"):
                assert await asyncio.to_thread(tokenize) == "ids"
            request.first_token()

    asyncio.run(serve())
    attributes = telemetry.span("chat tiny")["attributes"]
    assert (attributes["inference.outcome"], attributes["inference.legal"]) == ("completed", True)


def test_trio_streams_with_a_third_cancelled(telemetry: Telemetry) -> None:
    """Sixty tasks of a nursery, every third in a scope that is cancelled: each ends once, the cancels as cancelled."""

    async def generate() -> AsyncIterator[int]:
        for number in range(5):
            await trio.lowlevel.checkpoint()
            yield number

    async def stream(number: int) -> None:
        with trio.CancelScope() as scope, telemetry.request(model="tiny") as request:
            with request.stage("queue"):
                await trio.lowlevel.checkpoint()
            # What trio asks of everybody who may leave an async generator early.
            async with aclosing(request.stream(generate())) as tokens:
                async for token in tokens:
                    if number % 3 == 0 and token == 2:
                        scope.cancel()
                    await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(stream, number)

    trio.run(main)
    assert outcomes(telemetry) == {"completed": 40, "cancelled": 20}
    assert active(telemetry) == 0


@pytest.mark.parametrize(("deadline", "outcome"), [(None, "cancelled"), (0.01, "timed_out")])
def test_trio_deadline(telemetry: Telemetry, deadline: float | None, outcome: str) -> None:
    """A scope that runs out cancels its task; it is a timeout where the request knows of the deadline."""

    async def main() -> None:
        with trio.move_on_after(0.05):
            with telemetry.request(model="tiny", deadline=deadline) as request, request.stage("queue"):
                await trio.sleep_forever()

    trio.run(main)
    assert outcomes(telemetry) == {outcome: 1}


def test_trio_exception_out_of_a_nursery(telemetry: Telemetry) -> None:
    """An exception group whose leaves have one type is a failure of that type, and goes on unchanged."""

    async def fail() -> None:
        raise ValueError("secret")

    async def main() -> None:
        with telemetry.request(model="tiny"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)

    with pytest.raises(BaseException) as caught:  # noqa: PT011  # trio's group type differs between Pythons
        trio.run(main)
    assert [type(error) for error in caught.value.exceptions] == [ValueError]  # type: ignore[attr-defined]
    attributes = telemetry.span("chat tiny")["attributes"]
    assert (attributes["inference.outcome"], attributes["error.type"]) == ("failed", "ValueError")
