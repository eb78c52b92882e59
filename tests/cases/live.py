"""Plays a case through the request API with its times given, and works out what must then be on the wire.

What is expected is derived from the hand-made figures of the case and the contract's tables, not from the code.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pytest

from otel_lifecycle import semconv
from tests.support.plain import Point, Span
from tests.support.telemetry import Telemetry

from .notation import NOTES, NS, TERMINALS, Case, Step, to_ns

EPOCH: Final = 1_700_000_000 * NS
BASE: Final = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "tests",
    "gen_ai.request.model": "tiny",
}
KEYS: Final = {"arrive": "arrival", "admit": "admitted", "input_ready": "input_ready", "first_token": "first_token"}
"""Events that bound a stage, as a report names their times."""

BOUNDS: Final = {
    "default": {
        "queue": ("arrival", "admitted"),
        "preprocessing": ("admitted", "input_ready"),
        "prefill": ("input_ready", "first_token"),
        "decode": ("first_token", "terminal"),
    },
    "preprocess_first": {
        "preprocessing": ("arrival", "input_ready"),
        "queue": ("input_ready", "admitted"),
        "prefill": ("admitted", "first_token"),
        "decode": ("first_token", "terminal"),
    },
    "pooling": {
        "queue": ("arrival", "admitted"),
        "preprocessing": ("admitted", "input_ready"),
        "prefill": ("input_ready", "terminal"),
    },
}
"""The two boundaries of every stage, by shape."""

STAGE_METRICS: Final = {
    "queue": "queue_wait",
    "preprocessing": "preprocessing",
    "prefill": "prefill",
    "decode": "decode_time",
}
WIRE: Final = {"queued": "queue"}

Spans = list[tuple[str, str, int, int]]
"""Name, name of the parent, start and end."""


def play(case: Case, telemetry: Telemetry, **arguments: Any) -> Any:
    """Open a request and give it every event of the case; return the handle."""
    first, *rest = case.steps
    request = telemetry.request(
        model="tiny",
        operation="chat",
        provider="tests",
        arrived_at_ns=EPOCH + first.ns,
        shape=case.shape,
        **arguments,
    )
    for step in rest:
        mark(request, step)
    return request


def mark(request: Any, step: Step) -> None:
    """Call the method of the handle that gives this event."""
    arguments: list[Any] = []
    if step.event in ("token", "first_token"):
        arguments = [step.count, step.choice]
    elif step.event == "output":
        arguments = [step.count]
    elif step.reason:
        arguments = [step.reason]
    getattr(request, step.event)(*arguments, at_ns=EPOCH + step.ns)


# ------------------------------------------------------------------------------------------------------------ spans


def known_times(case: Case) -> dict[str, int]:
    """Return the boundaries whose times are known, as a report does."""
    times: dict[str, int] = {}
    for step in case.steps:
        key = "terminal" if step.event in TERMINALS else KEYS.get(step.event)
        if key and step.fate == "legal":
            times[key] = EPOCH + step.ns
    return times


def expected_events(case: Case) -> list[tuple[str, int]]:
    """Return the span events: every boundary, interruption and note, and not one for a token."""
    return [
        (step.event, EPOCH + step.ns)
        for step in case.steps
        if step.fate == "legal" and step.event != "token" and (step.moves or step.event in NOTES)
    ]


def expected_spans(case: Case) -> Spans:
    """Return the stage spans: one a stage with both boundaries known, the one cut off, and its interruptions."""
    times, spans = known_times(case), Spans()
    for stage, (start, left) in BOUNDS[case.shape].items():
        cut_off = case.failure_stage is not None and WIRE.get(case.failure_stage, case.failure_stage) == stage
        end = "terminal" if cut_off else left
        if start in times and end in times:
            spans.append((stage, "chat tiny", times[start], times[end]))
    interruptions = [EPOCH + step.ns for step in case.steps if step.event in ("preempt", "resume")]
    for start_ns, end_ns in zip(interruptions[::2], interruptions[1::2], strict=True):
        (interrupted,) = case.preempted
        spans.append(("preempted", interrupted, start_ns, end_ns))
    return sorted(spans)


def stage_spans(spans: Sequence[Span]) -> Spans:
    """Return every exported span but the request's own, in the form of :func:`expected_spans`."""
    names = {span["span_id"]: span["name"] for span in spans}
    return sorted(
        (span["name"], names[span["parent_id"]], span["start_ns"], span["end_ns"])
        for span in spans
        if span["parent_id"] is not None
    )


