"""A gate fails where the verdict says that the change is real, and is not judged where nothing can say so."""

from __future__ import annotations

from typing import Any

import pytest

from otel_lifecycle._analysis.comparison.figure import Comparison
from otel_lifecycle._analysis.comparison.gates import gate_of, not_judged, rule
from otel_lifecycle._analysis.comparison.verdicts import judged


def figure(**given: Any) -> Comparison:
    """Return a TTFT that rose from 1 s to 1.2 s."""
    known: dict[str, Any] = {
        "metric": "ttft.p95",
        "baseline": 1.0,
        "candidate": 1.2,
        "baseline_count": 400,
        "candidate_count": 400,
        "low": 0.1,
        "high": 0.3,
        "p": 0.01,
        "p_corrected": 0.01,
    }
    return Comparison(**{**known, **given})


@pytest.mark.parametrize(
    ("given", "verdict", "reason", "failed"),
    [
        ({}, "worse", "", True),
        ({"p_corrected": 0.2}, "no evidence", "not proven after correction", False),
        ({"p": 0.3, "p_corrected": 1.0}, "no evidence", "not proven: p = 0.30", False),
        ({"low": -0.1, "p_corrected": 0.2}, "no evidence", "within noise", False),
    ],
)
def test_a_gate_fails_only_with_the_verdict(given: dict[str, Any], verdict: str, reason: str, failed: bool) -> None:
    """An interval without 0 is no evidence, where so many figures were looked at that one of them has to be so."""
    told = judged(figure(**given), 0.1)
    assert (told.verdict, told.reason) == (verdict, reason)
    ruled = rule(gate_of("ttft.p95=+5%"), [told], evidence=True)
    assert (ruled.failed, ruled.judged) == (failed, True)
    assert ruled.reason == (f"beyond the limit, but no verdict: {reason}" if reason else "")


def test_a_gate_without_a_test_is_not_judged() -> None:
    """Neither passed nor failed, though within its limit; by the estimate it is either."""
    untested = judged(figure(p=None, low=None, high=None, reason="100 samples needed, 50 there"), 0.1)
    ruled = rule(gate_of("ttft.p95=+50%"), [untested], evidence=True)
    assert (ruled.failed, ruled.judged) == (False, False)
    assert not_judged([ruled]).splitlines() == [
        "--fail-on ttft.p95=+50% cannot be judged: 100 samples needed, 50 there",
        "--gate estimate goes by the bare estimate",
    ]
    assert rule(gate_of("ttft.p95=+5%"), [untested], evidence=False).failed
