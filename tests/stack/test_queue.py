"""persistent-queue.yaml: what the Collector had judged outlives it, while the backend of the traces is down."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.stack import programs
from tests.stack.backends import Jaeger, NotYet, eventually, scrape
from tests.stack.load import Script, Server
from tests.stack.programs import CONFIG, LOOPBACK, Running

REQUESTS: Final = 200
SPANS: Final = REQUESTS * 5
JOB: Final = "waits-on-disk"


@pytest.fixture
def jaeger(tmp_path: Path) -> Iterator[Running]:
    """Jaeger on its file; it does not run yet, but its ports are known."""
    program = programs.jaeger(tmp_path)
    yield program
    program.stop()


def collector_of(folder: Path, jaeger: Running, *, on_disk: bool) -> Running:
    """Describe the Collector, with the second file or without; what it sends to Prometheus is of no interest here."""
    env = {
        "JAEGER_ENDPOINT": f"{LOOPBACK}:{jaeger.ports['grpc']}",
        "PROMETHEUS_ENDPOINT": f"http://{LOOPBACK}:1",
        "QUEUE_DIRECTORY": str(folder / "queue"),
        "BATCH_TIMEOUT": "100ms",
        "TRACE_WAIT": "2s",
        "TRACE_WAIT_AFTER_ROOT": "1s",
        "TRACES_KEPT_PERCENT": "100",
    }
    sets = ["service::pipelines::traces::exporters=[otlp_grpc/jaeger]"]
    program = programs.collector(folder, CONFIG / "collector.yaml", env=env, sets=sets)
    if on_disk:
        program.command = [*program.command, "--config", str(CONFIG / "persistent-queue.yaml")]
    return program


def send(collector: Running) -> set[str]:
    """Send requests and return the ids of their traces, once the Collector has judged them all and queued them."""
    with Server(JOB, endpoint=f"http://{LOOPBACK}:{collector.ports['grpc']}") as server:
        for number in range(REQUESTS):
            server.play(Script(), request_id=str(number))
        ids = {f"{span.context.trace_id:032x}" for span in server.request_spans() if span.context}

    def queued() -> None:
        # The batch processor counts a batch when the exporter has taken it.
        seen = scrape(collector.ports["metrics"]).get("otelcol_processor_batch_batch_send_size_sum", 0)
        if seen < SPANS:
            raise NotYet(f"{seen} of {SPANS} spans are in the queue")

    eventually(queued)
    return ids


def killed_and_restarted(collector: Running, jaeger: Running) -> set[str]:
    """Kill the Collector while Jaeger is down, start both, and return the ids that were sent."""
    collector.start()
    ids = send(collector)
    collector.kill()
    jaeger.start()
    collector.start()
    return ids


def test_nothing_in_the_queue_is_lost_with_the_collector(tmp_path: Path, jaeger: Running) -> None:
    """Jaeger down, the Collector killed, both started: Jaeger has every span of every request, each once."""
    collector = collector_of(tmp_path, jaeger, on_disk=True)
    try:
        ids = killed_and_restarted(collector, jaeger)

        def stored() -> None:
            found = Jaeger(jaeger.ports["query"]).sizes(JOB)
            if (set(found), sum(found.values())) != (ids, SPANS):
                raise NotYet(f"{len(found)} of {len(ids)} traces, {sum(found.values())} of {SPANS} spans")

        eventually(stored)
    finally:
        collector.stop()


def test_a_queue_in_memory_is_lost_with_it(tmp_path: Path, jaeger: Running) -> None:
    """Without the second file none of them is left: so the test above is about the queue on disk."""
    collector = collector_of(tmp_path, jaeger, on_disk=False)
    try:
        killed_and_restarted(collector, jaeger)
        # One more request, to know that the way is open.
        with Server(JOB, endpoint=f"http://{LOOPBACK}:{collector.ports['grpc']}") as server:
            server.play(Script(), request_id="afterwards")
            ids = {f"{span.context.trace_id:032x}" for span in server.request_spans() if span.context}

        def stored() -> set[str]:
            if not (found := Jaeger(jaeger.ports["query"]).search(JOB)):
                raise NotYet("nothing is stored yet")
            return found

        assert eventually(stored) == ids
        time.sleep(1)
        assert stored() == ids
    finally:
        collector.stop()
