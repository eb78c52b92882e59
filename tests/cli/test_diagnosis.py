"""Every symptom leads to its place, with its evidence; mixed evidence names no one cause."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from otel_lifecycle import Slo
from otel_lifecycle._cli.diagnosis import Diagnosis, diagnose
from otel_lifecycle._cli.evidence.document import report_of
from otel_lifecycle._cli.evidence.workload import Settings, gather
from otel_lifecycle._cli.sources.spans import Item, MetricPoint
from otel_lifecycle._cli.sources.tally import Tally
from tests.cli.generator import Load, simulate
from tests.cli.test_evidence import PLAIN, request_span

CALM = Load(requests=300, rate=0.2, prefill_per_token=1e-6, stalled=0, cancelled=0, failed=0)
"""Nothing stands out: no queue, a short prefill, quick tokens."""


def diagnosis_of(items: Iterable[Item], settings: Settings = PLAIN) -> Diagnosis:
    """Return the diagnosis of some spans and points."""
    workload = gather(items, settings, Tally())
    return diagnose(workload, report_of(workload, []))


def diagnosis(load: Load, settings: Settings = PLAIN, **changes: Any) -> Diagnosis:
    """Return the diagnosis of a simulated run."""
    return diagnosis_of([request_span(request, load, **changes) for request in simulate(load)], settings)


def found(made: Diagnosis) -> dict[str, str]:
    """Return each cause with its confidence."""
    return {finding.cause: finding.confidence for finding in made.findings}


def with_changes(load: Load, **changes: Any) -> Load:
    """Return a load with some fields changed."""
    from dataclasses import replace

    return replace(load, **changes)


def test_nothing_points_end_to_end() -> None:
    """No single stage stands out, and none is named."""
    made = diagnosis(CALM)
    assert (made.headline, made.findings) == (
        "no single stage stands out: look end to end (client, network, and the sum of all stages)",
        (),
    )


def test_too_few_requests_are_not_diagnosed() -> None:
    """Nineteen requests prove nothing."""
    assert diagnosis(with_changes(CALM, requests=19)).headline == "too few requests to diagnose (19 ended, 20 needed)"
    assert diagnosis_of([]).headline == "no request to judge"


def test_ttft_that_rises_with_the_prompt_points_at_prefill() -> None:
    """With the fitted slope, its fit and its number of requests."""
    made = diagnosis(with_changes(CALM, prefill_per_token=0.004))
    assert found(made) == {"prefill or attention": "strong"}
    assert made.headline == "prefill or attention (strong evidence)"
    finding = made.findings[0]
    assert finding.look_at.startswith("prefill")
    assert "s per 1000 input tokens" in finding.evidence[0]
    assert "300 requests" in finding.evidence[0]


def test_ttft_alone_shows_the_slope() -> None:
    """A server that marks no stage has a TTFT all the same."""
    gone = dict.fromkeys(["inference.prefill", "inference.queue_wait", "inference.preprocessing"])
    shares = dict.fromkeys(f"inference.share.{stage}" for stage in ("queue", "preprocessing", "prefill", "decode"))
    made = diagnosis(with_changes(CALM, prefill_per_token=0.004), PLAIN, **gone, **shares)
    assert found(made) == {"prefill or attention": "strong"}
    assert made.findings[0].symptom == "TTFT rises with the length of the prompt"


def test_slow_tokens_point_at_decode() -> None:
    """Against 50 ms, or the SLO where there is one."""
    slow = with_changes(CALM, time_per_token=0.12)
    assert found(diagnosis(slow)) == {"decode": "strong"}
    assert found(diagnosis(slow, Settings(slo=Slo(tpot=0.2)))) == {}
    assert found(diagnosis(CALM, Settings(slo=Slo(tpot=0.005)))) == {"decode": "strong"}


def test_a_long_tail_with_many_in_flight_points_at_the_queue() -> None:
    """Waiting dominates, and TTFT rises with the crowd."""
    made = diagnosis(with_changes(CALM, rate=4.0, requests=600))
    assert found(made)["queueing and scheduling"] == "strong"
    assert any("in flight on arrival" in line for line in made.findings[0].evidence)


def test_two_places_that_take_their_time_are_mixed() -> None:
    """Neither is named as the one cause, though one is surer."""
    load = with_changes(CALM, time_per_token=0.12, prefill_per_token=0.012, slots=100)
    made = diagnosis(load)
    assert found(made) == {"prefill or attention": "strong", "decode": "moderate"}
    assert made.headline == "mixed evidence, no one cause: prefill or attention and decode"


def test_requests_without_a_dominant_stage_are_mixed() -> None:
    """A hint is a hint, where most requests are mixed themselves."""
    made = diagnosis(with_changes(CALM, stalled=0.08), PLAIN, **{"inference.bottleneck": "mixed"})
    assert made.headline == (
        "mixed evidence, no one cause: 300 of 300 requests have no dominant stage; first, a stall in decode"
    )


def test_slow_preparation_points_at_preprocessing() -> None:
    """A tokeniser that takes as long as the model."""
    made = diagnosis_of(
        request_span(
            request,
            CALM,
            **{"inference.preprocessing": 2.0, "inference.ttft": 2.0 + request.first_token - request.arrive},
        )
        for request in simulate(CALM)
    )
    assert found(made) == {"preprocessing": "strong"}


def gauge(name: str, value: float, number: int) -> MetricPoint:
    """Return a reading of a gauge."""
    return MetricPoint(name=name, series="", attributes={}, time_ns=number, value=value)


def test_full_memory_and_a_batch_that_does_not_grow_point_at_capacity() -> None:
    """The cache is full, requests are evicted, and the batch stays where it is."""
    load = with_changes(CALM, rate=4.0)
    spans = [
        request_span(request, load, **{"inference.request.batch_size": 4, "inference.preemptions": int(n % 50 == 0)})
        for n, request in enumerate(simulate(load))
    ]
    made = diagnosis_of([*spans, gauge("inference.cache.usage", 0.97, 1), gauge("inference.cache.usage", 0.6, 2)])
    capacity = next(finding for finding in made.findings if finding.cause == "capacity")
    assert capacity.confidence == "strong"
    assert capacity.evidence[0] == "the key-value cache was 97% full at its peak (2 readings)"
    assert capacity.evidence[1] == "6 running requests were preempted, 6 times"
    assert capacity.evidence[2].startswith("the batch stays at 4 while up to")
    assert "capacity" not in found(diagnosis_of([*spans, gauge("inference.cache.usage", 0.5, 1)]))


def test_a_gap_in_decode_points_at_a_stall() -> None:
    """How many, of how many, and the longest."""
    made = diagnosis(with_changes(CALM, stalled=0.08))
    assert found(made)["a stall in decode"] == "strong"
    assert "of 300 sampled requests" in made.findings[0].evidence[0]


def test_preemption_is_told_from_a_stall() -> None:
    """Where the engine says that it evicted."""
    made = diagnosis(CALM, PLAIN, **{"inference.preemptions": 1, "inference.preempted": 0.5})
    assert found(made) == {"preemption": "strong"}


@pytest.mark.parametrize("told_by", ["metric", "disconnect"])
def test_tokens_for_nobody_point_at_cancellation(told_by: str) -> None:
    """The server goes on for clients that left."""
    wasted = MetricPoint(
        name="inference.tokens",
        series="",
        attributes={"inference.token.direction": "wasted"},
        time_ns=1,
        value=120.0,
        cumulative=True,
    )
    items: list[Item] = [request_span(request, CALM) for request in simulate(CALM)]
    if told_by == "metric":
        items.append(wasted)
    else:
        items[0] = request_span(next(simulate(CALM)), CALM, **{"inference.client.disconnected": True})
    made = diagnosis_of(items)
    assert found(made) == {"work for clients that left": "strong"}
    assert (
        made.findings[0].evidence
        == {
            "metric": ("120 tokens produced after their request had ended",),
            "disconnect": ("1 request ran to the end though the client had left",),
        }[told_by]
    )
