"""Stalls and their causes on a real engine: a neighbour's prompt stops a request that decodes, piece by piece.

Everything follows the tokens and not the clock, so that a busy machine changes how long it takes and nothing else: the
neighbour comes, or the process is stopped, once the victim has received so many tokens.

Why the figures agree.  Between two pieces of a prompt llama.cpp gives the other slots one token, so the victim has one
long gap for each piece.  One more or less: the last piece may be too small to make a stall, and the first may share its
step with a token.  A stall is a gap without the usual gap, so the stalls and as many usual gaps are the neighbour's
prefill.  On a busy machine other gaps are long as well; those are not beside the prefill.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import math
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics
from typing import TYPE_CHECKING, TypeVar

import httpx
import pytest

from examples import llama_server, load, model
from examples.engine import Engine
from otel_lifecycle import semconv

if TYPE_CHECKING:
    from tests.support.otlp_receiver import HttpReceiver
    from tests.support.plain import Span
    from tests.support.telemetry import Telemetry

pytestmark = pytest.mark.demo

log = logging.getLogger(__name__)

ROOT = Path(__file__).parents[2]
SCHEDULES = 12
BATCH = 32
"""Tokens of a piece: small, so that a short prompt has several pieces."""
SECOND = "second-engine"
PAUSE = 1.5
"""Seconds for which the process is stopped."""
TOPICS = sorted(topics)
Then = TypeVar("Then")


@pytest.fixture
def telemetry(make_telemetry: Callable[..., Telemetry]) -> Telemetry:
    """Fresh providers whose spans have the time of each token."""
    return make_telemetry(token_times=True)


@pytest.fixture
def servers(fresh_globals: None, telemetry: Telemetry, model_path: Path) -> Iterator[tuple[str, str]]:
    """Two servers in this process, each with an engine of its own, which all their requests tell one log."""
    from opentelemetry import trace

    trace.set_tracer_provider(telemetry.tracer_provider)
    with contextlib.ExitStack() as running:
        yield (
            running.enter_context(llama_server.served(Engine(model_path, name=model.NAME, batch=BATCH))),
            running.enter_context(llama_server.served(Engine(model_path, name=SECOND, batch=BATCH))),
        )


def client(address: str) -> httpx.AsyncClient:
    """Return a client that waits as long as it takes."""
    return httpx.AsyncClient(base_url=address, timeout=None, trust_env=False)


async def ask_and_then(
    address: str, ask: load.Ask, request_id: str, tokens: int, then: Callable[[], Awaitable[Then]]
) -> tuple[load.Answer, Then]:
    """Ask; do something else once ``tokens`` have arrived; return both results."""
    decodes = asyncio.Event()

    def counted(so_far: int) -> None:
        if so_far >= tokens:
            decodes.set()

    async def later() -> Then:
        await decodes.wait()
        return await then()

    async with client(address) as session:
        return await asyncio.gather(load.send(session, ask, request_id, counted), later())


async def schedule(draw: random.Random, number: int, victims: str, neighbours: str) -> tuple[load.Answer, load.Answer]:
    """Let a neighbour with a prompt of some pieces come while a victim decodes; return both answers."""
    before = draw.randint(9, 20)
    prompt = load.chapter(draw.choice(TOPICS), draw.randint(150, 550))
    # Enough tokens for the longest prompt, and for the usual gap to stay the usual one.
    victim = load.Ask(label="victim", prompt=f"Count from {number} to a hundred.", max_tokens=before + 22)
    neighbour = load.Ask(label="neighbour", prompt=prompt, max_tokens=2)

    async def come() -> load.Answer:
        async with client(neighbours) as session:
            return await load.send(session, neighbour, f"neighbour-{number}")

    return await ask_and_then(victims, victim, f"victim-{number}", before, come)


def span_of(telemetry: Telemetry, answer: load.Answer) -> Span:
    """Return the span of a request."""
    (span,) = [
        one
        for one in telemetry.spans()
        if one["attributes"].get(semconv.REQUEST_ID) == answer.request_id and semconv.OUTCOME in one["attributes"]
    ]
    return span


def times_of(span: Span) -> dict[str, int]:
    """Return the times of a request's boundaries, epoch nanoseconds."""
    return {event["name"]: event["time_ns"] for event in span["events"]}


def overlap(victim: Span, neighbour: Span) -> float:
    """Return the seconds of the neighbour's prefill in which the victim decoded."""
    mine, its = times_of(victim), times_of(neighbour)
    start = max(mine["first_token"], its["input_ready"])
    return (min(mine["complete"], its["first_token"]) - start) / 1e9


