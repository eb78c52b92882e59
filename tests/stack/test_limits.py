"""The 4 MiB that a gRPC receiver takes by default (C64)."""

from __future__ import annotations

from typing import Final

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExportResult

from tests.stack.backends import NotYet, eventually
from tests.stack.conftest import Stack
from tests.stack.load import Script

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
