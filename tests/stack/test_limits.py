"""The 4 MiB that a gRPC receiver takes by default (C64)."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otel_lifecycle as lifecycle
from otel_lifecycle._configuration.exporter_lookup import span_processor
from otel_lifecycle._configuration.exporters import ProcessSpans
from otel_lifecycle._configuration.settings import read_settings
from otel_lifecycle.processor import LifecycleSpanProcessor
from tests.stack import programs
from tests.stack.backends import NotYet, eventually, scrape
from tests.stack.conftest import HERE, Stack
from tests.stack.load import MODEL, Script
from tests.stack.programs import LOOPBACK

GRPC_LIMIT: Final = 4 * 1024 * 1024


def test_a_batch_of_512_long_answers_passes_in_one_message(stack: Stack) -> None:
    """512 requests of 2000 tokens, with their stage spans, in one message: accepted, and all of them stored."""
    with stack.server("long-answers") as server:
        for number in range(512):
            server.play(Script(tokens=2000, gap=0.005), request_id=f"long-{number}")
        spans = server.kept.get_finished_spans()
    assert (len(server.request_spans()), len(spans)) == (512, 512 * 5)
    assert encode_spans(spans).ByteSize() < GRPC_LIMIT
    exporter = OTLPSpanExporter(endpoint=stack.otlp, insecure=True)
    assert exporter.export(spans) is SpanExportResult.SUCCESS
    exporter.shutdown()

    def stored() -> None:
        if len(found := stack.jaeger.search("long-answers")) != 512:
            raise NotYet(f"{len(found)} of 512 traces are stored")

    eventually(stored)


def test_a_message_beyond_the_default_limit_passes(stack: Stack) -> None:
    """5 MiB at once, as a server with larger batches than ours sends: taken, because our receivers take 32 MiB."""
    exporter = OTLPSpanExporter(endpoint=stack.otlp, insecure=True)
    assert exporter.export(large_message()) is SpanExportResult.SUCCESS
    exporter.shutdown()


def test_a_message_that_is_refused_for_its_size_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A receiver with the default limit refuses the same message; our log names the size and what to do, once."""
    sink = programs.collector(tmp_path, HERE / "sink.yaml", env={"SINK_FILE": str(tmp_path / "spans")})
    sink.start()
    exporter = OTLPSpanExporter(endpoint=f"http://{LOOPBACK}:{sink.ports['grpc']}", insecure=True)
    wrapped = ProcessSpans(exporter, protocol="grpc")
    try:
        with caplog.at_level(logging.WARNING, "otel_lifecycle"):
            spans = large_message()
            assert [wrapped.export(spans) for _ in range(2)] == [SpanExportResult.FAILURE] * 2
    finally:
        sink.stop()
        exporter.shutdown()
    (said,) = (text for text in caplog.messages if "MiB" in text)
    size = encode_spans(spans).ByteSize() / 2**20
    assert said.startswith(f"a message of {len(spans)} spans has {size:.1f} MiB and was not taken")
    assert "OTEL_BSP_MAX_EXPORT_BATCH_SIZE" in said


def large_message() -> Sequence[ReadableSpan]:
    """Return spans whose message has some 5 MiB."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    for _ in range(50):
        provider.get_tracer("of the test").start_span("large", attributes={"filler": "x" * 100_000}).end()
    spans = kept.get_finished_spans()
    assert GRPC_LIMIT < encode_spans(spans).ByteSize() < 2 * GRPC_LIMIT
    return spans


REQUESTS: Final = 200
TOKENS: Final = 4_000
SPANS: Final = REQUESTS * 5


def burst(endpoint: str) -> None:
    """Send 200 requests of 4,000 tokens, each with the time of every token, as fast as they can be made."""
    settings = read_settings({"endpoint": endpoint, "protocol": "grpc", "token_times": True, "sampler": 1.0})
    tracers = TracerProvider(shutdown_on_exit=False)
    meters = MeterProvider(shutdown_on_exit=False)
    tracers.add_span_processor(
        LifecycleSpanProcessor(span_processor(settings, None), meter_provider=meters, token_times=True)
    )
    for _ in range(REQUESTS):
        at = time.time_ns() - TOKENS * 10**7
        request = lifecycle.request(model=MODEL, arrived_at_ns=at, tracer_provider=tracers)
        for mark in (request.admit, request.input_ready, request.first_token):
            at += 10**6
            mark(at_ns=at)
        for number in range(TOKENS - 1):
            # Gaps of two or three bytes each, as those of a real stream are.
            at += 5_000_000 + number * 7919 % 10**6
            request.token(at_ns=at)
        request.complete(at_ns=at)
    tracers.shutdown()


@pytest.mark.parametrize(("batch", "arrived"), [("", SPANS), ("512", 0)], ids=["our batches", "the SDK's batches"])
def test_spans_with_token_times_arrive(
    batch: str, arrived: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 1000 spans of a burst, because their messages are small; none where they are as large as the SDK makes them.

    The receiver takes 1 MiB here and the answers have 4,000 tokens: the same in small as 4 MiB and 16,000.
    """
    # So that every message is as large as it may be, however slow this machine is.
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", batch)
    sink = programs.collector(
        tmp_path,
        HERE / "sink.yaml",
        env={"SINK_FILE": str(tmp_path / "spans")},
        sets=("receivers::otlp::protocols::grpc::max_recv_msg_size_mib=1",),
    )
    sink.start()
    try:
        # It returns when every span was sent, or given up.
        burst(f"http://{LOOPBACK}:{sink.ports['grpc']}")

        def received() -> None:
            seen = scrape(sink.ports["metrics"])
            count = sum(value for name, value in seen.items() if name.startswith("otelcol_receiver_accepted_spans"))
            if count != arrived:
                raise NotYet(f"{count} of {arrived} spans arrived")

        eventually(received)
    finally:
        sink.stop()
