"""The figures of many requests."""

from __future__ import annotations

from typing import Any

import pytest

from otel_lifecycle import summarize_workload
from otel_lifecycle.errors import LifecycleError

from .builders import WORKED, result, stages, to_prefill, trace

CANCELLED_EARLY = result(trace(("arrive", 0), ("cancel", 3)))
POOLED = result(trace(("arrive", 0), ("admit", 1), ("input_ready", 2), ("complete", 5)), "pooling")
MEANS = ("mean_ttft", "mean_tpot", "mean_e2e", "mean_completed_e2e")
PERCENTILES = tuple(f"{rank}_{name}" for rank in ("p50", "p95", "p99") for name in ("ttft", "tpot", "e2e"))


def with_ttft(ttft: Any) -> Any:
    """Return a completed one-token request whose first token came so late."""
    return result(stages(0, 0, ttft, 1))


def of(summary: Any, *keys: str) -> dict[str, Any]:
    """Return some keys of a summary."""
    return {key: summary[key] for key in keys}


def nonzero(counts: Any) -> dict[Any, int]:
    """Return counts without those that are zero."""
    return {name: count for name, count in counts.items() if count}


def test_no_requests() -> None:
    """Nothing is None, not 0, 1 or NaN; counts of nothing are 0."""
    summary = summarize_workload([])
    samples = tuple(f"{name}_sample_count" for name in ("ttft", "tpot", "e2e", "completed_e2e"))
    counts = ("total_requests", "completed_requests", *samples)
    assert of(summary, *counts, "output_tokens") == dict.fromkeys((*counts, "output_tokens"), 0)
    assert of(summary, "success_rate", *MEANS, *PERCENTILES) == dict.fromkeys(("success_rate", *MEANS, *PERCENTILES))
    assert [nonzero(summary[key]) for key in ("status_counts", "failures_by_stage", "bottleneck_counts")] == [{}] * 3


def test_nothing_but_failures() -> None:
    """Success is a number: 0.0; what no request had stays None with a count of 0."""
    summary = summarize_workload([result(trace(("arrive", 0), ("fail", 1)))] * 10)
    keys = ("total_requests", "success_rate", "ttft_sample_count", "mean_ttft", "mean_e2e", "mean_completed_e2e")
    assert of(summary, *keys) == {
        "total_requests": 10,
        "success_rate": 0.0,
        "ttft_sample_count": 0,
        "mean_ttft": None,
        "mean_e2e": 1,
        "mean_completed_e2e": None,
    }


def test_every_mean_has_its_own_sample_count() -> None:
    """A request without a metric is not in the mean of it."""
    summary = summarize_workload([result(WORKED), with_ttft(3), CANCELLED_EARLY, POOLED])
    keys = ("ttft", "tpot", "e2e", "completed_e2e")
    assert {key: (summary[f"{key}_sample_count"], summary[f"mean_{key}"]) for key in keys} == {
        "ttft": (2, 5),
        "tpot": (1, 2),
        "e2e": (4, (12 + 4 + 3 + 5) / 4),
        "completed_e2e": (3, 7),
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7], (7, 7, 7)),
        ([1, 2], (1.5, 1.95, 1.99)),
        ([4, 1, 3, 2], (2.5, 3.85, 3.97)),
        ([10, 20, 30, 40, 50], (30, 48, 49.6)),
        ([5, 5, 5], (5, 5, 5)),
        (list(range(101)), (50, 95, 99)),
    ],
)
def test_percentiles_interpolate_linearly(values: list[int], expected: tuple[float, float, float]) -> None:
    """By hand: the value at (n - 1) * p, on the line between its two neighbours, whatever the order they came in."""
    summary = summarize_workload([with_ttft(value) for value in values])
    assert (summary["p50_ttft"], summary["p95_ttft"], summary["p99_ttft"]) == pytest.approx(expected)


def test_percentiles_of_tpot_and_e2e() -> None:
    """Each over the requests that have it."""
    pairs = [
        result([*to_prefill(0, 0, 0), *trace(("first_token", 1), ("token", 1 + gap), ("complete", 10 * gap))])
        for gap in (1, 2, 3, 4)
    ]
    summary = summarize_workload([*pairs, CANCELLED_EARLY])
    assert of(summary, "p50_tpot", "p95_tpot", "p99_tpot", "p50_e2e", "p95_e2e", "p99_e2e") == {
        "p50_tpot": 2.5,
        "p95_tpot": pytest.approx(3.85),
        "p99_tpot": pytest.approx(3.97),
        "p50_e2e": 20,
        "p95_e2e": pytest.approx(38),
        "p99_e2e": pytest.approx(39.6),
    }


