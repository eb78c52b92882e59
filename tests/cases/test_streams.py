"""Cases of decorated functions: what streams lasts as long as its stream, what does not has no first token."""

from __future__ import annotations

import asyncio
import gc
import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from tests.support.telemetry import Telemetry

from .live import near
from .notation import NS

PAUSE = 0.002


def paced() -> Iterator[int]:
    """Yield three tokens, each after a pause."""
    for token in range(3):
        time.sleep(PAUSE)
        yield token


class Paced:
    """The same as an object with ``__aiter__``."""

    def __aiter__(self) -> AsyncIterator[int]:
        """Iterate."""
        return apaced()


async def apaced() -> AsyncIterator[int]:
    """Yield three tokens, each after a pause."""
    for token in range(3):
        await asyncio.sleep(PAUSE)
        yield token


async def returns_generator() -> AsyncIterator[int]:
    """Return an async generator."""
    return apaced()


def returns_iterable() -> Paced:
    """Return what has ``__aiter__``."""
    return Paced()


class Response:
    """A response as web frameworks have it."""

    def __init__(self) -> None:
        self.body_iterator = apaced()


def returns_response() -> Response:
    """Return a response."""
    return Response()


def returns_sync_generator() -> Iterator[int]:
    """Return a generator."""
    return paced()


async def consume(result: Any) -> list[int]:
    """Read whatever a function gave to its end."""
    if inspect.iscoroutine(result):
        result = await result
    if hasattr(result, "body_iterator"):
        result = result.body_iterator
    if hasattr(result, "__aiter__"):
        return [token async for token in result]
    return list(result)


KINDS = [apaced, paced, returns_generator, returns_iterable, returns_response, returns_sync_generator]


@pytest.mark.parametrize("function", KINDS, ids=lambda function: str(function.__name__))
def test_c38_traced_lasts_as_long_as_the_stream(
    telemetry: Telemetry, function: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The request ends after its last token, with three tokens and a TTFT and TPOT of their own; nothing is logged."""
    decorate = lifecycle.traced(model="tiny", tracer_provider=telemetry.tracer_provider)
    serve = decorate(function)

    async def main() -> list[int]:
        return await consume(serve())

    before = time.time_ns()
    assert asyncio.run(main()) == [0, 1, 2]
    after = time.time_ns()
    span = telemetry.span("chat tiny")
    found = span["attributes"]
    assert (found["inference.outcome"], found["inference.streamed_tokens"]) == ("completed", 3)
    assert before <= span["start_ns"] <= span["end_ns"] <= after
    assert PAUSE <= found["inference.ttft"] <= found["inference.e2e"] - 2 * PAUSE
    assert PAUSE <= found["inference.tpot"] <= found["inference.e2e"] / 2
    assert found["inference.e2e"] == near((span["end_ns"] - span["start_ns"]) / NS)
    assert caplog.records == []


@pytest.mark.long
@pytest.mark.parametrize("function", [apaced, paced], ids=["async", "sync"])
def test_c38_generator_never_iterated_opens_nothing(telemetry: Telemetry, function: Callable[[], Any]) -> None:
    """Neither a span nor a request, now or when it is collected."""
    serve = lifecycle.traced(model="tiny", tracer_provider=telemetry.tracer_provider)(function)
    unused = serve()
    del unused
    gc.collect()
    assert telemetry.spans() == []
    assert [point for point in telemetry.points() if point["value"] or point["count"]] == []


@pytest.mark.parametrize(
    ("count", "expected"), [(len, 3), (lambda answer: 0, 0), (None, None)], ids=["counted", "none", "unknown"]
)
def test_c08_plain_result(telemetry: Telemetry, count: Callable[[Any], int] | None, expected: int | None) -> None:
    """A function that returns its whole answer has no TTFT and no TPOT, whatever it takes; E2E stands."""

    @lifecycle.traced(model="tiny", tokens=count, tracer_provider=telemetry.tracer_provider)
    def answer() -> str:
        return "abc"

    assert answer() == "abc"
    found = telemetry.span("chat tiny")["attributes"]
    metrics = {name: found[f"inference.{name}"] for name in ("ttft", "tpot", "prefill") if f"inference.{name}" in found}
    assert (found["inference.outcome"], metrics, found.get("inference.streamed_tokens")) == ("completed", {}, expected)
    assert found["inference.e2e"] >= 0
