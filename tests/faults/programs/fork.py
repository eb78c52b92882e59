"""Five requests, one more left open, then forked children that serve one each: ``fork.py HOW``.

``HOW``: ``configure`` (children leave by sys.exit), ``multiprocessing`` (children of that module's fork method),
``own`` (the app has set its own providers, and nothing up anew in the child), ``unused`` (children serve nothing).
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import otel_lifecycle as lifecycle
from otel_lifecycle.processor import LifecycleSpanProcessor
from tests.faults.programs.serving import say, serve_one

CHILDREN = 2


def set_up_own_providers() -> None:
    """Do what an app without ``configure()`` does."""
    tracers = TracerProvider()
    metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())]))
    tracers.add_span_processor(LifecycleSpanProcessor(BatchSpanProcessor(OTLPSpanExporter())))
    trace.set_tracer_provider(tracers)


def child(handle: Any, how: str) -> None:
    """Serve one request; misuse the handle that was inherited, which is the parent's to end."""
    if how == "unused":
        return
    serve_one()
    handle.token()
    handle.complete()
    if how == "own":
        serve_one()  # A second warning would come with a second request.


def fork(handle: Any, how: str) -> None:
    """Fork one child and wait for it."""
    if how == "multiprocessing":
        process = multiprocessing.get_context("fork").Process(target=child, args=(handle, how))
        process.start()
        process.join()
        return
    pid = os.fork()
    if pid == 0:
        child(handle, how)
        sys.exit(0)
    os.waitpid(pid, 0)


def main(how: str) -> None:
    """Run."""
    set_up_own_providers() if how == "own" else lifecycle.configure()
    for _ in range(5):
        serve_one()
    with lifecycle.request(model="across") as across:
        across.admit()
        across.input_ready()
        across.first_token()
        for _ in range(CHILDREN):
            fork(across, how)
    say("done")


if __name__ == "__main__":
    main(sys.argv[1])
