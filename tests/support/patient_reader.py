"""A metric reader in memory that waits for a machine that is busy."""

from __future__ import annotations

from threading import RLock
from typing import Any

from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData

TEN_MINUTES_MS = 600_000


class PatientReader(InMemoryMetricReader):
    """Collects without the SDK's limit of 10 s.

    The limit holds for the clock on the wall: a process that gets no CPU for 10 s in the middle of a collection ends in
    MetricsTimeoutError, which says nothing of the code under test.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._collecting = RLock()
        self._received: MetricsData | None = None

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        self._received = metrics_data

    def get_metrics_data(self) -> MetricsData | None:
        """Collect now and return what was collected, None if nothing was."""
        with self._collecting:
            self._received = None
            self.collect(timeout_millis=TEN_MINUTES_MS)
            return self._received
