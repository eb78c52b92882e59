"""The lifecycle of inference requests as OpenTelemetry spans, metrics and attribution."""

from otel_lifecycle._core.metrics import compute_request_metrics
from otel_lifecycle._core.outcome import classify_request_outcome
from otel_lifecycle._core.report import replay_request_events
from otel_lifecycle._core.slo import Slo
from otel_lifecycle._core.workload import summarize_workload

__all__ = [
    "Slo",
    "classify_request_outcome",
    "compute_request_metrics",
    "replay_request_events",
    "summarize_workload",
]