def test_epoch_nanoseconds_lose_nothing() -> None:
    """Means of large integers are exact where they can be."""
    start = 1_700_000_000_000_000_001
    summary = summarize_workload([result(stages(0, 0, ttft, 1, start=start)) for ttft in (3, 5)])
    assert of(summary, "mean_ttft", "p50_ttft", "mean_e2e") == {"mean_ttft": 4, "p50_ttft": 4, "mean_e2e": 5}


def test_counts_by_status_stage_and_bottleneck() -> None:
    """Every request has one status; every abnormal end one stage; every attributed request one bottleneck."""
    summary = summarize_workload(
        [
            result(WORKED),
            with_ttft(3),
            with_ttft(4),
            result([*to_prefill(), *trace(("fail", 4))]),
            result([*to_prefill(), *trace(("timeout", 4))]),
            result(trace(("arrive", 0), ("admit", 1), ("cancel", 2))),
        ]
    )
    assert [nonzero(summary[key]) for key in ("status_counts", "failures_by_stage", "bottleneck_counts")] == [
        {"completed": 3, "failed": 1, "timed_out": 1, "cancelled": 1},
        {"prefill": 2, "preprocessing": 1},
        {"mixed": 1, "prefill": 2},
    ]


def test_output_tokens_of_all_requests() -> None:
    """Those of requests that did not complete too; unknown and pooled ones add nothing."""
    unknown = result([*to_prefill(), *trace(("output", 5, {"count": None}), ("complete", 5))])
    cut_off = result([*to_prefill(), *trace(("first_token", 7, {"count": 2}), ("cancel", 9))])
    assert summarize_workload([result(WORKED), cut_off, unknown, POOLED])["output_tokens"] == 5


def test_order_changes_nothing() -> None:
    """A workload is a set of requests."""
    requests = [result(WORKED), with_ttft(3), CANCELLED_EARLY, POOLED]
    assert summarize_workload(requests) == summarize_workload(requests[::-1])


def test_throughput_of_a_window() -> None:
    """Completed requests, and tokens of all, that ended in the window, per unit of time."""
    requests = [
        result(WORKED),  # ends at 12, 3 tokens
        with_ttft(30),  # ends at 31, 1 token
        result([*to_prefill(), *trace(("first_token", 7, {"count": 4}), ("cancel", 9))]),
        result([*to_prefill(), *trace(("first_token", 7, {"count": 4}), ("cancel", 50))]),
    ]
    summary = summarize_workload(requests, window=(8, 33))
    assert of(summary, "request_throughput", "token_throughput") == {
        "request_throughput": 2 / 25,
        "token_throughput": 8 / 25,
    }


def test_empty_window() -> None:
    """A window in which nothing ended has a throughput, and it is 0."""
    summary = summarize_workload([result(WORKED)], window=(100, 110))
    assert of(summary, "request_throughput", "token_throughput") == {"request_throughput": 0, "token_throughput": 0}


def test_without_a_window_there_is_no_throughput() -> None:
    """It has no time to be divided by."""
    summary = summarize_workload([result(WORKED)])
    assert (summary.get("request_throughput"), summary.get("token_throughput")) == (None, None)


@pytest.mark.parametrize("window", [(5, 5), (6, 5), (float("nan"), 5), (0, float("inf"))], ids=repr)
def test_window_that_makes_no_sense(window: tuple[float, float]) -> None:
    """A window has a finite start and a later end."""
    with pytest.raises(LifecycleError):
        summarize_workload([result(WORKED)], window=window)


def test_request_at_a_bound_is_in_one_of_two_adjacent_windows() -> None:
    """Windows side by side count it once."""
    windows = [summarize_workload([result(WORKED)], window=window) for window in ((0, 12), (12, 24))]
    assert sum(window["request_throughput"] for window in windows) == 1 / 12


def test_request_without_shares_has_no_bottleneck() -> None:
    """Stages that last nothing together are refused by the classifier, and do not stop a summary."""
    summary = summarize_workload([result(stages(0, 0, 0, 0)), result(WORKED)])
    assert (summary["completed_requests"], nonzero(summary["bottleneck_counts"])) == (2, {"mixed": 1})
