"""Cases of what leaves the process: the size of a batch, and exporters that are slower than the server."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from tests.support.telemetry import Telemetry

from .live import EPOCH, near, play
from .notation import NS
from .table import BY_ID

BATCH = 512
"""Spans in one batch, by default."""

GRPC_LIMIT = 4 * 1024 * 1024
"""Bytes in one message, by default."""


def test_c64_batch_of_long_streams_fits_into_a_message(telemetry: Telemetry) -> None:
    """512 requests of 128 tokens each, by default settings: far below 4 MiB."""
    for _ in range(BATCH):
        request = telemetry.request(model="tiny", arrived_at_ns=EPOCH)
        request.admit(at_ns=EPOCH)
        request.input_ready(at_ns=EPOCH)
        request.first_token(at_ns=EPOCH + NS)
        for token in range(1, 128):
            request.token(at_ns=EPOCH + NS + token * NS // 100)
        request.complete(at_ns=EPOCH + 3 * NS)
    assert size_of_a_batch(telemetry) < GRPC_LIMIT


@pytest.mark.slow
def test_c64_batch_of_the_most_events_fits_into_a_message(telemetry: Telemetry) -> None:
    """512 requests with as many notes and interruptions as are kept, and more."""
    for _ in range(BATCH):
        request = telemetry.request(model="tiny", request_id="r" * 300, arrived_at_ns=EPOCH)
        request.admit(at_ns=EPOCH)
        request.input_ready(at_ns=EPOCH)
        for note in range(80):
            request.prefill_chunk(at_ns=EPOCH + note)
        for interruption in range(40):
            request.preempt(at_ns=EPOCH + 100 + interruption)
            request.resume(at_ns=EPOCH + 100 + interruption)
        request.first_token(at_ns=EPOCH + NS)
        request.complete(at_ns=EPOCH + NS)
    assert size_of_a_batch(telemetry) < GRPC_LIMIT


def size_of_a_batch(telemetry: Telemetry) -> int:
    """Return the bytes of the request spans as one export, which a batch of nothing else would be."""
    spans = [span for span in telemetry.exporter.get_finished_spans() if span.name == "chat tiny"]
    assert len(spans) == BATCH
    return int(encode_spans(spans).ByteSize())


class Stuck(SpanExporter):
    """An exporter that does not return until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.exported = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Wait."""
        self.let_go.wait(60)
        self.exported += len(spans)
        return SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Have nothing to flush."""
        return True


def test_c69_slow_exporter_costs_spans_and_no_counts(telemetry: Telemetry) -> None:
    """A burst of 200 requests on a queue of 16: no thread waits, and all 200 are in the metrics."""
    stuck = Stuck()
    batches = BatchSpanProcessor(stuck, max_queue_size=16, max_export_batch_size=8, schedule_delay_millis=10)
    telemetry.tracer_provider.add_span_processor(batches)

    def burst() -> None:
        for _ in range(200):
            play(BY_ID["C14"], telemetry)

    server = threading.Thread(target=burst, daemon=True)
    server.start()
    server.join(60)
    blocked = server.is_alive()
    stuck.let_go.set()
    (requests,) = telemetry.points("inference.requests")
    ttft = telemetry.point("inference.time_to_first_token")
    telemetry.shutdown()
    assert (blocked, requests["value"], ttft["count"], ttft["sum"]) == (False, 200, 200, near(100.0))
    # What the SDK dropped shows as the difference between what was counted and what arrived.
    assert 0 < stuck.exported < 200
