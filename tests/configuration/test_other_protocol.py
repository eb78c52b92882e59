"""An endpoint that takes the other protocol of OTLP looks as if it were down; the log names the setting."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from opentelemetry.exporter.otlp.proto.grpc import exporter as grpc_exporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter

from otel_lifecycle._configuration.exporters import ProcessSpans
from tests.stack.programs import free_ports


@pytest.fixture(params=["grpc", "http/protobuf"])
def protocol_and_exporter(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, SpanExporter]]:
    """A real exporter of each protocol, to a port that nobody listens on."""
    # The exporter of the SDK 1.31 retries for 63 s whatever its timeout is; newer ones have no such name.
    monkeypatch.setattr(grpc_exporter, "sleep", lambda seconds: None, raising=False)
    (port,) = free_ports(1)
    if request.param == "grpc":
        yield "grpc", GrpcSpans(endpoint=f"http://127.0.0.1:{port}", insecure=True, timeout=1)
    else:
        yield "http/protobuf", HttpSpans(endpoint=f"http://127.0.0.1:{port}/v1/traces", timeout=1)


def test_a_failed_export_names_the_other_protocol(
    protocol_and_exporter: tuple[str, SpanExporter], caplog: pytest.LogCaptureFixture
) -> None:
    """The first failure says that the endpoint may take the other one, and by which variable."""
    protocol, exporter = protocol_and_exporter
    other = {"grpc": "http/protobuf", "http/protobuf": "grpc"}[protocol]
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(ProcessSpans(exporter, protocol=protocol)))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            provider.get_tracer("of the test").start_span("lost").end()
    # Only what this thread said: one that an earlier test's exporter left behind may find its endpoint gone now.
    said = [record.message for record in caplog.records if record.thread == threading.get_ident()]
    hints = [message for message in said if "OTEL_EXPORTER_OTLP_PROTOCOL" in message]
    assert [hint.split(". ")[-1] for hint in hints] == [
        f"If the endpoint is up, it may take {other}: OTEL_EXPORTER_OTLP_PROTOCOL"
    ]
    provider.shutdown()
