"""Coroutines that are closed from a context in which they never ran: a loop that ended, a collector elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextvars import copy_context
from types import coroutine
from typing import Any

import pytest
from opentelemetry.context import get_current

import otel_lifecycle as lifecycle
from tests.support.telemetry import Telemetry

Serve = Callable[[Telemetry], Coroutine[Any, Any, Any]]


@coroutine
def wait() -> Generator[None]:
    """Suspend, as anything that waits for the loop does."""
    yield


async def engine() -> AsyncIterator[int]:
    """Yield a token, and never another."""
    yield 1
    await wait()


def in_stage(telemetry: Telemetry) -> Coroutine[Any, Any, Any]:
    """Wait within a stage."""

    async def serve() -> None:
        async with telemetry.request(model="tiny") as request:
            with request.stage("queue"):
                await wait()

    return serve()


def in_stream(telemetry: Telemetry) -> Coroutine[Any, Any, Any]:
    """Wait for a token."""

    async def serve() -> None:
        async with telemetry.request(model="tiny") as request:
            async for _ in request.stream(engine()):
                pass

    return serve()


def in_traced_coroutine(telemetry: Telemetry) -> Coroutine[Any, Any, Any]:
    """Wait within a traced coroutine."""
    traced: Callable[[], Any] = lifecycle.traced(model="tiny", tracer_provider=telemetry.tracer_provider)(wait_for_it)
    made: Coroutine[Any, Any, Any] = traced()
    return made


def in_traced_awaitable(telemetry: Telemetry) -> Coroutine[Any, Any, Any]:
    """Wait within what a traced function gave back."""
    traced: Callable[[], Any] = lifecycle.traced(model="tiny", tracer_provider=telemetry.tracer_provider)(
        lambda: wait_for_it()  # noqa: PLW0108  # no coroutine function, and gives a coroutine
    )
    made: Coroutine[Any, Any, Any] = traced()
    return made


async def wait_for_it() -> None:
    """Wait."""
    await wait()


WAYS: list[Serve] = [in_stage, in_stream, in_traced_coroutine, in_traced_awaitable]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_closed_from_another_context(telemetry: Telemetry, caplog: pytest.LogCaptureFixture, way: Serve) -> None:
    """The request is cancelled; there is nothing to detach, and nothing is logged."""
    before = get_current()
    serving = way(telemetry)
    copy_context().run(serving.send, None)
    copy_context().run(serving.close)
    outcome = telemetry.span("chat tiny")["attributes"]["inference.outcome"]
    assert (outcome, caplog.records, get_current() is before) == ("cancelled", [], True)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_closed_from_its_own_context(telemetry: Telemetry, caplog: pytest.LogCaptureFixture, way: Serve) -> None:
    """What was current before is current again."""
    before = get_current()
    serving = way(telemetry)
    serving.send(None)
    inside = get_current()
    serving.close()
    assert (inside is before, get_current() is before, caplog.records) == (False, True, [])
