"""Every case of the table through the pure functions, in seconds and in whole nanoseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from otel_lifecycle import classify_request_outcome, compute_request_metrics, replay_request_events
from otel_lifecycle.errors import LifecycleError

from .notation import METRICS, NS, Case, Step, to_ns
from .table import CASES

EPOCH = 1_700_000_000 * NS
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
legal_cases = pytest.mark.parametrize("case", [case for case in CASES if not case.refused], ids=lambda case: case.id)
refused_cases = pytest.mark.parametrize("case", [case for case in CASES if case.refused], ids=lambda case: case.id)


def in_ns(step: Step) -> int:
    """Return epoch nanoseconds."""
    return EPOCH + step.ns


def in_seconds(step: Step) -> float:
    """Return seconds from the script's zero."""
    return step.ns / NS


def events(case: Case, time: Callable[[Step], float] = in_ns, leave_out: str = "") -> list[dict[str, Any]]:
    """Return the case as recorded events; notes have no place in a replay."""
    return [
        {"event": step.event, "timestamp": time(step), "count": step.count, "choice": step.choice}
        for step in case.steps
        if step.moves and step.fate != leave_out
    ]


@legal_cases
def test_case_in_nanoseconds(case: Case) -> None:
    """Integers in, the same integers out: exact to the nanosecond."""
    report = replay_request_events(events(case), case.shape)
    metrics = dict(compute_request_metrics(report))
    tpot, expected_tpot = metrics.pop("tpot"), case.metric("tpot")
    assert metrics == {name: expected_ns(case, name) for name in METRICS if name != "tpot"}
    assert tpot == (None if expected_tpot is None else pytest.approx(expected_tpot * NS, rel=1e-12))
    assert (report["status"], report["failure_stage"]) == (case.status, case.failure_stage)
    assert sorted(report["itl"]) == sorted(to_ns(gap) for gap in case.itl)
    assert {state: time for state, time in report["preempted"].items() if time} == {
        state: to_ns(time) for state, time in case.preempted.items()
    }


def expected_ns(case: Case, name: str) -> int | None:
    """Return a metric of the case in nanoseconds; a count as it is."""
    value = case.metric(name)
    if value is None:
        return None
    return int(value) if name == "streamed_tokens" else to_ns(value)


@legal_cases
def test_case_in_seconds(case: Case) -> None:
    """The same in floating-point seconds, to what a float holds."""
    metrics = compute_request_metrics(replay_request_events(events(case, in_seconds), case.shape))
    assert dict(metrics) == {
        name: None if case.metric(name) is None else pytest.approx(case.metric(name), abs=1e-9) for name in METRICS
    }


@legal_cases
def test_outcome(case: Case) -> None:
    """Outcome, stage and share are those worked out by hand."""
    report = replay_request_events(events(case), case.shape)
    assert dict(classify_request_outcome(report, compute_request_metrics(report))) == {
        "outcome": case.status,
        "stage": case.stage,
        "dominant_share": None if case.share is None else pytest.approx(case.share),
    }


@refused_cases
def test_refused_case(case: Case) -> None:
    """A replay refuses the event that is marked, as what it is."""
    with pytest.raises(LifecycleError) as caught:
        replay_request_events(events(case), case.shape)
    culprit = next(step for step in case.steps if step.fate != "legal")
    error = caught.value
    assert (type(error), error.event, error.timestamp, error.kind) == (
        case.refused,
        culprit.event,
        in_ns(culprit),
        case.violations[0],
    )


@pytest.mark.parametrize("case", [case for case in CASES if case.id in ("C30", "C44")], ids=lambda case: case.id)
def test_refused_case_without_its_culprit(case: Case) -> None:
    """An event that is not applied changes nothing: without it the figures are the same."""
    report = replay_request_events(events(case, leave_out="illegal"), case.shape)
    metrics = compute_request_metrics(report)
    expected = {name: expected_ns(case, name) for name in METRICS if name != "tpot"}
    assert {name: value for name, value in metrics.items() if name != "tpot"} == expected


@pytest.mark.parametrize("case", [case for case in CASES if case.id in ("C56", "C59")], ids=lambda case: case.id)
def test_refused_case_with_its_time_unknown(case: Case) -> None:
    """A legal event whose time cannot be is an event of an unknown time."""
    recorded = events(case)
    culprit = next(place for place, step in enumerate(case.steps) if step.fate == "lost")
    recorded[culprit]["timestamp"] = None
    metrics = compute_request_metrics(replay_request_events(recorded, case.shape))
    assert dict(metrics) == {name: expected_ns(case, name) for name in METRICS}


@every_case
def test_the_case_itself(case: Case) -> None:
    """Hand-made numbers agree among themselves: TTFT and E2E are sums, TPOT is the formula, shares fit."""
    value = case.metric
    parts = [value(name) for name in ("queue_wait", "preprocessing", "prefill")]
    known = [part for part in parts if part is not None]
    if value("ttft") is not None and len(known) == 3:
        assert value("ttft") == pytest.approx(sum(known))
    ttft, decode, e2e = value("ttft"), value("decode_time"), value("e2e")
    if ttft is not None and decode is not None:
        assert e2e == pytest.approx(ttft + decode)
    tokens = sum(step.count or 0 for step in case.steps if step.event in ("token", "first_token", "output"))
    illegal = sum(step.count or 0 for step in case.steps if step.fate == "illegal")
    assert value("streamed_tokens") == (None if case.shape == "pooling" else tokens - illegal)
