"""What a request keeps alive, and for how long: nothing after its end, and never an exception or its frames."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

import otel_lifecycle as lifecycle
from otel_lifecycle._request.tracked import TrackedRequest
from otel_lifecycle._runtime import runtime
from otel_lifecycle.asgi import LifecycleMiddleware
from tests.support.telemetry import Telemetry


class Tensor:
    """Something large that a frame of the engine holds."""


def broken(tensors: list[weakref.ref[Tensor]]) -> Iterator[int]:
    """Yield a token and fail with a tensor in the frame."""
    tensor = Tensor()
    tensors.append(weakref.ref(tensor))
    yield 1
    raise MemoryError


def complete(telemetry: Telemetry) -> None:
    """Serve a request to its end."""
    with telemetry.request(model="tiny") as request:
        with request.stage("queue"):
            pass
        list(request.stream(range(5)))


def fail(telemetry: Telemetry) -> None:
    """Let an exception leave the block."""
    with contextlib.suppress(MemoryError), telemetry.request() as request:
        list(request.stream(broken([])))


def fail_by_name(telemetry: Telemetry) -> None:
    """Fail with an exception in hand."""
    request = telemetry.request()
    try:
        next(iter([]))
    except StopIteration as error:
        request.fail(error)


def time_out(telemetry: Telemetry) -> None:
    """Mark the end by hand."""
    telemetry.request().timeout("deadline")


def cancel(telemetry: Telemetry) -> None:
    """Cancel after misuse, which leaves violations."""
    request = telemetry.request()
    request.token(-1)
    request.admit()
    request.cancel("shutdown")
    request.token()
    request.cancel()


def abandon(telemetry: Telemetry) -> None:
    """Drop the handle."""
    telemetry.request().admit()
    runtime().housekeep()


def trace(telemetry: Telemetry) -> None:
    """Let a traced function fail."""
    traced = lifecycle.traced(tracer_provider=telemetry.tracer_provider)
    with contextlib.suppress(MemoryError):
        list(traced(broken)([]))


ENDINGS: list[Callable[[Telemetry], None]] = [complete, fail, fail_by_name, time_out, cancel, abandon, trace]


@pytest.mark.parametrize("serve", ENDINGS, ids=lambda serve: serve.__name__)
def test_no_request_waits_for_the_collector(telemetry: Telemetry, serve: Callable[[Telemetry], None]) -> None:
    """With the cyclic collector off, every request is freed with its handle, however it ended."""

    def alive() -> int:
        return sum(type(thing) is TrackedRequest for thing in gc.get_objects())

    serve(telemetry)
    runtime().housekeep(now=True)
    gc.collect()
    # Out of sight: a suite that ran for a while has a million objects, and to look at each costs a second.
    gc.freeze()
    before = alive()
    gc.disable()
    try:
        for _ in range(50):
            serve(telemetry)
        telemetry.exporter.clear()
        runtime().housekeep(now=True)
        assert alive() == before
    finally:
        gc.enable()


async def exchange(app: Any) -> None:
    """Ask an app for one answer, in the process."""
    scope = {"type": "http", "method": "POST", "path": "/generate", "headers": [], "query_string": b""}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        pass

    await app(scope, receive, send)


async def stream(scope: Any, receive: Any, send: Any) -> None:
    """Answer with five tokens."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    request = lifecycle.current()
    assert request
    for number in range(5):
        request.token()
        await send({"type": "http.response.body", "body": b"t", "more_body": number < 4})


def serve_exchanges(telemetry: Telemetry, rounds: int) -> None:
    """Serve requests through the ASGI middleware."""
    app = LifecycleMiddleware(stream, routes=["/generate"], tracer_provider=telemetry.tracer_provider)

    async def serve() -> None:
        for _ in range(rounds):
            await exchange(app)

    asyncio.run(serve())


def serve_endings(telemetry: Telemetry, rounds: int) -> None:
    """Serve requests that end in every way, in turn."""
    for number in range(rounds):
        ENDINGS[number % len(ENDINGS)](telemetry)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF], ids=["sampled", "unsampled"])
@pytest.mark.parametrize("serve", [serve_endings, serve_exchanges])
def test_ten_thousand_requests_leave_nothing(
    make_telemetry: Callable[..., Telemetry], serve: Callable[[Telemetry, int], None], sampler: Any
) -> None:
    """With the collector off none of them waits for it, and once what is kept is full, memory does not grow."""
    telemetry = make_telemetry(sampler=sampler)

    def serve_and_forget(rounds: int) -> None:
        for _ in range(rounds // 100):
            serve(telemetry, 100)
            telemetry.exporter.clear()
        runtime().housekeep(now=True)

    # The engine's log and the buffers keep the latest requests: they are full afterwards.
    serve_and_forget(5_000)
    gc.collect()
    before = len(gc.get_objects())
    gc.disable()
    try:
        serve_and_forget(10_000)
        waited = gc.collect()
    finally:
        gc.enable()
    # One cycle a request would be ten thousand.
    assert waited < 100
    assert len(gc.get_objects()) - before < 1_000


def by_block(request: Any, tensors: list[weakref.ref[Tensor]]) -> None:
    """Let the exception leave the request's block."""
    with request:
        list(request.stream(broken(tensors)))


def by_fail(request: Any, tensors: list[weakref.ref[Tensor]]) -> None:
    """Hand the exception over."""
    try:
        list(request.stream(broken(tensors)))
    except MemoryError as error:
        request.fail(error)
        raise


def by_stage(request: Any, tensors: list[weakref.ref[Tensor]]) -> None:
    """Let the exception leave a stage."""
    with request, request.stage("prefill"):
        list(broken(tensors))


@pytest.mark.parametrize("way", [by_block, by_fail, by_stage], ids=lambda way: way.__name__)
@pytest.mark.parametrize("shown", [False, True], ids=["type alone", "with its stack"])
def test_c112_neither_handle_nor_record_holds_a_frame(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, way: Callable[..., None], shown: bool
) -> None:
    """Once the server is done with an exception it is gone, and what its frames held, while the handle lives on."""
    monkeypatch.setattr(runtime(), "record_exceptions", shown)
    tensors: list[weakref.ref[Tensor]] = []
    gc.disable()
    try:
        request = telemetry.request()
        with pytest.raises(MemoryError):
            way(request, tensors)
        assert (len(tensors), [tensor() for tensor in tensors], request.outcome) == (1, [None], "failed")
    finally:
        gc.enable()
