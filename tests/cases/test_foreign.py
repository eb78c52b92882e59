"""The cases of the table as spans of another library, which the processor replays at their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.telemetry import Telemetry

from .live import BASE, EPOCH, expected_attributes, expected_points, found_points
from .notation import NOTES, Case
from .table import CASES

EVENT_LIMIT = 128
"""Events the SDK keeps on a span; a longer case is truncated and says no more."""


def tellable(case: Case) -> bool:
    """Whether plain span events of the default shape can tell the case: no notes, choices, reasons or long streams."""
    return (
        case.shape == "default"
        and len(case.steps) <= EVENT_LIMIT
        and all(step.choice == 0 and step.reason is None and step.event not in NOTES for step in case.steps)
    )


every_case = pytest.mark.parametrize("case", [case for case in CASES if tellable(case)], ids=lambda case: case.id)


def emit(case: Case, telemetry: Telemetry) -> None:
    """Make the span as a library would that knows the events' names and nothing of this package."""
    span = telemetry.tracer().start_span("generate", start_time=EPOCH + case.steps[0].ns, attributes=BASE)
    for step in case.steps:
        if step.moves:
            counted: dict[str, Any] = {} if step.count in (1, None) else {"count": step.count}
            span.add_event(step.event, counted, timestamp=EPOCH + step.ns)
    span.end(end_time=EPOCH + case.steps[-1].ns)


@every_case
def test_attributes(case: Case, make_telemetry: Callable[..., Telemetry]) -> None:
    """The span that is handed on carries the same figures as one of the request API."""
    telemetry = make_telemetry(wrap=True)
    emit(case, telemetry)
    found = telemetry.span("generate")["attributes"]
    names = {"inference.outcome", "inference.legal", "inference.failure.stage", "inference.bottleneck"}
    expected = {
        name: value
        for name, value in expected_attributes(case).items()
        if name in names or name.startswith(("inference.itl", "inference.share")) or name[10:] in case.metrics
    }
    assert {name: found.get(name) for name in expected} == expected
    absent = [name for name in ("ttft", "tpot", "prefill", "preprocessing") if name not in case.metrics]
    assert [name for name in absent if f"inference.{name}" in found] == []


@every_case
def test_points(case: Case, telemetry: Telemetry) -> None:
    """The metrics are those of the request API."""
    emit(case, telemetry)
    wasted = ("inference.tokens", (("inference.token.direction", "wasted"),))
    found, expected = found_points(telemetry.points()), expected_points(case)
    found.pop(wasted, None)
    expected.pop(wasted, None)
    assert found == expected


@pytest.mark.parametrize("case", [case for case in CASES if case.id in ("C63", "C86")], ids=lambda case: case.id)
def test_truncated(case: Case, make_telemetry: Callable[..., Telemetry]) -> None:
    """A span whose first events the SDK dropped is truncated: no figure is guessed, and nothing is called illegal."""
    telemetry = make_telemetry(wrap=True)
    emit(case, telemetry)
    assert telemetry.span("generate")["dropped_events"] > 0
    points = telemetry.points("inference.transition.violations")
    kinds = {point["attributes"]["inference.violation.kind"] for point in points}
    assert kinds <= {"truncated"}
    assert telemetry.points("inference.time_to_first_token") == []
