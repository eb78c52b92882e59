"""Requests that never end: whatever is repeated on them is counted and not kept."""

from __future__ import annotations

import gc
import itertools
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from otel_lifecycle._request.folding import FOLD_ABOVE
from otel_lifecycle._runtime import runtime
from tests.support.telemetry import Telemetry

TOKENS = FOLD_ABOVE + 1000
"""More than a request holds before a sweep folds them."""

OTHERS = 2000
ROUNDS = 4
GROWTH = 96 * 1024
"""Bytes a request may still grow by from the second round to the last."""


def late(request: Any, number: int) -> None:
    """Produce tokens after the end."""
    request.cancel()
    repeat(lambda request, index: request.token())(request, number)


def remote(request: Any, number: int) -> None:
    """Hand over marks of an engine."""
    request.record({"event": "token", "timestamp": time.time_ns()} for _ in range(number))


def preempt(request: Any, index: int) -> None:
    """Interrupt it and take it up again."""
    request.preempt()
    request.resume()


def repeat(call: Callable[[Any, int], object]) -> Callable[[Any, int], None]:
    """Make a round of so many calls."""

    def rounds(request: Any, number: int) -> None:
        for index in range(number):
            call(request, index)

    return rounds


NEW = itertools.count(1)

ENDLESS: dict[str, tuple[int, Callable[[Any, int], None]]] = {
    "tokens": (TOKENS, repeat(lambda request, index: request.token())),
    "tokens of many choices": (TOKENS, repeat(lambda request, index: request.token(1, index % 1000))),
    "tokens of ever new choices": (TOKENS, repeat(lambda request, index: request.token(1, next(NEW)))),
    "tokens of another choice": (TOKENS, repeat(lambda request, index: request.token(1, 1))),
    "tokens at given times": (TOKENS, repeat(lambda request, index: request.token(at_ns=time.time_ns()))),
    "chunks": (TOKENS, repeat(lambda request, index: request.token(2))),
    "chunks of unknown size": (TOKENS, repeat(lambda request, index: request.token(None))),
    "tokens of an engine": (TOKENS, remote),
    "tokens after the end": (TOKENS, late),
    "notes": (OTHERS, repeat(lambda request, index: request.prefill_chunk())),
    "interruptions": (OTHERS, repeat(preempt)),
    "violations": (OTHERS, repeat(lambda request, index: request.admit())),
    "conditions": (OTHERS, repeat(lambda request, index: request.set(model=f"model-{index}", batch_size=index))),
    "unknown conditions": (OTHERS, repeat(lambda request, index: request.set(**{f"name_{index}": index}))),
    "usage": (OTHERS, repeat(lambda request, index: request.usage(output_tokens=index))),
}


QUICK = {"tokens", "tokens after the end"}
"""Of those that take a round of tokens under the tracer, which is slow."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if number == OTHERS or kind in QUICK else pytest.mark.slow)
        for kind, (number, _) in ENDLESS.items()
    ],
)
def test_endless_request_keeps_nothing(telemetry: Telemetry, kind: str) -> None:
    """Round after round with a sweep in between: it holds after the last what it held after the second."""
    number, work = ENDLESS[kind]
    request = telemetry.request(model="tiny")
    request.admit()
    request.input_ready()
    request.first_token()
    sizes = []
    tracemalloc.start()
    try:
        for _ in range(ROUNDS):
            work(request, number)
            runtime().housekeep(now=True)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    request.cancel()
    assert sizes[-1] - sizes[1] < GROWTH
    assert sizes[-1] < 512 * 1024