def expected_attributes(case: Case) -> dict[str, Any]:
    """Return the attributes of the request span; durations in seconds."""
    wanted: dict[str, Any] = {
        **BASE,
        "inference.shape": None if case.shape == "default" else case.shape,
        "inference.outcome": case.status,
        "inference.legal": not case.violations,
        "inference.violations": len(case.violations),
        "inference.preempted": sum(case.preempted.values()),
        "inference.preemptions": sum(step.event == "preempt" for step in case.steps),
        "gen_ai.usage.output_tokens": case.metric("streamed_tokens"),
        "inference.streamed_tokens": case.metric("streamed_tokens"),
        "inference.failure.stage": WIRE.get(str(case.failure_stage), case.failure_stage),
        "error.type": case.error_type,
        **{f"inference.{name}": value for name, value in case.metrics.items() if name != "streamed_tokens"},
        **expected_shares(case),
        **expected_itl(case.itl),
        **case.attributes,
    }
    return {name: close(value) for name, value in wanted.items() if value is not None}


def close(value: Any) -> Any:
    """Let a float differ in its last bits."""
    return near(value) if type(value) is float else value


def near(value: float) -> Any:
    """Return what equals a number but for the last bits of a float."""
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def expected_shares(case: Case) -> dict[str, Any]:
    """Return the attribution of a case that has one."""
    if case.share is None:
        return {}
    net = {
        stage: case.metrics[STAGE_METRICS[stage]] - case.preempted.get(stage, 0)
        for stage in STAGE_METRICS
        if stage in BOUNDS[case.shape]
    }
    return {
        "inference.bottleneck": case.stage,
        "inference.dominant_stage": case.largest or case.stage,
        "inference.dominant_share": case.share,
        **{f"inference.share.{stage}": time / sum(net.values()) for stage, time in net.items()},
    }


def expected_itl(gaps: Sequence[float]) -> dict[str, Any]:
    """Return the percentiles of the gaps, interpolated on a line; nothing of none."""
    if not gaps:
        return {}
    return {
        "inference.itl.count": len(gaps),
        **{f"inference.itl.p{rank}": percentile(gaps, rank / 100) for rank in (50, 95, 99)},
        "inference.itl.max": max(gaps),
    }


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value at (n - 1) * share of the sorted values, on the line between its neighbours."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (ordered[above] - ordered[below]) * (place - below))


# ---------------------------------------------------------------------------------------------------------- metrics

Series = tuple[str, tuple[tuple[str, Any], ...]]
"""The name of a metric and its attributes, beyond operation, provider and model."""

OF_THE_PROCESS: Final = ("inference.servers", "inference.server.start_time")
"""Metrics about the process, which no request changes."""
UNSTEADY: Final = (
    "inference.oldest_request.age",
    "inference.cancel.lag",
    "inference.queue.time",
    "inference.stall.time",
    *OF_THE_PROCESS,
)
"""Metrics that depend on when they are read, on the other requests of the engine, or on no request."""


def series(metric: str, **attributes: Any) -> Series:
    """Name a series; a double underscore is a dot, None is absent."""
    named = {name.replace("__", "."): value for name, value in attributes.items() if value is not None}
    return metric, tuple(sorted(named.items()))


