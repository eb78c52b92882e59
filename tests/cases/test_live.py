"""Every case of the table through the request API with explicit times, read back from a real SDK."""

from __future__ import annotations

from typing import Any

import pytest

from otel_lifecycle import compute_request_metrics
from tests.support.telemetry import Telemetry

from .live import (
    BASE,
    EPOCH,
    OF_THE_PROCESS,
    expected_attributes,
    expected_events,
    expected_points,
    expected_spans,
    found_points,
    play,
    stage_spans,
)
from .notation import METRICS, Case, to_ns
from .table import CASES

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
AFTER_THE_END = ("C30",)
"""Cases whose violation comes when the span has gone."""

DEFAULTS = {
    "inference.violations": 0,
    "inference.preempted": 0,
    "inference.preemptions": 0,
    "inference.events.dropped": 0,
    "inference.client.disconnected": False,
    "inference.request.role": "whole",
    "inference.traffic": "live",
}
"""Attributes that may as well be absent as have these values."""

BESIDE = ("inference.queue.", "inference.stall.", "inference.company.", "inference.bottleneck.cause")
"""What the other requests of an engine did: here there are none."""


def telling(attributes: dict[str, Any]) -> dict[str, Any]:
    """Leave out attributes that say no more than their absence would."""
    return {
        name: value
        for name, value in attributes.items()
        if not name.startswith(BESIDE)
        and (name not in DEFAULTS or type(value) is not type(DEFAULTS[name]) or value != DEFAULTS[name])
    }


@every_case
def test_attributes(case: Case, telemetry: Telemetry) -> None:
    """The request span carries the figures worked out by hand, and nothing that was not known."""
    play(case, telemetry)
    expected = expected_attributes(case)
    if case.id in AFTER_THE_END:
        expected |= {"inference.legal": True, "inference.violations": 0}
    assert telling(telemetry.span("chat tiny")["attributes"]) == telling(expected)


@every_case
def test_request_span(case: Case, telemetry: Telemetry) -> None:
    """Name, kind, times and status."""
    play(case, telemetry)
    span = telemetry.span("chat tiny")
    status = "ERROR" if case.status in ("failed", "timed_out") else "UNSET"
    terminal = next(step for step in case.steps if step.event in ("complete", "cancel", "timeout", "fail"))
    assert (
        span["kind"],
        span["parent_id"],
        span["start_ns"],
        span["end_ns"],
        span["status"],
        span["status_description"],
        span["dropped_events"],
    ) == ("SERVER", None, EPOCH + case.steps[0].ns, EPOCH + terminal.ns, status, "", 0)


@every_case
def test_span_events(case: Case, telemetry: Telemetry) -> None:
    """Every boundary and note at its time, no event a token, and a violation for whatever was illegal."""
    play(case, telemetry)
    events = telemetry.span("chat tiny")["events"]
    lost = {step.event for step in case.steps if step.fate == "lost"}
    found = [
        (event["name"], event["time_ns"]) for event in events if event["name"] not in {"inference.violation", *lost}
    ]
    assert found == expected_events(case)
    violations = [event["attributes"] for event in events if event["name"] == "inference.violation"]
    expected = [] if case.id in AFTER_THE_END else list(case.violations)
    assert [attributes["inference.violation.kind"] for attributes in violations] == expected


@every_case
def test_stage_spans(case: Case, telemetry: Telemetry) -> None:
    """One gross span a stage, exact to the nanosecond; none with an unknown boundary."""
    play(case, telemetry)
    assert stage_spans(telemetry.spans()) == expected_spans(case)


@every_case
def test_points(case: Case, telemetry: Telemetry) -> None:
    """Every metric point there is: sample counts, sums, buckets and labels."""
    handle = play(case, telemetry)
    assert found_points(telemetry.points()) == expected_points(case)
    assert handle.report is not None


@every_case
def test_points_have_the_names_of_the_request(case: Case, telemetry: Telemetry) -> None:
    """Operation, provider and model are on every point about requests."""
    play(case, telemetry)
    about = ("inference.oldest_request.age", *OF_THE_PROCESS)
    points = [point for point in telemetry.points() if point["metric"] not in about]
    assert [point["metric"] for point in points if not BASE.items() <= point["attributes"].items()] == []


@every_case
def test_report(case: Case, telemetry: Telemetry) -> None:
    """The handle's own report gives the same figures, in whole nanoseconds."""
    report = play(case, telemetry).report
    assert (report["status"], report["failure_stage"], report["shape"]) == (
        case.status,
        case.failure_stage,
        case.shape,
    )
    expected: dict[str, Any] = {
        name: to_ns(value) if name != "streamed_tokens" else value for name, value in case.metrics.items()
    }
    if "tpot" in expected:
        expected["tpot"] = pytest.approx(case.metrics["tpot"] * 1e9, rel=1e-12)
    assert dict(compute_request_metrics(report)) == dict.fromkeys(METRICS) | expected
    assert sorted(report["itl"]) == sorted(to_ns(gap) for gap in case.itl)


def test_all_cases_at_once(telemetry: Telemetry) -> None:
    """The points of many requests are the sums of the points of each."""
    for case in CASES:
        play(case, telemetry)
    assert found_points(telemetry.points()) == expected_points(*CASES)
