"""Exporters that are silent in a process that inherited them by fork.

A child inherits its parent's queues and cumulative counts together with the threads that the SDK starts again.
Whatever they would send has been, or will be, sent by the parent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult


class MuteSpans(SpanExporter):
    """A span exporter that exports in the process that made it, and in no child."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._pid = os.getpid()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export, or drop what belongs to the parent."""
        return SpanExportResult.SUCCESS if os.getpid() != self._pid else self._exporter.export(spans)

    def shutdown(self) -> None:
        """Shut the exporter down; a child leaves its parent's connection alone."""
        if os.getpid() == self._pid:
            self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the exporter."""
        return os.getpid() != self._pid or self._exporter.force_flush(timeout_millis)


class MuteMetrics(MetricExporter):
    """A metric exporter that exports in the process that made it, and in no child."""

    def __init__(self, exporter: MetricExporter) -> None:
        super().__init__(
            preferred_temporality=exporter._preferred_temporality,  # no public way to ask
            preferred_aggregation=exporter._preferred_aggregation,  # no public way to ask
        )
        self._exporter = exporter
        self._pid = os.getpid()

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Export, or drop what belongs to the parent."""
        if os.getpid() != self._pid:
            return MetricExportResult.SUCCESS
        return self._exporter.export(metrics_data, timeout_millis, **kwargs)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Flush the exporter."""
        return os.getpid() != self._pid or self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Shut the exporter down; a child leaves its parent's connection alone."""
        if os.getpid() == self._pid:
            self._exporter.shutdown(timeout_millis, **kwargs)
