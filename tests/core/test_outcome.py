"""Shares, thresholds and ties."""

from __future__ import annotations

from typing import Any

import pytest

from otel_lifecycle import classify_request_outcome, compute_request_metrics
from otel_lifecycle.errors import ConfigurationError, LifecycleError

from .builders import WORKED, WORKED_CANCEL, outcome, replay, stages, to_prefill, trace


@pytest.mark.parametrize(
    ("durations", "stage", "share"),
    [
        ((5, 2, 2, 1), "queue", 0.5),
        ((2, 5, 2, 1), "preprocessing", 0.5),
        ((2, 1, 5, 2), "prefill", 0.5),
        ((2, 1, 2, 5), "decode", 0.5),
        ((9, 4, 4, 3), "queue", 0.45),
        ((9, 4, 4, 4), "mixed", 9 / 21),
        ((0, 0, 0, 7), "decode", 1.0),
        ((1, 1, 1, 1), "mixed", 0.25),
        ((5, 5, 0, 0), "queue", 0.5),
        ((0, 5, 5, 0), "preprocessing", 0.5),
        ((0, 0, 5, 5), "prefill", 0.5),
        ((5, 0, 0, 5), "queue", 0.5),
    ],
)
def test_bottleneck(durations: tuple[int, int, int, int], stage: str, share: float) -> None:
    """The largest stage if its share reaches the threshold, else mixed; a tie gives the earlier one."""
    assert outcome(stages(*durations)) == {"outcome": "completed", "stage": stage, "dominant_share": share}


@pytest.mark.parametrize("unit", [1, 1_000, 10**9])
def test_share_that_is_the_threshold_reaches_it_in_any_unit(unit: int) -> None:
    """In whole nanoseconds as in seconds."""
    events = stages(9 * unit, 4 * unit, 4 * unit, 3 * unit, start=1_700_000_000 * 10**9)
    assert outcome(events) == {"outcome": "completed", "stage": "queue", "dominant_share": 0.45}


@pytest.mark.parametrize(
    ("threshold", "stage"), [(0.5, "prefill"), (0.500001, "mixed"), (1e-9, "prefill"), (1, "mixed")]
)
def test_threshold_is_an_argument(threshold: float, stage: str) -> None:
    """The same request under several thresholds; 1 is one of them."""
    assert outcome(stages(2, 1, 6, 3), dominance_threshold=threshold)["stage"] == stage


@pytest.mark.parametrize("threshold", [0, 0.0, -0.1, 1.0000001, 2, float("nan"), float("inf"), "0.5", None], ids=repr)
@pytest.mark.parametrize("events", [WORKED, WORKED_CANCEL], ids=["completed", "cancelled"])
def test_threshold_that_makes_no_sense(events: list[dict[str, Any]], threshold: Any) -> None:
    """It is refused whatever the request came to."""
    with pytest.raises(ConfigurationError):
        outcome(events, dominance_threshold=threshold)


@pytest.mark.parametrize(
    "events",
    [
        stages(0, 0, 0, 0, start=5),
        [*to_prefill(4, 4, 4), *trace(("preempt", 4), ("resume", 9), ("first_token", 9), ("complete", 9))],
    ],
    ids=["all at once", "all of it preempted"],
)
def test_sum_that_is_not_positive(events: list[dict[str, Any]]) -> None:
    """There are no shares of nothing."""
    with pytest.raises(LifecycleError):
        outcome(events)


@pytest.mark.parametrize(("event", "status"), [("cancel", "cancelled"), ("timeout", "timed_out"), ("fail", "failed")])
@pytest.mark.parametrize(
    ("state", "before"),
    [
        ("queued", WORKED[:1]),
        ("preprocessing", WORKED[:2]),
        ("prefill", WORKED[:3]),
        ("decode", WORKED[:5]),
        ("preempted", [*WORKED[:5], *trace(("preempt", 10))]),
    ],
)
def test_abnormal_end(state: str, before: list[dict[str, Any]], event: str, status: str) -> None:
    """Outcome is the status, stage the state it ended in, share None."""
    assert outcome([*before, *trace((event, 12))]) == {"outcome": status, "stage": state, "dominant_share": None}


def test_report_with_the_first_four_keys_alone() -> None:
    """It means the default shape and nothing preempted."""
    report = {key: replay(WORKED)[key] for key in ("status", "failure_stage", "timestamps", "token_times")}
    assert dict(classify_request_outcome(report, compute_request_metrics(report))) == outcome(WORKED)
