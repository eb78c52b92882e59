"""Exporters of one process: silent in a child that inherited them, and explicit about what they lose.

A child inherits its parent's queues and cumulative counts together with the threads that the SDK starts again.
Whatever they would send has been, or will be, sent by the parent.

The SDK logs every failed batch.  An operator wants two lines: what is lost from now on and what is not, and, when the
Collector answers again, how much it was.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import Lock
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_lifecycle._configuration.default_endpoint import DefaultEndpoint
from otel_lifecycle._log import logger

# A listener of the other protocol resets the connection, as if it were down.
_OTHER_PROTOCOL = {"grpc": "http/protobuf", "http/protobuf": "grpc"}

_MEBIBYTE: Final = 1024 * 1024
RECEIVER_LIMIT_MIB: Final = {"grpc": 4, "http/protobuf": 20}
"""How large a message the Collector's receiver takes by default, by protocol; beyond that it refuses it whole."""


class ProcessSpans(SpanExporter):
    """A span exporter that exports in the process that made it, and in no child.

    ``default_endpoint``: where the exporter sends to if no endpoint is configured; it is asked before each export.
    ``protocol``: of OTLP, for the hint that the endpoint may take the other one.
    """

    def __init__(
        self, exporter: SpanExporter, default_endpoint: DefaultEndpoint | None = None, protocol: str = ""
    ) -> None:
        self._exporter = exporter
        other = _OTHER_PROTOCOL.get(protocol)
        self._hint = f". If the endpoint is up, it may take {other}: OTEL_EXPORTER_OTLP_PROTOCOL" if other else ""
        self._default_endpoint = default_endpoint
        # 0: there is nothing to say of the size, or it has been said.
        self._limit_mib = RECEIVER_LIMIT_MIB.get(protocol, 0)
        self._pid = os.getpid()
        self._lost = 0
        self._lock = Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export, or drop what belongs to the parent."""
        # SUCCESS, so that the SDK does not log a failure for spans that the parent sends.
        if os.getpid() != self._pid:
            return SpanExportResult.SUCCESS
        if self._default_endpoint is not None and not self._default_endpoint.answers():
            # It has said so, with the remedy; a second line about lost spans would only bury that.
            return SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001  # whatever an exporter raises is a failed export
            # The HTTP exporter of the SDK 1.31 raises a refused connection; the SDK would log its whole traceback.
            logger.debug("the exporter raised %s", type(error).__name__, exc_info=True)
            result = SpanExportResult.FAILURE
        self._tell(result is SpanExportResult.SUCCESS, len(spans))
        if result is not SpanExportResult.SUCCESS and self._limit_mib:
            self._tell_size(spans)
        return result

    def _tell(self, exported: bool, spans: int) -> None:
        """Log when spans begin to be lost, and, when exporting works again, how many were lost."""
        with self._lock:
            # Only the count is under the lock: a log handler may block, or export by itself.
            before = self._lost
            self._lost = 0 if exported else before + spans
        if not exported and not before:
            logger.warning(
                "spans are lost: they cannot be exported. Metrics go on counting and are sent when they can be%s",
                self._hint,
            )
        elif exported and before:
            logger.warning("spans are exported again; %d were lost meanwhile", before)

    def _tell_size(self, spans: Sequence[ReadableSpan]) -> None:
        """Log once that a message which failed is larger than a receiver takes by default.

        An exporter does not say why it failed, so the message is encoded again; that is paid by failures only.
        """
        size = encode_spans(spans).ByteSize() / _MEBIBYTE
        if size <= self._limit_mib:
            return
        logger.warning(
            "a message of %d spans has %.1f MiB and was not taken; a receiver takes %d MiB by default. Send fewer "
            "spans in a message (OTEL_BSP_MAX_EXPORT_BATCH_SIZE), or raise the receiver's limit",
            len(spans),
            size,
            self._limit_mib,
        )
        self._limit_mib = 0

    def shutdown(self) -> None:
        """Shut the exporter down, saying what is still lost; a child leaves its parent's connection alone."""
        if os.getpid() != self._pid:
            return
        if self._lost:
            logger.warning("%d spans were lost: they could not be exported", self._lost)
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the exporter."""
        return os.getpid() != self._pid or self._exporter.force_flush(timeout_millis)


class ProcessMetrics(MetricExporter):
    """A metric exporter that exports in the process that made it, and in no child."""

    def __init__(self, exporter: MetricExporter, default_endpoint: DefaultEndpoint | None = None) -> None:
        super().__init__()
        # A reader asks its exporter for the temporality and aggregation it prefers by names that are not public.
        # Whatever the SDK's base class keeps of that is taken over, under the names it has there.
        # In the SDK 1.45 these are _preferred_temporality and _preferred_aggregation.
        for name, default in list(vars(self).items()):
            setattr(self, name, getattr(exporter, name, default))
        self._exporter = exporter
        self._default_endpoint = default_endpoint
        self._pid = os.getpid()

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Export, or drop what belongs to the parent."""
        if os.getpid() != self._pid:
            return MetricExportResult.SUCCESS
        if self._default_endpoint is not None and not self._default_endpoint.answers():
            return MetricExportResult.FAILURE
        return self._exporter.export(metrics_data, timeout_millis, **kwargs)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Flush the exporter."""
        return os.getpid() != self._pid or self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Shut the exporter down; a child leaves its parent's connection alone."""
        if os.getpid() == self._pid:
            self._exporter.shutdown(timeout_millis, **kwargs)
