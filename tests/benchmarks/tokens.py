"""The budgets of a token: marking it, its step in a batch, its gap, its memory."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from operator import sub
from time import perf_counter_ns
from typing import Any, Final

import otel_lifecycle as lifecycle
from otel_lifecycle._instruments.delivery import HistogramOutlet
from otel_lifecycle._instruments.moment import now_in
from otel_lifecycle._runtime import runtime
from tests.benchmarks.measure import Budget, Interval, Say, fresh, stopwatch, versus
from tests.benchmarks.subjects import (
    LABELS,
    Lifecycle,
    Method,
    Plain,
)

TOKENS: Final = 1000
BATCH: Final = 64
ANSWERS: Final = 4


def token_path(say: Say) -> Iterator[Budget]:
    """``request.token()``, and ``step(batch)`` by the token, against the one-line method."""
    server = Lifecycle()

    def ours() -> int:
        requests = [server.open() for _ in range(ANSWERS)]
        spent = sum(call(mine, request) for request in requests)
        for request in requests:
            request.complete()
        server.kept.spans.clear()
        return spent

    def method() -> int:
        return sum(call(theirs, Method()) for _ in range(ANSWERS))

    mine, theirs = fresh(thousand_tokens), fresh(thousand_tokens)
    budget, samples = versus("token", 1.5, ours, method)
    say_ns(say, "request.token()", samples["ours"], ANSWERS * TOKENS)
    say_ns(say, "a slotted method", samples["theirs"], ANSWERS * TOKENS)
    yield budget

    def batch() -> int:
        requests = [server.open() for _ in range(BATCH)]
        spent = call(steps, requests)
        for request in requests:
            request.complete()
        server.kept.spans.clear()
        return spent

    def methods() -> int:
        return call(each, [Method() for _ in range(BATCH)])

    steps, each = fresh(hundred_steps), fresh(hundred_rounds)
    budget, samples = versus("step", 0.5, batch, methods)
    say_ns(say, f"step() of {BATCH}, a token", samples["ours"], BATCH * 100)
    yield budget


def thousand_tokens(target: Any) -> None:
    """Mark a thousand tokens; ten in a line, so that the loop itself weighs little."""
    for _ in range(TOKENS // 10):
        target.token()
        target.token()
        target.token()
        target.token()
        target.token()
        target.token()
        target.token()
        target.token()
        target.token()
        target.token()


def hundred_steps(batch: list[Any]) -> None:
    """Step a batch a hundred times."""
    for _ in range(100):
        lifecycle.step(batch)


def hundred_rounds(batch: list[Any]) -> None:
    """Mark a token of each in a batch, a hundred times."""
    for _ in range(100):
        for one in batch:
            one.token()


def call(work: Callable[[Any], None], target: Any) -> int:
    """Return the CPU nanoseconds of one call."""
    spent: list[int] = []
    with stopwatch(spent):
        work(target)
    return spent[0]


def say_ns(say: Say, what: str, samples: list[int], divisor: int) -> None:
    """Print the median cost of one of many."""
    say(f"  {what}: {sorted(samples)[len(samples) // 2] / divisor:.1f} ns")


def gaps(say: Say) -> Iterator[Budget]:
    """All gaps of a 1000-token answer into the histogram, their subtraction and sorting included on both sides."""
    plain, lifecycles = Plain(), Plain()
    bulk = HistogramOutlet(lifecycles.gaps)
    times = stamps()

    def ours() -> int:
        return call(lambda log: bulk.take_gaps(LABELS, [(sorted(map(sub, log[1:], log)), now_in(None))]), times)

    def theirs() -> int:
        def one_by_one(log: list[int]) -> None:
            for gap in map(sub, log[1:], log):
                plain.gaps.record(gap / 1e9, LABELS)

        return call(one_by_one, times)

    budget, samples = versus("gaps_into_histogram", 0.1, ours, theirs)
    say_ns(say, "999 gaps in bulk, a gap", samples["ours"], TOKENS - 1)
    say_ns(say, "999 gaps one by one, a gap", samples["theirs"], TOKENS - 1)
    yield budget


def stamps() -> list[int]:
    """Return the times of a thousand tokens about 20 ms apart, without two gaps alike."""
    times, gap = [perf_counter_ns()], 20_000_000
    for number in range(1, TOKENS):
        times.append(times[-1] + gap + (number * 7_919_317) % 15_000_000 - 7_000_000)
    return times


def memory(say: Say) -> Iterator[Budget]:
    """Bytes a live token takes, what an endless stream holds after a sweep, and what stays after the end."""
    server, tokens = Lifecycle(), 10 * TOKENS
    mark = fresh(thousand_tokens)
    for _ in range(10):
        # What the first requests leave for good: metric streams, exemplars, caches.
        with server.open() as request:
            mark(request)
    server.export()
    tracemalloc.start()
    try:
        server.export()
        before = held()
        request = server.open()
        opened = held()
        for _ in range(tokens // TOKENS):
            mark(request)
        live = (held() - opened) / tokens
        request.complete()
        server.export()
        del request
        left = (held() - before) / tokens
        endless = held_by_an_endless_stream(server, mark)
    finally:
        tracemalloc.stop()
    say(f"  300,000 tokens hold {endless / 1000:.0f} kB after each sweep at most")
    yield exact("live_bytes_per_token", 48, live)
    yield exact("bytes_left_per_token", 1, left)
    yield exact("endless_stream_kB", 48 * 16_384 / 1000, endless / 1000)


def held_by_an_endless_stream(server: Lifecycle, mark: Callable[[Any], None]) -> int:
    """Return the most bytes that a stream of 300,000 tokens held after any sweep."""
    request = server.open()
    before, most = held(), 0
    for _ in range(30):
        for _ in range(10):
            mark(request)
        runtime().housekeep(now=True)
        most = max(most, held() - before)
    request.complete()
    server.kept.spans.clear()
    return most


def held() -> int:
    """Return the bytes that Python objects take now."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def exact(name: str, limit: float, figure: float) -> Budget:
    """Make a budget of a figure that has no noise."""
    return Budget(name=name, limit=limit, interval=Interval(figure, figure, figure))


IN_PROCESS: Final = (token_path, gaps, memory)