def stalls_beside(victim: Span, neighbour: Span) -> int:
    """Count, from the times of the victim's tokens, the long gaps that overlap the neighbour's prefill."""
    told, its, first = victim["attributes"], times_of(neighbour), times_of(victim)["first_token"]
    packed = base64.b64decode(told[semconv.TOKEN_OFFSETS])
    tokens = [first + 1000 * offset for (offset,) in struct.iter_unpack("<I", packed)]
    usual = told[semconv.ITL_P50] * 1e9
    long = [(start + usual, end) for start, end in pairwise(tokens) if end - start > max(2 * usual, usual + 5e6)]
    return sum(start < its["first_token"] and end > its["input_ready"] for start, end in long)


def stallers(span: Span) -> list[str]:
    """Return the span ids that a span blames for its stalls."""
    return [link["span_id"] for link in span["links"] if link["attributes"][semconv.LINK_REASON] == "stall"]


def test_the_neighbour_is_named(servers: tuple[str, str], telemetry: Telemetry) -> None:
    """One stall for each piece of the neighbour's prompt, together as long as its prefill; a link to it each time."""
    draw = random.Random(12)
    counts: list[tuple[int, int]] = []
    times: list[tuple[float, float]] = []
    for number in range(SCHEDULES):
        answers = asyncio.run(schedule(draw, number, servers[0], servers[0]))
        victim, neighbour = (span_of(telemetry, answer) for answer in answers)
        told, stalls = victim["attributes"], stalls_beside(victim, neighbour)
        counts.append((math.ceil(answers[1].timings["prompt_n"] / BATCH), stalls))
        times.append((told[semconv.STALL_PREFILL] + stalls * told[semconv.ITL_P50], overlap(victim, neighbour)))
        log.info("%s, %s, %s", counts[-1], times[-1], {name: told[name] for name in told if "stall" in name})
        assert stallers(victim) == [neighbour["span_id"]]
        assert stallers(neighbour) == []
    assert [(pieces, stalls) for pieces, stalls in counts if abs(stalls - pieces) > 1] == []
    assert [stalled for stalled, _ in times] == [pytest.approx(beside, rel=0.05) for _, beside in times]


def test_a_neighbour_on_a_second_engine_is_blamed_for_nothing(servers: tuple[str, str], telemetry: Telemetry) -> None:
    """It takes the processor and not a slot: whatever stalls the victim then is unexplained."""
    draw = random.Random(3)
    for number in range(3):
        answers = asyncio.run(schedule(draw, number, *servers))
        victim, neighbour = (span_of(telemetry, answer) for answer in answers)
        assert overlap(victim, neighbour) > 0
        for span in victim, neighbour:
            assert span["attributes"].get(semconv.STALL_PREFILL, 0.0) == 0.0
            assert span["attributes"][semconv.COMPANY_PREFILL] == 0.0
            assert (span["links"], span["attributes"].get(semconv.BOTTLENECK_CAUSE)) in [([], None), ([], "own")]


@pytest.fixture
def process(model_path: Path, otlp_http: HttpReceiver) -> Iterator[tuple[str, int]]:
    """The example server as a process, and its id; its spans go to the receiver."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "examples.llama_server", "--model", str(model_path), "--port", str(port)]
    exported = {"OTEL_EXPORTER_OTLP_ENDPOINT": otlp_http.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, **exported}) as server:
        try:
            wait_until_it_answers(address, server)
            yield address, server.pid
        finally:
            # It does not hear of an end while it is stopped.
            server.send_signal(signal.SIGCONT)
            server.terminate()


def wait_until_it_answers(address: str, server: subprocess.Popen[bytes]) -> None:
    """Wait for the server; fail at once if it has ended."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            httpx.get(f"{address}/docs", trust_env=False)
            return
        time.sleep(0.2)
    pytest.fail(f"the server did not start: {server.poll()}")


def test_a_stopped_process_is_unexplained(process: tuple[str, int], otlp_http: HttpReceiver) -> None:
    """The whole server stands still for a while; nobody beside the request is blamed for it."""
    address, pid = process

    async def stop_for_a_while() -> None:
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(PAUSE)
        os.kill(pid, signal.SIGCONT)

    victim = load.Ask(label="victim", prompt="Count to a hundred.", max_tokens=60)
    asyncio.run(ask_and_then(address, victim, "victim", 12, stop_for_a_while))

    def of_victim() -> list[Span]:
        spans = [span for span in otlp_http.spans() if span["attributes"].get(semconv.REQUEST_ID) == "victim"]
        return [span for span in spans if semconv.OUTCOME in span["attributes"]]

    otlp_http.wait_for(of_victim, seconds=60)
    (span,) = of_victim()
    told = span["attributes"]
    assert told[semconv.STALL_MAX] > PAUSE - 2 * told[semconv.ITL_P50]
    assert told[semconv.STALL_UNEXPLAINED] >= told[semconv.STALL_MAX]
    assert stallers(span) == []
