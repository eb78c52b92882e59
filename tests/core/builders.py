"""Short ways to write traces down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from otel_lifecycle import classify_request_outcome, compute_request_metrics, replay_request_events

Event = dict[str, Any]
Step = tuple[str, Any] | tuple[str, Any, Mapping[str, Any]]


def trace(*steps: Step) -> list[Event]:
    """Return events from ``(event, timestamp)`` or ``(event, timestamp, {'count': …, 'choice': …})``."""
    return [{"event": step[0], "timestamp": step[1], **(step[2] if len(step) == 3 else {})} for step in steps]


def to_prefill(start: Any = 0, admit: Any = 2, input_ready: Any = 3) -> list[Event]:
    """Return the first three events of the default shape."""
    return trace(("arrive", start), ("admit", admit), ("input_ready", input_ready))


def replay(events: list[Event], shape: str = "default") -> dict[str, Any]:
    """Return the report as a plain dict, to compare whole."""
    return dict(replay_request_events(events, shape))


def metrics(events: list[Event], shape: str = "default") -> dict[str, Any]:
    """Return the nine metrics of a trace."""
    return dict(compute_request_metrics(replay_request_events(events, shape)))


def outcome(events: list[Event], shape: str = "default", **options: float) -> dict[str, Any]:
    """Return the outcome of a trace."""
    report = replay_request_events(events, shape)
    return dict(classify_request_outcome(report, compute_request_metrics(report), **options))


def result(events: list[Event], shape: str = "default") -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return what :func:`summarize_workload` takes of one request."""
    report = replay_request_events(events, shape)
    return report, compute_request_metrics(report)


def stages(queue: Any, preprocessing: Any, prefill: Any, decode: Any, start: Any = 0) -> list[Event]:
    """Return a completed one-token trace whose stages last as long as given."""
    times = [start]
    for duration in (queue, preprocessing, prefill, decode):
        times.append(times[-1] + duration)
    return trace(*zip(("arrive", "admit", "input_ready", "first_token", "complete"), times, strict=True))


WORKED = [
    *to_prefill(),
    *trace(("first_token", 7), ("token", 9), ("token", 11), ("complete", 12)),
]
"""The worked example of the contract."""

WORKED_PREFILL = [
    *to_prefill(),
    *trace(("first_token", 9), ("token", 10), ("token", 11), ("complete", 12)),
]
"""The same with a later first token."""

WORKED_CANCEL = trace(("arrive", 0), ("admit", 2), ("cancel", 5))
"""The same, cancelled right after admission."""
