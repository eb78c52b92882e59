"""Native histograms from the SDK to the rules: the same figures with a smaller error and fewer series."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.stack.backends import NotYet, Prometheus, eventually
from tests.stack.conftest import Stack
from tests.stack.load import Script

NATIVE, BUCKETS = "native", "buckets"
COUNT = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """Two services that served the same requests, and the TTFT of each request in seconds."""

    prometheus: Prometheus
    ttfts: list[float]

    def value(self, job: str, expr: str) -> float:
        """Evaluate an expression for one of the services."""
        return eventually(lambda: self.prometheus.value(expr.replace("JOB", f'job="{job}"')))


@pytest.fixture(scope="module")
def both(stack: Stack) -> Iterator[Both]:
    """A narrow workload: all between two edges of the buckets."""
    rng = random.Random(1)
    prefills = [rng.uniform(0.26, 0.30) for _ in range(COUNT)]
    with stack.server(NATIVE, native=True) as native, stack.server(BUCKETS) as buckets:
        for prefill in prefills:
            for server in (native, buckets):
                server.play(Script(queue=0.001, preprocessing=0.001, prefill=prefill))
        native.flush()
        buckets.flush()

        def counted() -> None:
            # Over ten minutes of this machine: how fast it is must not matter.
            for job in (NATIVE, BUCKETS):
                count = stack.prometheus.value(f'max_over_time(inference:ttft_count:increase5m{{job="{job}"}}[10m])')
                if not count:
                    raise NotYet(f"no figure of {job}")

        eventually(counted)
        yield Both(prometheus=stack.prometheus, ttfts=[prefill + 0.002 for prefill in prefills])


def test_every_figure_of_the_rules_is_there(both: Both) -> None:
    """Each mean agrees with that of buckets, and each quantile exists."""
    for name in ("ttft", "tpot", "e2e_all", "stage"):
        for figure in ("p50", "p95", "p99", "mean"):
            stage = ', inference_stage="prefill"' if name == "stage" else ""
            expr = f"max_over_time(inference:{name}_seconds:{figure}{{JOB{stage}}}[10m])"
            native, buckets = both.value(NATIVE, expr), both.value(BUCKETS, expr)
            if figure == "mean":
                assert native == pytest.approx(buckets, rel=0.05), expr


def test_quantiles_of_a_narrow_workload_are_right(both: Both, capsys: pytest.CaptureFixture[str]) -> None:
    """Within 1 % of the samples themselves; by buckets the p95 is wrong by more than a tenth."""
    exact = statistics.quantiles(both.ttfts, n=100, method="inclusive")[94]
    name = "inference_time_to_first_token_seconds"
    asked = {
        NATIVE: f"histogram_quantile(0.95, sum({name}{{JOB}}))",
        BUCKETS: f"histogram_quantile(0.95, sum by (le) ({name}_bucket{{JOB}}))",
    }
    errors = {job: both.value(job, expr) / exact - 1 for job, expr in asked.items()}
    with capsys.disabled():
        sys.stdout.write(f"\np95 of TTFT: exact {exact:.4f} s; error {errors}\n")
    assert abs(errors[NATIVE]) < 0.01
    assert abs(errors[BUCKETS]) > 0.1


def test_a_native_histogram_is_one_series(both: Both, capsys: pytest.CaptureFixture[str]) -> None:
    """In the place of its buckets, sum and count."""
    name = "inference_time_to_first_token_seconds"
    assert both.value(NATIVE, f"count({name}{{JOB}})") == 1
    assert both.prometheus.query(f'{name}_bucket{{job="{NATIVE}"}}') == {}
    everything = 'count({__name__=~"inference_.*|gen_ai_.*", JOB})'
    series = {job: both.value(job, everything) for job in (NATIVE, BUCKETS)}
    with capsys.disabled():
        sys.stdout.write(f"\nseries: {series}\n")
    assert series[NATIVE] < series[BUCKETS] / 4


def test_exemplars_come_with_native_histograms(both: Both) -> None:
    """A dot of the heatmap has the trace of its request."""

    def dots() -> None:
        found = both.prometheus.exemplars(f'inference_time_to_first_token_seconds{{job="{NATIVE}"}}')
        if not found:
            raise NotYet("no exemplar")
        assert all(len(dot["labels"]["trace_id"]) == 32 for dot in found)

    eventually(dots)
