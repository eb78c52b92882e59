"""The end of an app: what is left is sent before the server hears that the app is done."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle._configuration import setup
from otel_lifecycle.asgi import LifecycleMiddleware
from tests.support.otlp_receiver import HttpReceiver


async def app(scope: Any, receive: Any, send: Any) -> None:
    """An app of nothing but a lifespan."""
    for name in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{name}.complete"})


def lifespan(middleware: LifecycleMiddleware, said: list[tuple[str, int]], receiver: HttpReceiver | None) -> None:
    """Run an app through its life; note each message, and how many requests the receiver had counted by then."""

    async def receive() -> dict[str, str]:
        return {"type": "lifespan"}

    async def send(message: Any) -> None:
        points = [] if receiver is None else receiver.points("inference.requests")
        said.append((message["type"], sum(int(point["value"] or 0) for point in points)))

    asyncio.run(middleware({"type": "lifespan"}, receive, send))


@pytest.fixture
def unconfigured(fresh_globals: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which configure() was not called."""
    monkeypatch.setattr(setup, "_default", setup._Default())


@pytest.mark.usefixtures("unconfigured")
def test_what_is_left_is_sent_before_the_app_is_done(otlp_http: HttpReceiver) -> None:
    """Uvicorn dies of SIGTERM right after the last message: the receiver has everything by then."""
    lifecycle.configure(endpoint=otlp_http.endpoint, metric_interval=3600, handle_sigterm=False)
    with lifecycle.request() as request:
        list(request.stream([1]))
    said: list[tuple[str, int]] = []
    lifespan(LifecycleMiddleware(app), said, otlp_http)
    assert said == [("lifespan.startup.complete", 0), ("lifespan.shutdown.complete", 1)]
    assert len(otlp_http.spans("chat")) == 1
    # The providers go on: the next app of this process is counted too.
    with lifecycle.request() as request:
        list(request.stream([1]))
    assert lifecycle.shutdown()
    assert [point["value"] for point in otlp_http.points("inference.requests")] == [2]


@pytest.mark.usefixtures("unconfigured")
def test_without_configure_it_is_passed_on() -> None:
    """There is nothing of ours to send."""
    said: list[tuple[str, int]] = []
    lifespan(LifecycleMiddleware(app), said, None)
    assert [message for message, _ in said] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@pytest.mark.usefixtures("unconfigured")
def test_end_of_the_app_and_of_the_process_share_one_timeout(otlp_http: HttpReceiver, monkeypatch: Any) -> None:
    """A Collector that hangs holds both of them up for as long as it was configured, not each."""
    otlp_http.hang()
    lifecycle.configure(endpoint=otlp_http.endpoint, metric_interval=3600, handle_sigterm=False, shutdown_timeout=2.0)
    with lifecycle.request() as request:
        list(request.stream([1]))
    given: list[float] = []
    pipeline = setup._default.pipeline
    assert pipeline is not None
    monkeypatch.setattr(pipeline, "shutdown", given.append)
    lifespan(LifecycleMiddleware(app), [], None)
    assert not lifecycle.shutdown()
    monkeypatch.undo()
    # What it holds must not show in another test.
    otlp_http.accept()
    assert pipeline.shutdown(10)
    # The end of the app waited in vain for its half; the end of the process has what is left of the other.
    assert len(given) == 1
    assert 0 <= given[0] <= 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.usefixtures("unconfigured")
def test_forked_worker_is_ready_when_its_app_starts(otlp_http: HttpReceiver) -> None:
    """What it exports by is built then, and not while its first request waits."""
    lifecycle.configure(endpoint=otlp_http.endpoint, metric_interval=3600, handle_sigterm=False)
    child = os.fork()
    if child == 0:
        asked = setup._default.pid == os.getpid()
        lifespan(LifecycleMiddleware(app), [], None)
        os._exit(10 * asked + (setup._default.pid == os.getpid()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert lifecycle.shutdown()
