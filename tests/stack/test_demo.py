"""`make demo` with a Collector: a real model's requests, read back from Jaeger and Prometheus."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle import semconv
from otel_lifecycle._core.lifecycle import EVENTS
from tests.stack.backends import NotYet, eventually
from tests.stack.conftest import Stack

JOB: Final = "lifecycle-demo"
ROOT: Final = Path(__file__).parents[2]
FROM_BOUNDARIES: Final = ("queue_wait", "preprocessing", "prefill", "ttft", "decode_time", "e2e")


@pytest.fixture(scope="module")
def traces(stack: Stack) -> list[list[dict[str, Any]]]:
    """Run the demo against the Collector; return the spans of every request, from Jaeger."""
    settings = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": stack.otlp,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    command = [sys.executable, "-m", "examples.demo"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    total = f'sum(inference_requests_total{{job="{JOB}"}})'

    def stored() -> list[list[dict[str, Any]]]:
        found = [stack.jaeger.spans(trace_id) for trace_id in stack.jaeger.search(JOB)]
        whole = [spans for spans in found if any(semconv.OUTCOME in span["attributes"] for span in spans)]
        if len(whole) != (counted := stack.prometheus.value(total)):
            raise NotYet(f"{len(whole)} traces, {counted} requests counted")
        return whole

    return eventually(stored)


def request_span(spans: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the one span of a trace that is the request's."""
    (span,) = (span for span in spans if semconv.OUTCOME in span["attributes"])
    return span


def test_every_outcome_of_the_demo_is_counted_as_it_is_traced(stack: Stack, traces: list[list[dict[str, Any]]]) -> None:
    """Outcomes and bottlenecks of the stored spans, counted, are Prometheus' counters."""
    spans = [request_span(trace)["attributes"] for trace in traces]
    for name in (semconv.OUTCOME, semconv.BOTTLENECK):
        label = name.replace(".", "_")
        counted = stack.prometheus.by(label, f'sum by ({label}) (inference_requests_total{{job="{JOB}"}})')
        assert counted == Counter(str(span.get(name, "")) for span in spans)
    assert {span[semconv.OUTCOME] for span in spans} == {"completed", "cancelled", "timed_out", "failed"}


def test_the_attribution_follows_from_the_stored_events(traces: list[list[dict[str, Any]]]) -> None:
    """The events that Jaeger gives back, replayed, give the durations and the outcome that the span bears."""
    for trace in traces:
        span = request_span(trace)
        events = [{"event": name, "timestamp": at} for name, at, _ in span["events"] if name in EVENTS]
        report = lifecycle.replay_request_events(events)
        metrics = lifecycle.compute_request_metrics(report)
        expected = {f"inference.{name}": metrics[name] for name in FROM_BOUNDARIES}
        seen = {name: span["attributes"].get(name) for name in expected}
        assert seen == {name: value and pytest.approx(value / 1e9) for name, value in expected.items()}
        verdict = lifecycle.classify_request_outcome(report, metrics)
        bottleneck = verdict["stage"] if report["status"] == "completed" else None
        assert (span["attributes"][semconv.OUTCOME], span["attributes"].get(semconv.BOTTLENECK)) == (
            report["status"],
            bottleneck,
        )


def test_the_stage_spans_fill_the_request(traces: list[list[dict[str, Any]]]) -> None:
    """The stages of a stored trace are children of the request and follow one another without a gap."""
    for trace in traces:
        request = request_span(trace)
        stages = [span for span in trace if span["parent"] == request["span_id"] and span["name"] != "preempted"]
        assert [stage["start"] for stage in stages] + [request["end"]] == [
            request["start"],
            *(stage["end"] for stage in stages),
        ]
