"""How requests arrive: what of it is a condition of the workload, and what the server's own doing."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cli.generator import Load, Simulated, line, spans_of
from tests.cli.running import Ran

LOAD = Load(requests=400)


def simulated(arrivals: Iterable[float], seed: int, e2e: float, spread: float = 0.2) -> Iterator[Simulated]:
    """Yield requests that take some time each, give or take a part of it."""
    random = np.random.default_rng(seed)
    for number, arrive in enumerate(arrivals):
        end = arrive + e2e * float(random.uniform(1 - spread, 1 + spread))
        yield Simulated(
            number=number,
            arrive=arrive,
            admit=arrive + 0.001,
            input_ready=arrive + 0.002,
            first_token=arrive + 0.1 * e2e,
            end=end,
            event="complete",
            input_tokens=int(random.integers(50, 500)),
            output_tokens=20,
            gap=e2e / 20,
            longest=e2e / 15,
        )


def put(name: str, requests: Iterable[Simulated]) -> str:
    """Write requests into the working directory."""
    with Path(name).open("wb") as out:
        out.writelines(line(spans_of(request, LOAD)) for request in requests)
    return name


def metronome(rate: float) -> Iterator[float]:
    """Yield arrivals as regular as a clock."""
    return (number / rate for number in range(200))


def independent(rate: float) -> Iterator[float]:
    """Yield arrivals that know nothing of each other."""
    return iter(np.cumsum(np.random.default_rng(7).exponential(1 / rate, 400)).tolist())


@pytest.mark.long
@pytest.mark.parametrize(("arrivals", "rate"), [(metronome, 1.0), (metronome, 2.0), (independent, 0.2)])
def test_double_the_rate_is_refused_however_few_are_in_flight(
    cli: Callable[..., Ran], arrivals: Callable[[float], Iterator[float]], rate: float
) -> None:
    """Always as many in flight, for none waits; but no request comes because another has ended."""
    one = put("one.json", simulated(arrivals(rate), 1, 0.35))
    two = put("two.json", simulated(arrivals(2 * rate), 2, 0.35))
    ran = cli("compare", one, two)
    assert ran.code == 2
    assert [told.split(":")[0].strip() for told in ran.err.splitlines()[1:-1]] == ["rate of arrivals"]


def loop(clients: int, seed: int, e2e: float, think: float, spread: float) -> Iterator[Simulated]:
    """Yield the requests of clients who send the next when the last has ended, and they have thought."""
    random, free = np.random.default_rng(seed), [0.0] * clients
    for number in range(300):
        request = next(simulated([heapq.heappop(free)], seed * 1000 + number, e2e, spread))
        heapq.heappush(free, request.end + think * float(random.uniform(0.5, 1.5)))
        yield replace(request, number=number)


@pytest.mark.long
@pytest.mark.parametrize(
    ("clients", "think", "spread"),
    [
        (4, 0.02, 0.2),
        # The quick suite has one loop, of several clients.
        *(
            pytest.param(*loop, marks=pytest.mark.slow)
            for loop in [(1, 0.01, 0.0), (1, 0.001, 0.2), (4, 0.001, 0.2), (16, 0.001, 0.2), (1, 0.03, 0.2)]
        ),
    ],
)
def test_how_fast_a_closed_loop_sends_is_no_condition(
    cli: Callable[..., Ran], clients: int, think: float, spread: float
) -> None:
    """A server half as fast is sent half as much."""
    one = put("one.json", loop(clients, 1, 0.4, think, spread))
    two = put("two.json", loop(clients, 2, 0.8, think, spread))
    ran = cli("compare", one, two, "--json")
    assert ran.json["comparable"]
    told = {metric["metric"]: metric["verdict"] for metric in ran.json["metrics"]}
    assert told["e2e.p50"] == "worse"
