"""``traced(call=...)``: what a call's arguments say of its request."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle.errors import ConfigurationError
from tests.support.hostile import Raising
from tests.support.telemetry import Telemetry

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
HEADERS = {"Traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}


def said(prompt: str, headers: Any = None, attempt: int = 1) -> dict[str, Any]:
    """What a call's arguments say of its request."""
    return {"parent": headers, "attempt": attempt, "input_tokens": len(prompt), "model": None}


def answer(prompt: str, headers: Any = None, attempt: int = 1) -> str:
    """A plain function."""
    return prompt.upper()


async def answer_async(prompt: str, headers: Any = None, attempt: int = 1) -> str:
    """A coroutine."""
    return prompt.upper()


def stream(prompt: str, headers: Any = None, attempt: int = 1) -> Iterator[str]:
    """A generator."""
    yield from prompt.upper()


async def stream_async(prompt: str, headers: Any = None, attempt: int = 1) -> AsyncIterator[str]:
    """An async generator."""
    for letter in prompt.upper():
        yield letter


def run(function: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """Call it and return all that it gave, as text."""

    async def collect(items: Any) -> str:
        return "".join([item async for item in items])

    result = function(*arguments, **named)
    if hasattr(result, "__aiter__"):
        return asyncio.run(collect(result))
    if inspect.iscoroutine(result):
        return str(asyncio.run(result))
    return "".join(result)


@pytest.mark.parametrize("function", [answer, answer_async, stream, stream_async])
def test_conditions_and_parent_from_the_arguments(telemetry: Telemetry, function: Callable[..., Any]) -> None:
    """Every kind of function; what the arguments say wins over what the decorator says, and None says nothing."""
    decorate = lifecycle.traced(tracer_provider=telemetry.tracer_provider, call=said, model="smollm2", attempt=7)
    assert run(decorate(function), "abc", HEADERS, attempt=2) == "ABC"
    span = telemetry.span("chat smollm2")
    assert (span["trace_id"], span["parent_id"]) == (TRACE_ID, PARENT_ID)
    told = {name: span["attributes"][name] for name in ("inference.request.attempt", "gen_ai.usage.input_tokens")}
    assert told == {"inference.request.attempt": 2, "gen_ai.usage.input_tokens": 3}
    assert span["attributes"]["inference.outcome"] == "completed"
    assert span["attributes"]["inference.legal"] is True


@pytest.mark.parametrize("function", [answer, stream])
def test_arrival_from_the_arguments(telemetry: Telemetry, function: Callable[..., Any]) -> None:
    """A job that waited in a queue of the server's own has arrived when it was put there."""
    put = time.time_ns() - 5_000_000_000
    traced = lifecycle.traced(tracer_provider=telemetry.tracer_provider, call=lambda prompt: {"arrived_at_ns": put})
    run(traced(function), "abc")
    assert telemetry.span("chat")["attributes"]["inference.e2e"] >= 5


def test_an_unknown_arrival(telemetry: Telemetry) -> None:
    """None is a value here: it is not known when the job arrived."""
    traced = lifecycle.traced(tracer_provider=telemetry.tracer_provider, call=lambda prompt: {"arrived_at_ns": None})
    run(traced(answer), "abc")
    assert "inference.e2e" not in telemetry.span("chat")["attributes"]


def test_a_method(telemetry: Telemetry) -> None:
    """The first argument of a method is the object."""

    class Task:
        """A task with a request of its framework's own, as in Celery."""

        headers = HEADERS

        @lifecycle.traced(tracer_provider=telemetry.tracer_provider, call=lambda self, prompt: {"parent": self.headers})
        def run(self, prompt: str) -> str:
            """The work."""
            return prompt

    assert Task().run("abc") == "abc"
    assert telemetry.span("chat")["trace_id"] == TRACE_ID


def failing(prompt: str) -> dict[str, Any]:
    """A reader that raises."""
    raise KeyError(prompt)


WRONG: list[tuple[str, Callable[..., Any], int]] = [
    ("raises", failing, 1),
    ("other_arguments", dict, 1),
    ("no_mapping", lambda prompt: 5, 1),
    ("hostile_result", lambda prompt: Raising(), 1),
    ("hostile_values", lambda prompt: {"model": Raising(), "attempt": Raising()}, 2),
    ("hostile_options", lambda prompt: {"parent": Raising(), "previous": Raising()}, 0),
    ("hostile_arrival", lambda prompt: {"arrived_at_ns": Raising()}, 1),
    ("unknown_names", lambda prompt: {"modle": "x", "shape": "pooling", 5: 6}, 2),
    ("nothing", lambda prompt: None, 0),
]


@pytest.mark.parametrize("function", [answer, stream])
@pytest.mark.parametrize(("call", "violations"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_failing_reader_is_counted_and_the_function_runs(
    telemetry: Telemetry, call: Callable[..., Any], violations: int, function: Callable[..., Any]
) -> None:
    """Nothing that reading the arguments does reaches the caller; each fault is one violation."""
    assert run(lifecycle.traced(tracer_provider=telemetry.tracer_provider, call=call)(function), "abc") == "ABC"
    attributes = telemetry.span("chat")["attributes"]
    assert attributes["inference.outcome"] == "completed"
    assert attributes["inference.violations"] == violations
    if violations:
        point = telemetry.point(
            "inference.transition.violations",
            inference__violation__kind="invalid_timestamp" if call is WRONG[6][1] else "invalid_value",
        )
        assert point["value"] == violations


def test_what_is_no_function_is_refused_when_the_module_is_imported() -> None:
    """Not when the first request comes."""
    with pytest.raises(ConfigurationError, match="call is"):
        lifecycle.traced(call={"model": "x"})  # type: ignore[call-overload]
