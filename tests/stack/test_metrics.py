"""The same requests summarised twice: by ``summarize_workload`` in the process, and by Prometheus."""

from __future__ import annotations

import json
import subprocess
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle import semconv
from tests.stack.backends import NotYet, eventually
from tests.stack.conftest import Stack
from tests.stack.load import PREFILL_BOUND, QUEUE_BOUND, mix

NS = 1e9
ROOT = Path(__file__).parents[2]
FIGURES = {
    "ttft": ("inference_time_to_first_token_seconds", semconv.TTFT_BUCKETS),
    "tpot": ("inference_time_per_output_token_seconds", semconv.TOKEN_GAP_BUCKETS),
    "e2e": ("inference_request_duration_seconds", semconv.DURATION_BUCKETS),
}
Results = list[tuple[Mapping[str, Any], Mapping[str, Any]]]


def one_process(stack: Stack) -> Results:
    """Play 200 requests in this process."""
    with stack.server("one") as server:
        server.play_all(mix(1, 200))
    return server.results


def two_processes(stack: Stack) -> Results:
    """Play 200 requests in two processes of one service, at the same time."""
    command = [sys.executable, "-m", "tests.stack.load", "two", stack.otlp]
    processes = [
        subprocess.Popen([*command, str(seed), "100"], cwd=ROOT, stdout=subprocess.PIPE, text=True) for seed in (2, 3)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    reports = [report for output in outputs for report in json.loads(output)]
    return [(report, lifecycle.compute_request_metrics(report)) for report in reports]


@pytest.fixture(scope="module", params=[one_process, two_processes], ids=["one process", "two processes"])
def both(request: pytest.FixtureRequest, stack: Stack) -> Any:
    """The service's name, what the process says of its requests, and what it says of their sum."""
    results = request.param(stack)
    job = request.param.__name__.split("_")[0]
    total = f'sum(inference_requests_total{{job="{job}"}})'

    def all_there() -> None:
        if (seen := stack.prometheus.value(total)) != len(results):
            raise NotYet(f"Prometheus has {seen} of {len(results)} requests")

    eventually(all_there)
    return job, results, lifecycle.summarize_workload(results)


def test_counters_are_equal(stack: Stack, both: Any) -> None:
    """Requests by outcome, by failing stage and by bottleneck, and tokens, are the very same numbers."""
    job, results, summary = both

    def by(label: str, metric: str) -> dict[str, float]:
        found = stack.prometheus.by(label, f'sum by ({label}) ({metric}{{job="{job}"}})')
        return {value: total for value, total in found.items() if value}

    requests = "inference_requests_total"
    seen = {
        "status_counts": by("inference_outcome", requests),
        "failures_by_stage": by("inference_failure_stage", requests),
        "bottleneck_counts": by("inference_bottleneck", requests),
        "output_tokens": by("inference_token_direction", "inference_tokens_total")["output"],
    }
    stages = Counter(semconv.WIRE_STAGE[report["failure_stage"]] for report, _ in results if report["failure_stage"])
    assert seen == {
        "status_counts": summary["status_counts"],
        "failures_by_stage": stages,
        "bottleneck_counts": summary["bottleneck_counts"],
        "output_tokens": summary["output_tokens"],
    }


@pytest.mark.parametrize("figure", FIGURES)
def test_means_are_equal_with_their_sample_counts(stack: Stack, both: Any, figure: str) -> None:
    """Sum over count of the histogram is the mean of the process to a millionth, of as many samples."""
    job, _, summary = both
    name, _ = FIGURES[figure]
    count = stack.prometheus.value(f'sum({name}_count{{job="{job}"}})')
    mean = stack.prometheus.value(f'sum({name}_sum{{job="{job}"}}) / sum({name}_count{{job="{job}"}})')
    assert count == summary[f"{figure}_sample_count"]
    assert mean == pytest.approx(summary[f"mean_{figure}"] / NS, rel=1e-6)


def test_the_mean_of_completed_requests_is_equal(stack: Stack, both: Any) -> None:
    """The duration of the successes alone, which failures must not flatter (C33)."""
    job, _, summary = both
    of = f'{{job="{job}", inference_outcome="completed"}}'
    name = "inference_request_duration_seconds"
    assert stack.prometheus.value(f"sum({name}_sum{of}) / sum({name}_count{of})") == pytest.approx(
        summary["mean_completed_e2e"] / NS, rel=1e-6
    )


@pytest.mark.parametrize("q", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("figure", FIGURES)
def test_quantiles_lie_in_the_right_bucket(stack: Stack, both: Any, figure: str, q: float) -> None:
    """The quantile over summed buckets lies in the bucket that the sample of that rank is in."""
    job, results, _ = both
    name, edges = FIGURES[figure]
    samples = sorted(metrics[figure] / NS for _, metrics in results if metrics[figure] is not None)
    sample = samples[max(0, -(-int(q * 100) * len(samples) // 100) - 1)]
    seen = stack.prometheus.value(f'histogram_quantile({q}, sum by (le) ({name}_bucket{{job="{job}"}}))')
    assert bisect_left(edges, seen) == bisect_left(edges, sample), (seen, sample)


def test_the_recording_rules_count_a_service_from_its_first_request(stack: Stack, both: Any) -> None:
    """Born a moment ago: plain increase() would see none of these requests, the rules see all, and the same mean."""
    job, _, summary = both
    expected = {
        "inference:ended:increase5m": summary["total_requests"],
        "inference:completed:increase5m": summary["completed_requests"],
        "inference:ttft_count:increase5m": summary["ttft_sample_count"],
        "inference:ttft_sum:increase5m": pytest.approx(summary["mean_ttft"] * summary["ttft_sample_count"] / NS),
        "inference:tpot_count:increase5m": summary["tpot_sample_count"],
    }

    def recorded() -> None:
        peaks = {}
        for rule in expected:
            found = stack.prometheus.series(f'{rule}{{job="{job}"}}', 120)
            peaks[rule] = max((float(value) for series in found for _, value in series["values"]), default=None)
        assert peaks == expected

    eventually(recorded)


def test_every_process_has_an_instance_of_its_own(stack: Stack, both: Any) -> None:
    """As many instances as processes, so no series is written by two (C72)."""
    job, _, _ = both
    instances = stack.prometheus.by("instance", f'count by (instance) (inference_requests_total{{job="{job}"}})')
    assert len(instances) == {"one": 1, "two": 2}[job]


def test_an_exemplar_of_a_slow_ttft_leads_to_its_trace(stack: Stack) -> None:
    """From a bucket of the heatmap to the one trace, whose span says the same TTFT."""
    with stack.server("exemplars") as server:
        for _ in range(5):
            server.play(PREFILL_BOUND)
        slow = server.play(QUEUE_BOUND).report
    ttft = lifecycle.compute_request_metrics(slow)["ttft"] / NS

    def exemplar() -> dict[str, Any]:
        found = stack.prometheus.exemplars('inference_time_to_first_token_seconds_bucket{job="exemplars"}')
        slowest = [each for each in found if float(each["value"]) > 0.5]
        if len(slowest) != 1:
            raise NotYet(f"{len(slowest)} exemplars over 0.5 s among {found}")
        return slowest[0]

    seen = eventually(exemplar)
    spans = stack.jaeger.trace(seen["labels"]["trace_id"], spans=5)
    (root,) = (span for span in spans if span["span_id"] == seen["labels"]["span_id"])
    assert [root["attributes"]["inference.ttft"], float(seen["value"])] == pytest.approx([ttft, ttft])
