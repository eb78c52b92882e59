"""What instrumentation costs a whole streaming server, by concurrency and by length of answer.

How it works.  Each way of serving has a server process of its own, and all are under load at once: the same second of
the machine is in each of their windows.  In turns, seconds apart, the machine was not the same: the ratio of two equal
servers lay between 0.7 and 1.6.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Final, TypeVar

from tests.benchmarks.load import HOST, Load, SteadyLoad
from tests.benchmarks.measure import Budget, Interval, Say, decide, middle, until
from tests.benchmarks.requests import A_TENTH_MORE

T = TypeVar("T")

ROOT: Final = Path(__file__).parents[2]
FEWEST_WINDOWS: Final = 12
"""Fewer than rounds elsewhere: a window takes seconds."""
WINDOW_S: Final = 2
"""Long enough for some hundred ends of answers of a hundred tokens; those of a thousand end one after another."""

Loads = Mapping[str, list[Load]]
Enough = Callable[[Loads], bool]


@dataclass(frozen=True, slots=True)
class Shape:
    """A load: so many streams at a time, and tokens an answer."""

    streams: int
    tokens: int


JUDGED: Final = ("plain", "stream", "hand")
EVERY: Final = ("plain", "stream", "token", "naive")
BUDGETED: Final = ((1.25, Shape(64, 100)), (1.06, Shape(64, 1000)))
SECONDS_EACH: Final = 140
"""Each load goes on for so long, or until it is settled."""
FURTHER: Final = (Shape(64, 10), Shape(1, 1000), Shape(64, 1000), Shape(1000, 1000))
STACK: Final = "h11"
"""What `pip install uvicorn` brings, and the extra ``demo`` with it."""
FASTER: Final = "httptools"


class _Accepting(BaseHTTPRequestHandler):
    """A Collector that takes everything and looks at nothing."""

    def do_POST(self) -> None:
        """Accept an export."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def collector(up: bool) -> Iterator[str]:
    """Yield an OTLP/HTTP endpoint: one that accepts, or one where nobody listens."""
    if not up:
        yield f"http://{HOST}:{free_port()}"
        return
    sink = ThreadingHTTPServer((HOST, 0), _Accepting)
    thread = threading.Thread(target=sink.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{sink.server_address[1]}"
    finally:
        sink.shutdown()
        sink.server_close()
        thread.join()


@contextmanager
def serving(endpoint: str, stack: str) -> Iterator[int]:
    """Run the server in a process of its own and yield its port."""
    port = free_port()
    command = [sys.executable, "-m", "tests.benchmarks.server", str(port), endpoint, stack]
    # A closed endpoint is part of the load; what the exporters log of it is not.
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(port, process)
        yield port
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(port: int, process: subprocess.Popen[bytes], patience: float = 60) -> None:
    """Return when the server accepts connections; RuntimeError if it ends before, or does not in time."""
    end = monotonic() + patience
    while process.poll() is None and monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        sleep(0.05)
    raise RuntimeError("the benchmark's server did not start")


@contextmanager
def servers(modes: tuple[str, ...], state: str, stack: str) -> Iterator[dict[str, int]]:
    """Run a server for each mode, with the Collector up or down, and yield their ports."""
    with collector(state == "up") as endpoint, ExitStack() as running:
        yield {mode: running.enter_context(serving(endpoint, stack)) for mode in modes}


def whole_server(say: Say) -> Iterator[Budget]:
    """Measure the loads that have a budget, with a Collector; all modes are under load at once."""
    with servers(JUDGED, "up", STACK) as ports:
        head(say, STACK, "up")
        for contract, shape in BUDGETED:
            loads = measure(say, ports, shape, SECONDS_EACH, partial(settled, contract))
            say(f"    by hand {against_plain(loads, 'hand').figure:.3f}; the contract says {contract:g}")
            name = f"server_{shape.streams}_streams_{shape.tokens}_tokens"
            costs = {mode: median(load.cpu_per_token for load in loads[mode]) * 1e6 for mode in JUDGED}
            yield replace(verdict(name, contract, loads), costs=costs)


def verdict(name: str, contract: float, loads: Loads) -> Budget:
    """Judge a load; the bounds of the figure are as wide as those of its ratio to the limit."""
    ratio, figure = against_limit(contract, loads), against_plain(loads, "stream").figure
    limit = figure / ratio.figure
    return decide(name, limit, Interval(figure, limit * ratio.low, limit * ratio.high))


def settled(contract: float, loads: Loads) -> bool:
    """Whether there are windows enough."""
    return against_limit(contract, loads).settled(1)


def against_limit(contract: float, loads: Loads) -> Interval:
    """Return the CPU of a token against its limit in the same window: so the noise of the limit counts, too.

    The limit is what the same costs by hand above the bare server, and a tenth of it; the contract's if that is more.
    """
    limits = [
        bare.cpu_per_token + A_TENTH_MORE * (hand.cpu_per_token - bare.cpu_per_token)
        for bare, hand in zip(loads["plain"], loads["hand"], strict=True)
    ]
    if 1 + A_TENTH_MORE * (against_plain(loads, "hand").figure - 1) < contract:
        limits = [contract * bare.cpu_per_token for bare in loads["plain"]]
    return middle([one.cpu_per_token / most for one, most in zip(loads["stream"], limits, strict=True)])


def more_servers(say: Say) -> Iterator[Budget]:
    """Measure further loads, with the Collector up and down and on a faster stack; they have no budget."""
    for state, stack in (("up", STACK), ("down", STACK), ("up", FASTER)):
        if stack == FASTER and not (find_spec("uvloop") and find_spec("httptools")):
            continue
        with servers(EVERY, state, stack) as ports:
            head(say, stack, state)
            for shape in FURTHER:
                measure(say, ports, shape, SECONDS_EACH)
    yield from ()


def head(say: Say, stack: str, state: str) -> None:
    """Print the head of a table."""
    say(f"  streaming server on {stack}, Collector {state}:")
    say("    streams tokens mode     CPU µs/token   against plain          tokens/s    p99 s")


def measure(
    say: Say, ports: Mapping[str, int], shape: Shape, allowance: float, enough: Enough = lambda loads: False
) -> Loads:
    """Measure one load until ``enough`` or ``allowance`` seconds are over, and print its rows."""
    loads = asyncio.run(in_windows(ports, shape, enough, allowance))
    for mode in ports:
        say(row(shape, mode, loads[mode], against_plain(loads, mode)))
    return loads


async def in_windows(ports: Mapping[str, int], shape: Shape, enough: Enough, allowance: float) -> Loads:
    """Put all servers under load at once, and look at each window of the same seconds."""
    end = until(allowance)
    streams = {mode: SteadyLoad(port, mode, shape.streams, shape.tokens) for mode, port in ports.items()}
    loads = {mode: list[Load]() for mode in ports}
    await gather(one.begin() for one in streams.values())
    # Two windows at least: with fewer there is no spread to tell.
    while len(loads["plain"]) < 2 or (
        monotonic() < end and not (len(loads["plain"]) >= FEWEST_WINDOWS and enough(loads))
    ):
        await gather(one.open_window() for one in streams.values())
        await asyncio.sleep(WINDOW_S)
        for mode, load in zip(ports, await gather(one.close_window() for one in streams.values()), strict=True):
            loads[mode].append(load)
    await gather(one.end() for one in streams.values())
    return loads


async def gather(waiting: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for all of them."""
    return await asyncio.gather(*waiting)


def against_plain(loads: Loads, mode: str) -> Interval:
    """Return the CPU of a token against the one without instrumentation in the same window."""
    return middle(
        [one.cpu_per_token / bare.cpu_per_token for one, bare in zip(loads[mode], loads["plain"], strict=True)]
    )


def row(shape: Shape, mode: str, loads: list[Load], ratio: Interval) -> str:
    """Return one line of the table."""
    cpu, throughput, p99 = (
        median(getattr(load, name) for load in loads) for name in ("cpu_per_token", "throughput", "p99")
    )
    spread = f"{ratio.figure:.3f} ({ratio.low:.3f}..{ratio.high:.3f})"
    return (
        f"    {shape.streams:7} {shape.tokens:6} {mode:8} {cpu * 1e6:12.1f}   {spread:22} {throughput:8.0f} {p99:8.3f}"
    )
