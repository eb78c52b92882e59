"""Memory does not grow with the number of requests, but for the ids that tell duplicates."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from otel_lifecycle._analysis.settings import WorkloadSettings
from otel_lifecycle._analysis.workload import gather
from otel_lifecycle._table.sources.otlp_json import span
from otel_lifecycle._table.sources.tally import ReadingTally
from tests.cli.generator import Load, simulate, spans_of
from tests.cli.scale import measure


def held(requests: int) -> int:
    """Return the bytes that a workload of so many requests holds once it is gathered."""
    load = Load(requests=requests)
    spans = [span(spans_of(request, load)[0], {}) for request in simulate(load)]
    tracemalloc.start()
    workload = gather(spans, WorkloadSettings(), ReadingTally())
    current, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert workload.total == requests
    return current


@pytest.mark.slow
def test_a_workload_holds_the_same_whatever_its_size() -> None:
    """Three times the requests, no more than a tenth more memory."""
    assert held(18_000) < 1.1 * held(6000)


@pytest.mark.slow
def test_a_million_requests_in_bounded_memory() -> None:
    """From a pipe: below 512 MiB, and no more than the ids (100 bytes each) above what a tenth of them needs."""
    tenth, whole = measure(100_000), measure(1_000_000)
    assert json.loads(whole.output)["requests"]["total"] == 1_000_000
    assert whole.peak_mib < 512
    assert whole.peak_mib - tenth.peak_mib < 900_000 * 100 / 2**20 + 16
    # Twice the tenth's time a request leaves room for a noisy machine, and none for anything quadratic.
    assert whole.cpu_seconds / 10 < 2 * tenth.cpu_seconds
