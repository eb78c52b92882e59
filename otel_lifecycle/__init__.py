"""The lifecycle of inference requests as OpenTelemetry spans, metrics and attribution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_lifecycle._configuration.setup import configure, shutdown
    from otel_lifecycle._core.interference_of_reports import compute_interference
    from otel_lifecycle._core.metrics import compute_request_metrics
    from otel_lifecycle._core.outcome import classify_request_outcome
    from otel_lifecycle._core.report import replay_request_events
    from otel_lifecycle._core.slo import Slo
    from otel_lifecycle._core.workload import summarize_workload
    from otel_lifecycle._decorators import traced
    from otel_lifecycle._reading import read_requests
    from otel_lifecycle._request.clock import monotonic
    from otel_lifecycle._request.engine_step import engine_step
    from otel_lifecycle._request.opening import current, request, stage, step
    from otel_lifecycle._request.startup import startup
    from otel_lifecycle._serving import serving

__all__ = [
    "Slo",
    "classify_request_outcome",
    "compute_interference",
    "compute_request_metrics",
    "configure",
    "current",
    "engine_step",
    "monotonic",
    "read_requests",
    "replay_request_events",
    "request",
    "serving",
    "shutdown",
    "stage",
    "startup",
    "step",
    "summarize_workload",
    "traced",
]


def __getattr__(name: str) -> Any:
    # The command line imports this package, too, and a list of its commands must not wait for the request API.  The
    # first name loads them all: a server that imported one has paid for every other before its first request.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from otel_lifecycle import _public

    globals().update({one: getattr(_public, one) for one in __all__})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
