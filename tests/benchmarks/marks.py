"""The budgets of marks at a given time and of chunks, which engines live on, against the one-line method.

The contract has them in nanoseconds on an idle machine, where that method takes 79: the limits are its ratios to that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic_ns, time_ns
from typing import Any, Final

import otel_lifecycle as lifecycle
from tests.benchmarks.measure import Budget, Say, fresh, versus
from tests.benchmarks.subjects import Lifecycle, Method
from tests.benchmarks.tokens import BATCH, TOKENS, call, hundred_rounds, say_ns, thousand_tokens

METHOD_NS: Final = 79
RECORDED: Final = [{"event": "token", "timestamp": time_ns() + number} for number in range(TOKENS)]
"""Made once: a worker makes them in its own process."""


def marks_at_a_time(say: Say) -> Iterator[Budget]:
    """``step(at_ns=)`` by the token, ``token(at_ns=)``, ``token(n)``, a token of a second choice and a recorded one."""
    server = Lifecycle()
    steps, rounds = fresh(hundred_stamped_steps), fresh(hundred_rounds)

    def batch() -> int:
        return ended(server, steps, [server.open() for _ in range(BATCH)])

    def methods() -> int:
        return call(rounds, [Method() for _ in range(BATCH)])

    budget, samples = versus("step_at_a_time", 60 / METHOD_NS, batch, methods, allowance=15)
    say_ns(say, f"step(at_ns=) of {BATCH}, a token", samples["ours"], BATCH * 100)
    yield budget
    for name, nanoseconds, work in (
        ("token_at_a_time", 1000, thousand_stamped),
        ("token_at_a_monotonic_time", 1000, thousand_monotonic),
        ("token_chunk", 600, thousand_chunks),
        ("token_of_a_second_choice", 600, thousand_of_a_choice),
        ("token_recorded", 600, thousand_recorded),
    ):
        yield one_mark(say, server, name, nanoseconds, fresh(work))


def one_mark(say: Say, server: Lifecycle, name: str, nanoseconds: int, work: Callable[[Any], None]) -> Budget:
    """Judge a thousand of one kind of mark by a thousand calls of the method."""
    theirs = fresh(thousand_tokens)
    budget, samples = versus(
        name,
        nanoseconds / METHOD_NS,
        lambda: ended(server, work, [server.open()], single=True),
        lambda: call(theirs, Method()),
        allowance=10,
    )
    say_ns(say, name, samples["ours"], TOKENS)
    return budget


def ended(server: Lifecycle, work: Callable[[Any], None], requests: list[Any], *, single: bool = False) -> int:
    """Return the time of the work; then end the requests."""
    spent = call(work, requests[0] if single else requests)
    for request in requests:
        request.complete()
    server.export()
    return spent


def hundred_stamped_steps(batch: list[Any]) -> None:
    """Step a batch a hundred times, each at a monotonic time of an engine."""
    for _ in range(100):
        lifecycle.step(batch, at_ns=lifecycle.monotonic(ns=monotonic_ns()))


def thousand_stamped(request: Any) -> None:
    """Mark a thousand tokens at epoch times."""
    for _ in range(TOKENS):
        request.token(at_ns=time_ns())


def thousand_monotonic(request: Any) -> None:
    """Mark a thousand tokens at monotonic times of an engine."""
    for _ in range(TOKENS):
        request.token(at_ns=lifecycle.monotonic(ns=monotonic_ns()))


def thousand_chunks(request: Any) -> None:
    """Mark a thousand chunks of four tokens."""
    for _ in range(TOKENS):
        request.token(4)


def thousand_of_a_choice(request: Any) -> None:
    """Mark a thousand tokens of a second choice."""
    for _ in range(TOKENS):
        request.token(1, 1)


def thousand_recorded(request: Any) -> None:
    """Record a thousand tokens of a worker, a hundred in a call."""
    for start in range(0, TOKENS, 100):
        request.record(RECORDED[start : start + 100])