def samples(case: Case) -> dict[Series, list[float]]:
    """Return every histogram sample of the case."""
    value, outcome = case.metric, {"inference__outcome": case.status}
    found: dict[Series, list[float | None]] = {
        series("inference.time_to_first_token", **outcome): [value("ttft")],
        series("inference.time_per_output_token", **outcome): [value("tpot")],
        series("inference.request.duration", **outcome): [value("e2e")],
        series("inference.inter_token_latency"): list(case.itl),
        series("gen_ai.server.request.duration", error__type=case.error_type): [value("e2e")],
    }
    for stage, name in STAGE_METRICS.items():
        found[series("inference.stage.duration", inference__stage=stage)] = [value(name)]
    if case.completed:
        found[series("gen_ai.server.time_to_first_token")] = [value("ttft")]
        found[series("gen_ai.server.time_per_output_token")] = [convention_tpot(case)]
    real = {key: [sample for sample in values if sample is not None] for key, values in found.items()}
    return {key: values for key, values in real.items() if values}


def convention_tpot(case: Case) -> float | None:
    """Return (e2e - ttft) / (n - 1), the convention's own formula."""
    ttft, count = case.metric("ttft"), case.metric("streamed_tokens")
    if ttft is None or count is None or count < 2:
        return None
    return (to_ns(case.metrics["e2e"]) - to_ns(ttft)) / (count - 1) / NS


def counts(case: Case) -> dict[Series, float]:
    """Return every counter of the case that is not 0."""
    found = {
        series(
            "inference.requests",
            inference__outcome=case.status,
            inference__failure__stage=WIRE.get(str(case.failure_stage), case.failure_stage),
            inference__bottleneck=case.stage if case.completed else None,
            error__type=case.error_type,
        ): 1,
        series("inference.tokens", inference__token__direction="output"): case.metric("streamed_tokens") or 0,
        series("inference.tokens", inference__token__direction="wasted"): case.wasted,
    }
    if case.stage == "mixed":
        for stage, name in STAGE_METRICS.items():
            found[series("inference.mixed.time", inference__stage=stage)] = case.metric(name) or 0
    for kind in case.violations:
        found[series("inference.transition.violations", inference__violation__kind=kind)] = 1
    for state in case.preempted:
        found[series("inference.preemptions", inference__stage=state)] = 1
    return {key: value for key, value in found.items() if value}


def histogram(metric: str, values: Sequence[float]) -> dict[str, Any]:
    """Return what a histogram holds after these samples, by the edges of the contract."""
    edges = {row.name: row.buckets for row in semconv.METRICS}[metric]
    assert edges is not None
    buckets = [0] * (len(edges) + 1)
    for value in values:
        buckets[bisect_left(edges, value)] += 1
    return {
        "count": len(values),
        "sum": near(sum(values)),
        "min": near(min(values)),
        "max": near(max(values)),
        "buckets": buckets,
    }


def expected_points(*cases: Case) -> dict[Series, Any]:
    """Return every point that is not 0 after these requests."""
    values: dict[Series, list[float]] = {}
    totals: dict[Series, float] = {}
    for case in cases:
        for key, new in samples(case).items():
            values[key] = [*values.get(key, []), *new]
        for key, count in counts(case).items():
            totals[key] = totals.get(key, 0) + count
    return {
        **{key: histogram(key[0], new) for key, new in values.items()},
        **{key: near(total) for key, total in totals.items()},
    }


def found_points(points: Iterable[Point]) -> dict[Series, Any]:
    """Return the collected points that are not 0, in the form of :func:`expected_points`."""
    found: dict[Series, Any] = {}
    for point in points:
        if point["metric"] in UNSTEADY:
            continue
        own = {name: value for name, value in point["attributes"].items() if name not in BASE}
        # Its causes are tested with engines; here all of them are one series.
        own.pop(semconv.BOTTLENECK_CAUSE, None)
        key = (point["metric"], tuple(sorted(own.items())))
        assert key not in found or point["metric"] == "inference.requests", f"two series {key}"
        if point["type"] == "histogram":
            plain: dict[str, Any] = {**point}
            found[key] = {name: plain[name] for name in ("count", "sum", "min", "max", "buckets")}
        elif point["value"]:
            found[key] = found.get(key, 0) + point["value"]
    return found
