"""A message that fails and is larger than a receiver takes by default: the log says how large, and what to do."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_lifecycle._configuration.exporters import ProcessSpans


class Refusing(SpanExporter):
    """Takes nothing, as a receiver that finds the message too large."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Refuse."""
        return SpanExportResult.FAILURE


def message(mebibytes: int) -> Sequence[ReadableSpan]:
    """Return one span a mebibyte."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    for _ in range(mebibytes):
        provider.get_tracer("of the test").start_span("large", attributes={"filler": "x" * 2**20}).end()
    return kept.get_finished_spans()


@pytest.mark.parametrize(
    ("protocol", "mebibytes", "said"),
    [
        ("grpc", 3, []),
        ("grpc", 5, ["a message of 5 spans has 5.0 MiB and was not taken; a receiver takes 4 MiB by default"]),
        ("http/protobuf", 5, []),
        (
            "http/protobuf",
            21,
            ["a message of 21 spans has 21.0 MiB and was not taken; a receiver takes 20 MiB by default"],
        ),
        ("", 21, []),
    ],
)
def test_a_failed_export_says_that_its_message_is_large(
    protocol: str, mebibytes: int, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Once, by the limit of the protocol; another exporter's protocol is not known."""
    exporter = ProcessSpans(Refusing(), protocol=protocol)
    spans = message(mebibytes)
    with caplog.at_level(logging.WARNING, "otel_lifecycle"):
        assert [exporter.export(spans) for _ in range(2)] == [SpanExportResult.FAILURE] * 2
    assert [text.split(". ")[0] for text in caplog.messages if "MiB" in text] == said
