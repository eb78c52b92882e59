"""``traced``: it changes nothing of what the function does, and counts nothing twice."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle.errors import ConfigurationError
from tests.support.telemetry import Telemetry

Traced = Callable[[Callable[..., Any]], Callable[..., Any]]


@pytest.fixture
def traced(telemetry: Telemetry) -> Traced:
    """The decorator for the test's own provider."""
    return lifecycle.traced(tracer_provider=telemetry.tracer_provider)


def attribute(telemetry: Telemetry, name: str) -> Any:
    """An attribute of the one request span; None if it is absent."""
    return telemetry.span("chat")["attributes"].get(f"inference.{name}")


def numbers(limit: int = 3) -> Iterator[int]:
    """Some numbers."""
    yield from range(limit)


async def anumbers(limit: int = 3) -> AsyncIterator[int]:
    """Some numbers, asynchronously."""
    for number in range(limit):
        yield number


@pytest.mark.parametrize("function", [numbers, anumbers], ids=["sync", "async"])
def test_frameworks_see_what_it_was(traced: Traced, function: Callable[..., Any]) -> None:
    """LitServe, Gradio and others ask inspect whether a function is a generator, also of a method."""
    wrapped = traced(function)
    held = type("Api", (), {"predict": wrapped})()
    for is_it in (inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.iscoroutinefunction):
        assert is_it(wrapped) == is_it(held.predict) == is_it(function)
    assert inspect.signature(wrapped) == inspect.signature(function)
    assert (wrapped.__name__, wrapped.__doc__) == (function.__name__, function.__doc__)


def test_method(telemetry: Telemetry, traced: Traced) -> None:
    """A traced generator method is bound to its object."""

    class Api:
        """Serves one word."""

        word = "abc"

        @traced
        def predict(self, upto: int) -> Iterator[str]:
            """Yield letters."""
            yield from self.word[:upto]

    assert list(Api().predict(2)) == ["a", "b"]
    assert attribute(telemetry, "streamed_tokens") == 2


def test_values_sent_and_thrown_reach_the_body(telemetry: Telemetry, traced: Traced) -> None:
    """send() and throw() work as they do without the decorator."""

    @traced
    def echo() -> Any:
        """Yield what was sent, and what was thrown."""
        got = yield "first"
        while True:
            try:
                got = yield got
            except ValueError as error:
                got = f"caught {error}"
                if str(error) == "stop":
                    return "result"

    stream = echo()
    assert [next(stream), stream.send("a"), stream.send("b"), stream.throw(ValueError("c"))] == [
        "first",
        "a",
        "b",
        "caught c",
    ]
    with pytest.raises(StopIteration) as stopped:
        stream.throw(ValueError("stop"))
    assert (stopped.value.value, attribute(telemetry, "outcome")) == ("result", "completed")


def test_values_sent_into_an_async_generator(telemetry: Telemetry, traced: Traced) -> None:
    """asend() and athrow() do too."""

    @traced
    async def echo() -> Any:
        """Yield what was sent, and what was thrown."""
        got = yield "first"
        while True:
            try:
                got = yield got
            except ValueError as error:
                got = f"caught {error}"

    async def main() -> list[Any]:
        stream = echo()
        said = [await anext(stream), await stream.asend("a"), await stream.athrow(ValueError("c"))]
        await stream.aclose()
        return said

    assert asyncio.run(main()) == ["first", "a", "caught c"]
    assert attribute(telemetry, "outcome") == "cancelled"


def test_body_that_streams_is_counted_once(telemetry: Telemetry, traced: Traced) -> None:
    """Where the body marks its tokens by itself, the items it yields are not marked again."""

    @traced
    def serve() -> Iterator[str]:
        """Yield from a marked stream."""
        yield from lifecycle.current().stream("abcd")

    assert list(serve()) == list("abcd")
    assert attribute(telemetry, "streamed_tokens") == 4


def test_traced_within_traced_is_counted_once(telemetry: Telemetry, traced: Traced) -> None:
    """The handler and the engine may both be decorated: one request, each token once."""
    engine = traced(anumbers)

    @traced
    async def serve() -> AsyncIterator[int]:
        """Yield what the engine yields."""
        async for number in engine(5):
            yield number

    async def main() -> list[int]:
        return [number async for number in serve()]

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]
    assert (attribute(telemetry, "streamed_tokens"), attribute(telemetry, "legal")) == (5, True)


def test_function_that_returns_an_awaitable(telemetry: Telemetry, traced: Traced) -> None:
    """A plain function over a coroutine, as another decorator leaves it, lasts until that is done."""

    async def answer() -> str:
        await asyncio.sleep(0.01)
        return "done"

    def plain() -> Any:
        return answer()

    serve = traced(plain)

    async def main() -> Any:
        return await serve()

    assert asyncio.run(main()) == "done"
    # The sleep's own length is the only figure here that does not depend on the machine.
    assert attribute(telemetry, "e2e") >= 0.01


def test_coroutine_that_returns_a_plain_result_after_stages(telemetry: Telemetry, traced: Traced) -> None:
    """Stages that were marked do not keep the result from being the answer."""

    @traced
    async def serve() -> str:
        """Mark the queue and answer at once."""
        with lifecycle.stage("queue"):
            await asyncio.sleep(0)
        return "answer"

    assert asyncio.run(serve()) == "answer"
    assert (attribute(telemetry, "outcome"), attribute(telemetry, "queue_wait") > 0) == ("completed", True)


def test_owner_ends_what_it_opened(telemetry: Telemetry, traced: Traced) -> None:
    """Inside a current request a traced function acts on that one, and leaves its end alone."""
    with telemetry.request() as request:
        with request.stage("preprocessing"):
            assert traced(lambda: 7)() == 7
        assert request.report is None
        assert list(request.stream([1])) == [1]
    assert attribute(telemetry, "outcome") == "completed"


def test_failure_before_any_mark_has_no_stage(telemetry: Telemetry, traced: Traced) -> None:
    """Nobody marked anything: the failure came in no known stage."""
    with pytest.raises(KeyError):
        traced(dict[str, int]().__getitem__)("a")
    assert (attribute(telemetry, "outcome"), attribute(telemetry, "failure.stage")) == ("failed", None)
    # How much came out before is not known either: absent, not 0.
    assert attribute(telemetry, "streamed_tokens") is None


def test_callable_object(telemetry: Telemetry, traced: Traced) -> None:
    """A partial, and an object with __call__, are functions too."""
    assert list(traced(functools.partial(numbers, 2))()) == [0, 1]
    assert attribute(telemetry, "streamed_tokens") == 2


@pytest.mark.parametrize("decorate", [lambda traced: traced("smollm2"), lambda traced: traced(model="m")(5)])
def test_what_is_no_function_is_refused(decorate: Callable[[Any], Any]) -> None:
    """Where it is set, with the rule; not at the first call."""
    with pytest.raises(ConfigurationError, match="function"):
        decorate(lifecycle.traced)
