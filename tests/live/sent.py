"""What a real SDK sends over OTLP: whole requests with chosen times, as the bytes of one message."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from tests.support.telemetry import Telemetry

MS = 1_000_000
NOW = time.time_ns() - 60_000 * MS
"""A minute ago: what the server says of now must hold it."""


def finish(telemetry: Telemetry, start: int = NOW, *, end: str = "complete", **arguments: Any) -> None:
    """Emit a request of 100 ms: 20 queue, 10 preprocessing, 30 prefill, 40 decode with three tokens."""
    request = telemetry.request(model="m", operation="chat", arrived_at_ns=start, **arguments)
    request.admit(at_ns=start + 20 * MS)
    request.input_ready(at_ns=start + 30 * MS)
    for offset in (60, 75, 90):
        request.token(at_ns=start + offset * MS)
    getattr(request, end)(at_ns=start + 100 * MS)


def traces(telemetry: Telemetry) -> bytes:
    """Return everything exported so far, and forget it."""
    message = encode_spans(telemetry.exporter.get_finished_spans()).SerializeToString()
    telemetry.exporter.clear()
    return message


def metrics(telemetry: Telemetry) -> bytes:
    """Collect metrics now."""
    data = telemetry.reader.get_metrics_data()
    assert data is not None
    return encode_metrics(data).SerializeToString()


MakeTelemetry = Callable[..., Telemetry]
