"""Exports spans and metrics into files on a disk that fills up: ``disk.py FOLDER COUNT LIMIT``.

No file of this process grows beyond LIMIT bytes: writing more fails, as it does on a disk that is full. Prints how many
requests the metrics count at the end, and the worst and the median request in microseconds.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import time
from pathlib import Path

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    ConsoleMetricExporter,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.trace import set_tracer_provider

from otel_lifecycle.processor import LifecycleSpanProcessor
from tests.faults.programs.serving import say, serve_one
from tests.support.patient_reader import PatientReader
from tests.support.plain import plain_points


def main(folder: Path, count: int, limit: int) -> None:
    """Run."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    reader = PatientReader()
    with (folder / "spans").open("w") as spans, (folder / "metrics").open("w") as points:
        files = PeriodicExportingMetricReader(ConsoleMetricExporter(out=points), export_interval_millis=100)
        meters = MeterProvider([reader, files], shutdown_on_exit=False)
        tracers = TracerProvider(shutdown_on_exit=False)
        exporter = ConsoleSpanExporter(out=spans, formatter=lambda span: f"{span.name}\n")
        tracers.add_span_processor(LifecycleSpanProcessor(BatchSpanProcessor(exporter), meter_provider=meters))
        set_tracer_provider(tracers)
        durations = []
        for _ in range(count):
            began = time.perf_counter_ns()
            serve_one()
            durations.append((time.perf_counter_ns() - began) // 1000)
        tracers.shutdown()
        counted = sum(
            point["value"] or 0
            for point in plain_points(reader.get_metrics_data())
            if point["metric"] == "inference.requests"
        )
        say("counted", counted, max(durations), statistics.median(durations))
        # What lies in the buffers of the files cannot be written: closing them would raise, which is the app's own.
        os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
