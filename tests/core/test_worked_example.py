"""The worked example of the contract, number for number."""

from __future__ import annotations

from typing import Any

import pytest

from otel_lifecycle import compute_request_metrics, summarize_workload

from .builders import WORKED, WORKED_CANCEL, WORKED_PREFILL, metrics, outcome, replay, result


def test_report_of_the_completed_request() -> None:
    """Every key of the report has the value worked out by hand."""
    report = replay(WORKED)
    preempted = report.pop("preempted")
    assert report == {
        "status": "completed",
        "failure_stage": None,
        "timestamps": {"arrival": 0, "admitted": 2, "input_ready": 3, "first_token": 7, "terminal": 12},
        "token_times": [7, 9, 11],
        "shape": "default",
        "output_tokens": 3,
        "choices": {0: {"first": 7, "last": 11, "tokens": 3}},
        "itl": [2, 2],
    }
    assert not any(preempted.values())


def test_metrics_of_the_completed_request() -> None:
    """The nine metrics, and no tenth."""
    assert metrics(WORKED) == {
        "queue_wait": 2,
        "preprocessing": 1,
        "prefill": 4,
        "ttft": 7,
        "tpot": 2,
        "decode_time": 5,
        "token_span": 4,
        "e2e": 12,
        "streamed_tokens": 3,
    }


def test_outcome_of_the_completed_request() -> None:
    """The largest stage has 5/12, less than 0.45, so the request is mixed."""
    assert outcome(WORKED) == {"outcome": "completed", "stage": "mixed", "dominant_share": 5 / 12}


def test_later_first_token_makes_prefill_dominant() -> None:
    """With the first token at 9, prefill has 6/12."""
    assert outcome(WORKED_PREFILL) == {"outcome": "completed", "stage": "prefill", "dominant_share": 0.5}


def test_report_of_the_cancelled_request() -> None:
    """It keeps the state it ended in, and only the times it had."""
    report = replay(WORKED_CANCEL)
    preempted = report.pop("preempted")
    assert report == {
        "status": "cancelled",
        "failure_stage": "preprocessing",
        "timestamps": {"arrival": 0, "admitted": 2, "terminal": 5},
        "token_times": [],
        "shape": "default",
        "output_tokens": 0,
        "choices": {},
        "itl": [],
    }
    assert not any(preempted.values())


def test_metrics_of_the_cancelled_request() -> None:
    """What did not happen is None; zero tokens are zero."""
    assert metrics(WORKED_CANCEL) == {
        "queue_wait": 2,
        "preprocessing": None,
        "prefill": None,
        "ttft": None,
        "tpot": None,
        "decode_time": None,
        "token_span": None,
        "e2e": 5,
        "streamed_tokens": 0,
    }


def test_outcome_of_the_cancelled_request() -> None:
    """A request that did not complete names the state it ended in, and has no share."""
    assert outcome(WORKED_CANCEL) == {"outcome": "cancelled", "stage": "preprocessing", "dominant_share": None}


def test_both_together() -> None:
    """The workload of the two: half succeeded, one first token, mean 7."""
    summary = summarize_workload([result(WORKED), result(WORKED_CANCEL)])
    expected: dict[str, Any] = {
        "total_requests": 2,
        "completed_requests": 1,
        "success_rate": 0.5,
        "ttft_sample_count": 1,
        "mean_ttft": 7,
        "tpot_sample_count": 1,
        "mean_tpot": 2,
        "e2e_sample_count": 2,
        "mean_e2e": 8.5,
        "completed_e2e_sample_count": 1,
        "mean_completed_e2e": 12,
        "p50_ttft": 7,
        "p95_ttft": 7,
        "p99_ttft": 7,
        "p50_tpot": 2,
        "p95_tpot": 2,
        "p99_tpot": 2,
        "p50_e2e": 8.5,
        "p95_e2e": pytest.approx(11.65),
        "p99_e2e": pytest.approx(11.93),
        "output_tokens": 3,
    }
    assert {key: summary[key] for key in expected} == expected


def test_counts_of_both_together() -> None:
    """Statuses, failures by stage and bottlenecks, with whatever zeros are listed left aside."""
    summary = summarize_workload([result(WORKED), result(WORKED_CANCEL)])
    seen = {
        key: {name: count for name, count in summary[key].items() if count}
        for key in ("status_counts", "failures_by_stage", "bottleneck_counts")
    }
    assert seen == {
        "status_counts": {"completed": 1, "cancelled": 1},
        "failures_by_stage": {"preprocessing": 1},
        "bottleneck_counts": {"mixed": 1},
    }


def test_report_with_the_first_four_keys_alone() -> None:
    """Such a report means the default shape and nothing preempted."""
    report = {key: replay(WORKED)[key] for key in ("status", "failure_stage", "timestamps", "token_times")}
    assert dict(compute_request_metrics(report)) == metrics(WORKED)
