"""Loops over prompts, an engine's thread and a spawned worker: however a request of theirs ends."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from tests.integration.support_http import PARENT_ID, TRACE_ID, TRACEPARENT
from tests.servers.support import COMPLETED, DEADLINE, FAILED, LEFT, EngineError, check, engine
from tests.support.telemetry import Telemetry

HEADERS = {"traceparent": TRACEPARENT}
ENDS = [
    ("good", COMPLETED, 3),
    ("broken", FAILED, 0),
    ("cut", FAILED, 2),
]


def slowly(kind: str) -> Iterator[str]:
    """A client of an engine that gives up at its deadline, after a token."""
    yield "t0 "
    time.sleep(0.03)
    raise TimeoutError


@pytest.mark.parametrize(("kind", "ending", "tokens"), ENDS)
def test_a_loop(telemetry: Telemetry, kind: str, ending: dict[str, Any], tokens: int) -> None:
    """A block for each prompt; an exception ends its own request and goes on."""
    with contextlib.suppress(EngineError), telemetry.request(parent=HEADERS) as request:
        list(request.stream(engine(kind, 0)))
    check(telemetry, ending, tokens=tokens)


@pytest.mark.parametrize(("kind", "ending", "tokens"), ENDS)
def test_a_decorated_function(telemetry: Telemetry, kind: str, ending: dict[str, Any], tokens: int) -> None:
    """The same by ``traced``, below the caller that its arguments name."""

    @lifecycle.traced(tracer_provider=telemetry.tracer_provider, call=lambda kind, headers: {"parent": headers})
    def answer(kind: str, headers: Any) -> Iterator[str]:
        yield from engine(kind, 0)

    with contextlib.suppress(EngineError):
        list(answer(kind, HEADERS))
    check(telemetry, ending, tokens=tokens)


def test_a_loop_at_its_deadline(telemetry: Telemetry) -> None:
    """What the engine's client raises at the deadline is that."""
    with contextlib.suppress(TimeoutError), telemetry.request(parent=HEADERS, deadline=0.02) as request:
        list(request.stream(slowly("slow")))
    check(telemetry, DEADLINE, tokens=1)


def test_a_consumer_that_has_had_enough(telemetry: Telemetry) -> None:
    """Closing the generator of a decorated function is a cancel."""

    @lifecycle.traced(tracer_provider=telemetry.tracer_provider, call=lambda kind: {"parent": HEADERS})
    def answer(kind: str) -> Iterator[str]:
        yield from engine(kind, 0)

    items = answer("endless")
    next(items)
    items.close()  # type: ignore[attr-defined]  # a generator, whatever the annotation says
    check(telemetry, {"inference.outcome": "cancelled"}, tokens=1)


class EngineThread:
    """An engine's thread: it marks what happens, the server's side opens and ends the request."""

    def __init__(self) -> None:
        self.jobs: queue.Queue[Any] = queue.Queue()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        """Work on one job after the other; what the engine raises goes to the server's side."""
        while (job := self.jobs.get()) is not None:
            request, kind, answer = job
            request.admit()
            request.input_ready()
            try:
                for token in engine(kind):
                    request.token()
                    answer.put(token)
                    if request.ended:
                        break
            except EngineError as error:
                answer.put(error)
            answer.put(None)

    def stop(self) -> None:
        """End the thread once its jobs are done."""
        self.jobs.put(None)
        self.thread.join(10)


@pytest.fixture
def engine_thread() -> Iterator[EngineThread]:
    """One engine."""
    running = EngineThread()
    yield running
    running.stop()


def served(telemetry: Telemetry, running: EngineThread, kind: str, **conditions: Any) -> tuple[Any, Any]:
    """Hand a job to the engine; its request and its answers."""
    answer: queue.Queue[Any] = queue.Queue()
    request = telemetry.request(parent=HEADERS, **conditions)
    running.jobs.put((request, kind, answer))
    return request, answer


@pytest.mark.parametrize(("kind", "ending", "tokens"), ENDS)
def test_an_engines_thread(
    telemetry: Telemetry, engine_thread: EngineThread, kind: str, ending: dict[str, Any], tokens: int
) -> None:
    """The engine's exception reaches the block of the server's side, which it ends."""
    request, answer = served(telemetry, engine_thread, kind)
    with contextlib.suppress(EngineError), request:
        for item in iter(answer.get, None):
            if isinstance(item, EngineError):
                raise item
    span = check(telemetry, ending, tokens=tokens)
    assert "inference.queue_wait" in span["attributes"]


def test_an_engines_thread_whose_client_leaves(telemetry: Telemetry, engine_thread: EngineThread) -> None:
    """The server's side notes it and ends the request; the engine sees that by ``request.ended``."""
    request, answer = served(telemetry, engine_thread, "endless")
    answer.get(timeout=10)
    with contextlib.suppress(BrokenPipeError), request:
        request.client_disconnected()
        raise BrokenPipeError
    engine_thread.stop()
    # The token that was being made comes after the end: it is wasted, and a violation of the metrics alone.
    check(telemetry, LEFT)


def test_an_engines_thread_at_the_deadline(telemetry: Telemetry, engine_thread: EngineThread) -> None:
    """The server's side waits no longer."""
    request, answer = served(telemetry, engine_thread, "endless", deadline=0.05)
    with contextlib.suppress(TimeoutError), request:
        answer.get(timeout=10)
        time.sleep(0.06)
        raise TimeoutError
    engine_thread.stop()
    check(telemetry, DEADLINE)


def work(carrier: dict[str, str], kind: str) -> list[dict[str, Any]]:
    """Run in a process of its own: the events that the engine marked, its failure among them."""
    assert TRACE_ID in carrier["traceparent"]
    assert PARENT_ID not in carrier["traceparent"]
    events = [{"event": name, "timestamp": time.time_ns()} for name in ("admit", "input_ready")]
    try:
        for _ in engine(kind):
            events.append({"event": "token", "timestamp": time.time_ns()})  # noqa: PERF401  # kept where it breaks
    except EngineError as error:
        kind = f"{type(error).__module__}.{type(error).__name__}"
        events.append({"event": "fail", "timestamp": time.time_ns(), "error": kind})
    return events


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "ending", "tokens"), ENDS)
def test_a_spawned_worker(telemetry: Telemetry, kind: str, ending: dict[str, Any], tokens: int) -> None:
    """It is given the carrier and returns events; a failure among them ends the request with what was marked."""
    with multiprocessing.get_context("spawn").Pool(1) as pool, telemetry.request(parent=HEADERS) as request:
        request.record(pool.apply(work, (request.carrier(), kind)))
    span = check(telemetry, ending, tokens=tokens)
    assert "inference.queue_wait" in span["attributes"]


@pytest.mark.process
@pytest.mark.slow
def test_a_worker_that_outlives_the_deadline(telemetry: Telemetry) -> None:
    """The server's side gives up waiting for it; what it marked is not known."""
    gone = contextlib.suppress(TimeoutError, multiprocessing.TimeoutError)
    # Leaving the pool's block terminates its worker.
    spawned = multiprocessing.get_context("spawn").Pool(1)
    with spawned as pool, gone, telemetry.request(parent=HEADERS, deadline=0.05) as request:
        pool.apply_async(work, (request.carrier(), "endless")).get(0.06)
    check(telemetry, DEADLINE, tokens=0)
