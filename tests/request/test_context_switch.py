"""The context of a stream is switched once a token, by the shortest way there is, and always back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.context.context import _RuntimeContext
from opentelemetry.trace import get_current_span

from tests.instruments.ways import count_calls
from tests.support.telemetry import Telemetry

TOKENS = 50


class ListContext(_RuntimeContext):
    """A runtime context of another kind: a plain stack, whose tokens are numbers."""

    def __init__(self) -> None:
        self._stack = [Context()]

    def attach(self, context: Context) -> Any:
        """Push."""
        self._stack.append(context)
        return len(self._stack)

    def get_current(self) -> Context:
        """Return the top."""
        return self._stack[-1]

    def detach(self, token: Any) -> None:
        """Pop what was pushed by the token and after."""
        del self._stack[token - 1 :]


@pytest.fixture(params=["contextvars", "other"])
def runtime_context(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run with OpenTelemetry's own runtime context, and with one of another kind."""
    if request.param == "other":
        monkeypatch.setattr(otel_context, "_RUNTIME_CONTEXT", ListContext())
    return str(request.param)


def consume(stream: Any) -> None:
    """Take every item."""
    for _ in stream:
        pass


@pytest.mark.usefixtures("runtime_context")
def test_the_request_is_current_in_each_step_and_in_none_of_the_consumers(telemetry: Telemetry) -> None:
    """Each item is made with the request's span current; between two items nothing is left of it."""
    request = telemetry.request()
    before = get_current()

    def engine() -> Iterator[int]:
        for _ in range(3):
            yield get_current_span().get_span_context().span_id

    made = []
    for item in request.stream(engine()):
        made.append(item)
        assert get_current() is before
    assert made == [int(request.carrier()["traceparent"].split("-")[2], 16)] * 3
    request.complete()


@pytest.mark.usefixtures("runtime_context")
def test_what_a_generator_attaches_is_there_in_its_next_step(telemetry: Telemetry) -> None:
    """A span that the engine leaves attached across its yield is not the consumer's, and comes back."""
    mine = Context({"mine": "yes"})

    def engine() -> Iterator[object]:
        token = attach(mine)
        yield get_current().get("mine")
        yield get_current().get("mine")
        detach(token)
        yield get_current().get("mine")

    before, found = get_current(), []
    with telemetry.request() as request:
        for item in request.stream(engine()):
            found.append(item)
            assert get_current() is before
    assert found[:2] == ["yes", "yes"]


@pytest.mark.usefixtures("runtime_context")
def test_an_async_stream_switches_back_too(telemetry: Telemetry) -> None:
    """After each item, and after the last, the consumer's context is current."""

    async def engine() -> AsyncIterator[int]:
        for _ in range(3):
            await asyncio.sleep(0)
            yield get_current_span().get_span_context().span_id

    async def taken() -> list[int]:
        before, made = get_current(), []
        with telemetry.request() as request:
            async for item in request.stream(engine()):
                made.append(item)
                assert get_current() is before
        return made

    assert len(set(asyncio.run(taken()))) == 1


def test_a_token_costs_no_call_of_opentelemetry(telemetry: Telemetry) -> None:
    """The number of attach and detach calls does not grow with the answer."""
    request = telemetry.request()
    calls = count_calls(lambda: consume(request.stream(iter(range(TOKENS)))))
    request.complete()
    assert calls["sync_stream"] > TOKENS
    assert max(calls[name] for name in ("attach", "detach", "get_current")) < TOKENS / 5
