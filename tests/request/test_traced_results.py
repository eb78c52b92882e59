"""What a traced function may return: ``traced`` changes nothing of it, and sees its end where it can."""

from __future__ import annotations

import asyncio
import concurrent.futures
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import otel_lifecycle as lifecycle
from tests.support.telemetry import Telemetry


class Proxy:
    """A result whose attributes raise."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Frozen(NamedTuple):
    """A response that cannot be changed."""

    body_iterator: Any


def outcome(telemetry: Telemetry) -> Any:
    """The outcome of the one request."""
    return telemetry.span("chat")["attributes"]["inference.outcome"]


@pytest.mark.parametrize("result", [Proxy(), Frozen([1, 2])], ids=["proxy", "frozen"])
def test_odd_results_come_back_as_they_are(telemetry: Telemetry, result: Any) -> None:
    """They are the whole answer: nothing can be seen of how they go on."""
    traced: Callable[[], Any] = lifecycle.traced(tracer_provider=telemetry.tracer_provider)(lambda: result)
    assert traced() is result
    assert outcome(telemetry) == "completed"


@pytest.mark.parametrize(("end", "expected"), [("result", "completed"), ("error", "failed"), ("cancel", "cancelled")])
def test_a_future_stays_a_future(telemetry: Telemetry, end: str, expected: str) -> None:
    """It is the one that was returned, and the request ends when it is done."""

    async def main() -> None:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        made = lifecycle.traced(tracer_provider=telemetry.tracer_provider)(lambda: future)()
        assert made is future
        assert telemetry.spans("chat") == []
        if end == "result":
            future.set_result("text")
        elif end == "error":
            future.set_exception(ValueError())
        else:
            future.cancel()
        await asyncio.wait([future])
        await asyncio.sleep(0)
        if end == "error":
            assert isinstance(future.exception(), ValueError)

    asyncio.run(main())
    assert outcome(telemetry) == expected


def test_a_future_of_a_thread(telemetry: Telemetry) -> None:
    """A concurrent future is one, too."""
    future: concurrent.futures.Future[str] = concurrent.futures.Future()
    traced: Callable[[], Any] = lifecycle.traced(tracer_provider=telemetry.tracer_provider, tokens=len)(lambda: future)
    assert traced() is future
    future.set_result("four")
    assert telemetry.span("chat")["attributes"]["gen_ai.usage.output_tokens"] == 4


@lifecycle.traced
def letters(count: int) -> Iterator[str]:
    """Yield letters."""
    yield from "abc"[:count]


def test_a_decorated_generator_function_is_pickled_by_name() -> None:
    """As an undecorated one is: process pools are given functions."""
    assert pickle.loads(pickle.dumps(letters)) is letters
    assert list(letters(2)) == ["a", "b"]


def test_c110_vllm_names_have_the_meaning_of_vllm(make_telemetry: Any) -> None:
    """Arrival 0, admit 1, input ready 2, first token 5, last token 7, end 9, as vLLM itself would write them."""
    telemetry = make_telemetry(compat="vllm")
    start = 1_700_000_000 * 10**9
    request = telemetry.request(request_id="r1", arrived_at_ns=start)
    for second, name in ((1, "admit"), (2, "input_ready"), (5, "first_token"), (7, "token"), (9, "complete")):
        getattr(request, name)(at_ns=start + second * 10**9)
    attributes = telemetry.span("chat")["attributes"]
    names = ("time_in_queue", "time_to_first_token", "time_in_model_prefill", "time_in_model_decode")
    latency = [attributes[f"gen_ai.latency.{name}"] for name in (*names, "time_in_model_inference", "e2e")]
    assert (latency, attributes["gen_ai.request.id"]) == ([1, 5, 4, 2, 6, 9], "r1")
