"""Exporters that refuse, hang, are slow or find no collector: the server does not notice, and the counts come right."""

from __future__ import annotations

import logging
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

import otel_lifecycle as lifecycle
from tests.faults.matrix import Matrix
from tests.faults.programs.serving import serve_one
from tests.faults.running import kept_spans, run, total
from tests.support.otlp_receiver import HttpReceiver, OtlpReceiver

WELL, ILL = 300, 1000
WORSE_AT_MOST = 2.0
"""How much longer the median request may take while the collector is ill; the machine's noise is most of that."""

FAULTS: dict[str, Callable[[OtlpReceiver], None]] = {
    "down": lambda receiver: receiver.stop(),
    "refuses": lambda receiver: receiver.refuse(),
    "hangs": lambda receiver: receiver.hang(),
    "slow": lambda receiver: receiver.slow(0.5),
}


def serve(count: int) -> float:
    """Serve that many requests, spread over half a second at least; return the median duration of one."""
    durations = []
    for _ in range(count):
        began = time.perf_counter_ns()
        serve_one()
        durations.append(time.perf_counter_ns() - began)
        time.sleep(0.0005)
    return statistics.median(durations)


@contextmanager
def ill(receiver: OtlpReceiver, fault: str) -> Iterator[None]:
    """Let the receiver be ill for the block, and well again after it."""
    FAULTS[fault](receiver)
    try:
        yield
    finally:
        if fault == "down":
            receiver.start()
        receiver.accept()


QUICK = [("http", "down"), ("grpc", "hangs")]


def turned_more_away(receiver: HttpReceiver, calls: int) -> bool:
    """Whether the receiver has turned so many calls away."""
    return receiver.turned_away >= calls


@pytest.mark.usefixtures("fresh_process")
@pytest.mark.parametrize(
    ("transport", "fault"),
    [
        pytest.param(transport, fault, marks=() if (transport, fault) in QUICK else pytest.mark.slow)
        for transport in ("http", "grpc")
        for fault in FAULTS
    ],
)
def test_c78_collector_is_ill_for_a_thousand_requests(
    request: pytest.FixtureRequest, matrix: Matrix, monkeypatch: pytest.MonkeyPatch, transport: str, fault: str
) -> None:
    """Requests take as long as before, none raises, and once the collector is well every one of them is counted."""
    otlp: OtlpReceiver = request.getfixturevalue(f"otlp_{transport}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    lifecycle.configure(endpoint=otlp.endpoint, protocol=otlp.scheme, metric_interval=0.2)
    well = serve(WELL)
    with ill(otlp, fault):
        worse = serve(ILL)
    otlp.wait_for(lambda: total(otlp) == WELL + ILL, 60)
    lifecycle.shutdown()
    spans = kept_spans(otlp)
    loss = "spans that failed or found the queue full; said in the log, counts catch up"
    matrix.add(f"collector {fault}, {otlp.scheme}", WELL + ILL, total(otlp), spans, loss)
    assert worse / well < WORSE_AT_MOST
    assert total(otlp) == WELL + ILL


@pytest.mark.usefixtures("fresh_process")
def test_c78_loss_is_said_and_counted(
    otlp_http: HttpReceiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However often the export fails: one line of ours when it begins to, and one that says exactly how much it was."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    lifecycle.configure(endpoint=otlp_http.endpoint, metric_interval=0.1)
    otlp_http.reject()
    with caplog.at_level(logging.WARNING, logger="otel_lifecycle"):
        for _ in range(5):
            serve(20)
            turned_away = otlp_http.turned_away
            otlp_http.wait_for(partial(turned_more_away, otlp_http, turned_away + 2))
        otlp_http.accept()
        serve(20)
        otlp_http.wait_for(lambda: total(otlp_http) == 120)
        lifecycle.shutdown()
    first, second = [record.getMessage() for record in caplog.records if record.name.startswith("otel_lifecycle")]
    assert first.startswith("spans are lost")
    # A request has a span of its own and one for each of its four stages.
    assert int(re.findall(r"\d+", second)[0]) + len(otlp_http.spans()) == 120 * 5


def test_c69_overflow_is_counted(otlp_http: HttpReceiver, matrix: Matrix) -> None:
    """A burst on a small queue: all of it in the metrics, a warning, and the SDK's own count of what it dropped."""
    otlp_http.slow(0.05)
    small = {"OTEL_BSP_MAX_QUEUE_SIZE": 32, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": 16}
    done = run(otlp_http, "ends", "return", 500, OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED="true", **small)
    counted, spans = total(otlp_http), kept_spans(otlp_http)
    matrix.add(
        "queue overflow", 501, counted, spans, "the oldest spans; a warning, and otel.sdk.processor.span.processed"
    )
    assert (done.returncode, counted) == (0, 501)
    assert 0 < spans < 501
    assert "queue" in done.stderr.lower()
