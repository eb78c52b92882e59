"""The Collector dies under load and comes back: what the server, the metrics and the traces make of it."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

import otel_lifecycle as lifecycle
from tests.stack.backends import NotYet, eventually
from tests.stack.conftest import SHORT_WAITS, Stack
from tests.stack.load import MODEL, Server

JOB = "survives"
SPANS = 5
"""Of a request: its own, and one for each stage."""
UP_S, DOWN_S = 4.0, 9.0
"""Longer than the SDK tries again, so that something is lost."""


@dataclass(slots=True)
class Served:
    """When each request began and ended, by the monotonic clock, and the id of its trace."""

    times: list[tuple[float, float]] = field(default_factory=list)

    def seconds(self, begin: float, end: float) -> list[float]:
        """Return how long the requests took that began between those two instants."""
        return [ended - began for began, ended in self.times if begin <= began < end]


def serve(server: Server, served: Served, stop: threading.Event) -> None:
    """Serve requests one after another in real time, ten tokens of a millisecond each."""
    while not stop.is_set():
        began = time.monotonic()
        with lifecycle.request(model=MODEL, tracer_provider=server.tracer_provider) as request:
            for stage in ("queue", "preprocessing"):
                with request.stage(stage):
                    time.sleep(0.001)
            for _ in request.stream(range(10)):
                time.sleep(0.001)
        served.times.append((began, time.monotonic()))


@pytest.fixture(scope="module")
def outage(stack: Stack) -> Iterator[tuple[Served, float, float, Server]]:
    """Load while the Collector is up, killed, and started again; returns it with the times of both."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
        server = stack.server(JOB, counts_its_losses=True)
    served, stop = Served(), threading.Event()
    thread = threading.Thread(target=serve, args=(server, served, stop))
    thread.start()
    collector = stack.programs["collector"]
    try:
        time.sleep(UP_S)
        collector.kill()
        killed = time.monotonic()
        time.sleep(DOWN_S)
    finally:
        collector.start()
    started = time.monotonic()
    time.sleep(UP_S)
    stop.set()
    thread.join()
    server.flush()
    yield served, killed, started, server
    server.close()


def test_serving_does_not_notice(outage: tuple[Served, float, float, Server]) -> None:
    """Requests take as long while the Collector is dead as before: medians and 95th percentiles of one run."""
    served, killed, started, _ = outage
    before, during = served.seconds(0, killed), served.seconds(killed, started - 1)
    assert min(len(before), len(during)) > 50
    assert statistics.median(during) < 1.3 * statistics.median(before)
    assert statistics.quantiles(during, n=20)[-1] < 2 * statistics.quantiles(before, n=20)[-1]


def test_the_cumulative_metrics_are_right_afterwards(stack: Stack, outage: tuple[Served, float, float, Server]) -> None:
    """Every request that was served is counted once, those of the outage too (C78)."""
    served, *_ = outage

    def counted() -> None:
        seen = stack.prometheus.value(f'sum(inference_requests_total{{job="{JOB}", inference_outcome="completed"}})')
        if seen != len(served.times):
            raise NotYet(f"{seen} of {len(served.times)} requests are counted")

    eventually(counted)


def test_lost_spans_are_counted_and_lie_around_the_outage(
    stack: Stack, outage: tuple[Served, float, float, Server], capsys: pytest.CaptureFixture[str]
) -> None:
    """What the process lost is counted there, the rest died with the Collector; nothing else is missing."""
    _, killed, started, server = outage
    ended = len(server.request_spans()) * SPANS
    exported, queued = "otel_sdk_exporter_span_exported_total", "otel_sdk_processor_span_processed_total"

    def count(name: str, error: str) -> float:
        found = stack.prometheus.query(f'sum({name}{{job="{JOB}", error_type{error}""}})')
        return next(iter(found.values()), 0.0)

    def accounted() -> dict[str, float]:
        gone = {"given up": count(exported, "!="), "pushed out of the queue": count(queued, "!=")}
        taken = count(exported, "=")
        if taken + sum(gone.values()) != ended:
            raise NotYet(f"{gone} and {taken} taken, of {ended} spans")
        return {**gone, "died with it": taken - sum(stack.jaeger.sizes(JOB).values())}

    def settled() -> dict[str, float]:
        once = accounted()
        time.sleep(2)
        if (again := accounted()) != once:
            raise NotYet(f"{once}, then {again}")
        return once

    gone = eventually(settled)
    with capsys.disabled():
        said = ", ".join(f"{spans:.0f} {what}" for what, spans in gone.items())
        sys.stdout.write(f"\n{DOWN_S:.0f} s without a Collector: of {ended} spans {said}\n")
    stored = stack.jaeger.sizes(JOB)
    offset = time.time() - time.monotonic()
    incomplete = [
        (span.end_time or 0) / 1e9 - offset
        for span in server.request_spans()
        if span.context and stored.get(f"{span.context.trace_id:032x}", 0) < SPANS
    ]
    held = float(SHORT_WAITS["TRACE_WAIT_AFTER_ROOT"][:-1]) + 3
    assert gone["given up"] + gone["pushed out of the queue"] > 0
    assert gone["died with it"] >= 0
    assert killed - held <= min(incomplete)
    assert max(incomplete) <= started


def test_both_losses_are_said(stack: Stack, outage: tuple[Served, float, float, Server]) -> None:
    """The alerts of telemetry.yaml fire: the Collector is down, and the process lost spans."""
    firing = stack.prometheus.series('ALERTS{alertstate="firing", alertname=~"Inference(Collector|Spans).*"}', 60)
    assert {series["metric"]["alertname"] for series in firing} == {
        "InferenceCollectorDown",
        "InferenceSpansLostInProcess",
    }
