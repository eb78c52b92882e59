"""A server and its engine in another process, with a queue each way: ``engine.py METHOD SKEW_MS [crash]``.

The engine is started by METHOD (spawn or fork) and reads a clock that is SKEW_MS ahead of the server's. It hands its
marks back with its output; with ``crash`` it dies in the middle of the second request. Prints each request's report.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from opentelemetry import trace

import otel_lifecycle as lifecycle
from otel_lifecycle import _propagation
from tests.faults.programs.serving import say

TOKENS = 5


def engine(jobs: Connection, skew_ms: int, crash: bool) -> None:
    """Run jobs until there is none: every mark by this process's clock, every span in the request's trace."""
    lifecycle.configure(service_name="engine")
    tracer = trace.get_tracer("engine")
    for number in iter(jobs.recv, None):
        carrier = jobs.recv()

        def mark(event: str) -> dict[str, Any]:
            return {"event": event, "timestamp": time.time_ns() + skew_ms * 1_000_000}

        with tracer.start_as_current_span("engine step", _propagation.extract(carrier)):
            jobs.send([mark("admit")])
            time.sleep(0.002)
            jobs.send([mark("input_ready")])
            time.sleep(0.002)
            jobs.send([mark("first_token")])
            if crash and number == 1:
                os._exit(9)
            for _ in range(TOKENS - 1):
                time.sleep(0.002)
                jobs.send([mark("token")])
        jobs.send(None)
    lifecycle.shutdown()


def serve(jobs: Connection, number: int) -> Any:
    """Serve one request by the engine; return its report."""
    with lifecycle.request(model="tiny", request_id=f"request-{number}") as request:
        time.sleep(0.002)
        jobs.send(number)
        jobs.send(request.carrier())
        try:
            for events in iter(jobs.recv, None):
                request.record(events)
        except (EOFError, ConnectionResetError):
            request.fail("engine_error")
        else:
            request.complete()
    return request.report


def main(method: str, skew_ms: int, crash: bool) -> None:
    """Run."""
    context: Any = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=engine, args=(there, skew_ms, crash), daemon=True)
    process.start()
    there.close()
    lifecycle.configure(service_name="server")
    for number in range(2):
        say(json.dumps(serve(here, number)))
    if not crash:
        here.send(None)
    process.join()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), "crash" in sys.argv)
