"""``shutdown()`` in the middle of everything: each request that was open has one outcome, and it is sent."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

import otel_lifecycle as lifecycle
from otel_lifecycle._runtime import runtime
from tests.faults.matrix import Matrix
from tests.faults.running import kept_spans, total
from tests.support.otlp_receiver import HttpReceiver

THREADS = 8
STREAMS = 20


@pytest.mark.usefixtures("fresh_process")
def test_shutdown_with_requests_in_flight(otlp_http: HttpReceiver, matrix: Matrix) -> None:
    """Requests in every stage: each is cancelled in the stage it was in; what comes later is ignored."""
    lifecycle.configure(endpoint=otlp_http.endpoint)
    steps = ("admit", "input_ready", "first_token", "token")
    handles = []
    for number in range(100):
        handle = lifecycle.request(model="tiny")
        for step in steps[: number % 5]:
            getattr(handle, step)()
        handles.append(handle)
    assert lifecycle.shutdown() is True
    for handle in handles:
        handle.token()
        handle.complete()
    counted, spans = total(otlp_http), kept_spans(otlp_http)
    matrix.add("shutdown() with 100 requests in flight", 100, counted, spans, "nothing")
    assert (counted, spans, total(otlp_http, "inference.transition.violations")) == (100, 100, 0)
    stages = Counter(span["attributes"]["inference.failure.stage"] for span in otlp_http.spans("chat tiny"))
    assert stages == {"queue": 20, "preprocessing": 20, "prefill": 20, "decode": 40}
    reasons = {span["attributes"]["inference.end.reason"] for span in otlp_http.spans("chat tiny")}
    assert reasons == {"shutdown"}
    assert {report["status"] for handle in handles if (report := handle.report) is not None} == {"cancelled"}


@pytest.mark.usefixtures("fresh_process")
def test_shutdown_while_threads_serve(otlp_http: HttpReceiver, matrix: Matrix) -> None:
    """Eight threads that serve on: what ended before the call is sent, no thread sees an exception, none is stuck."""
    lifecycle.configure(endpoint=otlp_http.endpoint, metric_interval=60)
    go_on, errors = threading.Event(), []
    ended: list[Any] = []
    warm = threading.Barrier(THREADS + 1)

    def serve() -> None:
        try:
            for number in range(1_000_000):
                with lifecycle.request(model="tiny") as request:
                    request.admit()
                    request.input_ready()
                    for _ in range(5):
                        request.token()
                ended.append(request)
                if number == STREAMS:
                    warm.wait(60)
                if go_on.is_set():
                    return
        except BaseException as error:  # noqa: BLE001  # whatever reaches the server is what this test is about
            errors.append(error)

    threads = [threading.Thread(target=serve) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    warm.wait(60)
    before = len(ended)
    done = lifecycle.shutdown()
    go_on.set()
    for thread in threads:
        thread.join(60)
    counted, spans = total(otlp_http), kept_spans(otlp_http)
    matrix.add(
        "shutdown() while 8 threads serve",
        before,
        counted,
        spans,
        "requests that came after the call: no-ops by contract",
    )
    assert (errors, done, [thread.is_alive() for thread in threads]) == ([], True, [False] * THREADS)
    assert before <= counted <= len(ended) + THREADS
    assert list(runtime().snapshot()) == []


class Locking(SpanProcessor):
    """Another library's processor, which ends spans under a lock and is interrupted by a signal handler there."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.told: list[bool] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Take the lock; do, the first time, what the handler would do in the middle of it."""
        with self.lock:
            if not self.told:
                self.told.append(False)
                self.told.append(lifecycle.shutdown(timeout=1))


@pytest.mark.usefixtures("fresh_process")
def test_shutdown_inside_somebodys_lock(otlp_http: HttpReceiver) -> None:
    """Ending the open requests needs a lock that the caller holds: it gives up in time instead of hanging."""
    lifecycle.configure(endpoint=otlp_http.endpoint)
    processor = Locking()
    trace.get_tracer_provider().add_span_processor(processor)  # type: ignore[attr-defined]  # configure() made an SDK's
    opened = lifecycle.request(model="tiny")

    def serve() -> None:
        lifecycle.request(model="tiny").cancel()

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    server.join(20)
    assert (server.is_alive(), processor.told) == (False, [False, False])
    opened.cancel()
