"""The requests in flight, from metrics: a span is exported only when its request has ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric as ProtoMetric

from otel_lifecycle import semconv
from otel_lifecycle._table.requests.model import STAGES
from otel_lifecycle._table.sources.otlp_proto import attributes

SILENT_S: Final = 65.0
"""A process that has sent no metric for so long has gone; the usual export interval is 60 s at most."""
# A server in a restart loop comes with a new resource each time.
MAX_PROCESSES: Final = 256


@dataclass(slots=True)
class Process:
    """The newest figures of one process."""

    seen: float
    stages: dict[str, float] = field(default_factory=dict)
    oldest: float | None = None
    requests: float = 0.0
    counted: bool = False


class Gauges:
    """Requests in flight by stage, and the age of the oldest, over all processes that report."""

    def __init__(self) -> None:
        self._processes: dict[str, Process] = {}

    def take(self, instance: str, metric: ProtoMetric, now: float) -> None:
        """Take a metric of a process, named by its resource; only those shown here are kept."""
        if metric.name not in _READ:
            return
        process = self._processes.get(instance)
        if process is None:
            if len(self._processes) >= MAX_PROCESSES:
                del self._processes[min(self._processes, key=lambda key: self._processes[key].seen)]
            process = self._processes[instance] = Process(now)
        process.seen = now
        _READ[metric.name](process, metric)

    def in_flight(self, now: float) -> dict[str, int] | None:
        """Return the number of requests by stage; None if no process reports it."""
        live = [one for one in self._processes.values() if now - one.seen <= SILENT_S and one.counted]
        if not live:
            return None
        found: dict[str, int] = dict.fromkeys(STAGES, 0)
        for process in live:
            for stage, count in process.stages.items():
                found[stage] = found.get(stage, 0) + int(count)
        return found

    def oldest(self, now: float) -> float | None:
        """Return the age in seconds of the oldest request in flight; None if none is, or none is reported."""
        # The request has aged since the report.  An idle process keeps its last gauge value, so only busy ones count.
        ages = [one.oldest + now - one.seen for one in self._processes.values() if one.oldest and _busy(one, now)]
        return max(ages, default=None)

    def counted(self) -> int:
        """Return how many ended requests the metrics of all processes count."""
        # Silent processes count, too: what they ended has ended.
        return int(sum(one.requests for one in self._processes.values()))


def _busy(process: Process, now: float) -> bool:
    return now - process.seen <= SILENT_S and any(process.stages.values())


def _value(point: Any) -> float:
    # A point flagged "no recorded value" has none of the fields; the unset integer reads as 0.
    return float(getattr(point, point.WhichOneof("value") or "as_int"))


def _active(process: Process, metric: ProtoMetric) -> None:
    stages: dict[str, float] = {}
    for point in metric.sum.data_points:
        stage = str(attributes(point.attributes).get(semconv.STAGE, semconv.UNKNOWN_STAGE))
        stages[stage] = stages.get(stage, 0.0) + _value(point)
    # An up-down counter is cumulative under every temporality preference: a report replaces the one before.
    process.stages, process.counted = stages, True


def _oldest(process: Process, metric: ProtoMetric) -> None:
    process.oldest = max(map(_value, metric.gauge.data_points), default=None)


def _requests(process: Process, metric: ProtoMetric) -> None:
    process.requests = sum(map(_value, metric.sum.data_points))


_READ: Final = {
    semconv.ACTIVE_REQUESTS.name: _active,
    semconv.OLDEST_REQUEST_AGE.name: _oldest,
    semconv.REQUESTS.name: _requests,
}
