"""Every symptom leads to its place, with its evidence; mixed evidence names no one cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from otel_lifecycle import Slo
from otel_lifecycle._analysis.diagnosis.diagnosis import Diagnosis, diagnose
from otel_lifecycle._analysis.document import report_of
from otel_lifecycle._analysis.settings import WorkloadSettings
from otel_lifecycle._analysis.workload import gather
from otel_lifecycle._table.sources.spans import Item, MetricPoint, Span
from otel_lifecycle._table.sources.tally import ReadingTally
from tests.cli.generator import Load, simulate
from tests.cli.test_evidence import PLAIN, request_span

CALM = Load(requests=300, rate=0.2, prefill_per_token=1e-6, stalled=0, cancelled=0, failed=0)
"""Nothing stands out: no queue, a short prefill, quick tokens."""


def diagnosis_of(items: Iterable[Item], settings: WorkloadSettings = PLAIN) -> Diagnosis:
    """Return the diagnosis of some spans and points."""
    workload = gather(items, settings, ReadingTally())
    return diagnose(workload, report_of(workload, []))


def diagnosis(load: Load, settings: WorkloadSettings = PLAIN, **changes: Any) -> Diagnosis:
    """Return the diagnosis of a simulated run."""
    return diagnosis_of([request_span(request, load, **changes) for request in simulate(load)], settings)


def found(made: Diagnosis) -> dict[str, str]:
    """Return each cause with its confidence."""
    return {finding.cause: finding.confidence for finding in made.findings}


def with_changes(load: Load, **changes: Any) -> Load:
    """Return a load with some fields changed."""
    from dataclasses import replace

    return replace(load, **changes)


def made_of(number: int, told: Mapping[str, Any] | None = None, first: int = 0) -> list[Span]:
    """Return spans of calm requests, all of which bear these attributes; None takes one away."""
    every = list(simulate(with_changes(CALM, requests=first + number)))[first:]
    return [request_span(request, CALM, **(told or {})) for request in every]


def test_nothing_points_end_to_end() -> None:
    """No single stage stands out, and none is named."""
    even = dict.fromkeys(["inference.queue_wait", "inference.prefill", "inference.decode_time"], 0.3)
    made = diagnosis(CALM, PLAIN, **even, **{"inference.preprocessing": 0.2, "inference.ttft": 0.8})
    assert (made.headline, made.findings) == (
        "no single stage stands out: look end to end (client, network, and the sum of all stages)",
        (),
    )


def test_a_stage_that_takes_nearly_all_the_time_is_named_though_nothing_is_wrong() -> None:
    """Tokens come as they should; but it is not so that no stage stands out."""
    made = diagnosis(CALM)
    assert made.findings == ()
    assert made.headline.startswith("no symptom stands out; decode takes 9")
    assert made.headline.endswith("% of the time of 300 completed requests: look there first, then end to end")


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
    assert found(diagnosis(slow, WorkloadSettings(slo=Slo(tpot=0.2)))) == {}
    assert found(diagnosis(CALM, WorkloadSettings(slo=Slo(tpot=0.005)))) == {"decode": "strong"}


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


def test_the_tail_is_named_only_where_it_is_long() -> None:
    """A queue that is as long for everyone has no tail, and none is said of it."""
    waits = {"inference.queue_wait": 5.0, "inference.ttft": 6.0}
    finding = diagnosis(CALM, PLAIN, **waits).findings[0]
    assert (finding.cause, finding.symptom) == ("queueing and scheduling", "requests wait")
    assert len(finding.evidence) == 1
    steep = diagnosis(with_changes(CALM, rate=4.0, requests=600)).findings[0]
    assert ("the tail of TTFT" in steep.symptom) == any("times its p50" in line for line in steep.evidence)


UNMARKED: dict[str, Any] = {
    **dict.fromkeys(["inference.prefill", "inference.queue_wait", "inference.preprocessing", "inference.decode_time"]),
    **dict.fromkeys(f"inference.share.{stage}" for stage in ("queue", "preprocessing", "prefill", "decode")),
    "inference.bottleneck": None,
}
"""A server that marks no stage."""


def test_without_stages_the_time_after_the_first_token_is_that_of_decode() -> None:
    """TTFT and E2E tell as much."""
    made = diagnosis(with_changes(CALM, time_per_token=0.15), PLAIN, **UNMARKED)
    assert found(made) == {"decode": "strong"}
    assert made.findings[0].evidence[1].endswith("% of E2E comes after the first token, over 300 completed requests")


def test_without_stages_nothing_is_said_of_their_shares() -> None:
    """Not even that they are 0 % of 0 requests."""
    made = diagnosis(with_changes(CALM, rate=4.0, requests=600), PLAIN, **UNMARKED)
    assert "queueing and scheduling" in found(made)
    lines = [line for finding in made.findings for line in (*finding.evidence, finding.symptom)]
    assert [line for line in lines if "0%" in line or "requests wait" in line] == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("told", "headline", "line"),
    [
        (
            ("timed_out", "queue", "deadline"),
            "queueing and scheduling (strong evidence)",
            "100 of 100 requests (100%) that ended never got past the queue: 100 timed_out, deadline",
        ),
        (
            ("failed", "decode", "engine_error"),
            "failures in decode (strong evidence)",
            "100 of 100 requests (100%) that ended were broken off by the server: 100 failed, engine_error",
        ),
        (
            ("failed", "queue", "queue_full"),
            "queueing and scheduling (strong evidence)",
            "100 of 100 requests (100%) that ended never got past the queue: 100 failed, queue_full",
        ),
        (
            ("failed", "prefill", "out_of_memory"),
            "capacity (strong evidence)",
            "100 of 100 requests (100%) that ended failed for lack of memory",
        ),
    ],
)
def test_how_requests_ended_points_at_the_stage(told: tuple[str, str, str], headline: str, line: str) -> None:
    """Whether any has a first token or not."""
    outcome, stage, reason = told
    attributes = {"inference.outcome": outcome, "inference.failure.stage": stage, "inference.end.reason": reason}
    bare = dict.fromkeys(["inference.ttft", "inference.tpot"])
    made = diagnosis_of(made_of(100, {**attributes, **UNMARKED, **bare}))
    assert (made.headline, made.findings[0].evidence[0]) == (headline, line)


def test_refusals_stand_beside_what_the_others_show() -> None:
    """Half are turned away, and the other half decode slowly: neither alone."""
    refused = {
        "inference.outcome": "failed",
        "inference.failure.stage": "queue",
        "inference.end.reason": "queue_full",
        "inference.ttft": None,
        **UNMARKED,
    }
    slow = with_changes(CALM, time_per_token=0.12, requests=200)
    spans = [
        request_span(request, slow, **(refused if number % 2 else {})) for number, request in enumerate(simulate(slow))
    ]
    made = diagnosis_of(spans)
    assert made.headline == "mixed evidence, no one cause: queueing and scheduling and decode"


@pytest.mark.long
@pytest.mark.parametrize("reason", ["bad_input", "input_too_long", "client_disconnected"])
def test_what_the_client_did_points_at_no_stage(reason: str) -> None:
    """The server is not searched for a fault of its callers."""
    told = {"inference.outcome": "failed", "inference.failure.stage": "prefill", "inference.end.reason": reason}
    assert diagnosis_of([*made_of(50, told), *made_of(250, first=50)]).findings == ()


@pytest.mark.long
@pytest.mark.parametrize(("stage", "others"), [("decode", 1), ("queue", 1), ("queue", 40)])
def test_requests_that_never_end_are_a_symptom(stage: str, others: int) -> None:
    """Wherever they stayed: they did not end there, and no rate says anything of them."""
    told = {"inference.outcome": "incomplete", "inference.failure.stage": stage}
    made = diagnosis_of([*made_of(30, told), *made_of(others, first=30)])
    assert found(made) == {"requests without an end": "strong"}
    assert made.findings[0].evidence == (
        f"30 of {30 + others} requests ({30 / (30 + others):.0%}) have no terminal event",
    )


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
    assert capacity.symptom == (
        "the key-value cache is full; running requests are preempted; the batch does not grow; requests wait"
    )
    assert capacity.evidence[0] == "the key-value cache was 97% full at its peak and 78% on average (2 readings)"
    assert capacity.evidence[1] == "6 of 300 requests (2%) were preempted, 6 times"
    assert capacity.evidence[2].startswith("the batch stays at 4 while up to")
    assert "capacity" not in found(diagnosis_of([*spans, gauge("inference.cache.usage", 0.5, 1)]))


def test_a_full_cache_before_which_requests_wait_is_named_without_a_batch_size() -> None:
    """And nothing is said of a batch that nobody told of."""
    load = with_changes(CALM, rate=4.0)
    spans = [request_span(request, load) for request in simulate(load)]
    finding = next(
        one
        for one in diagnosis_of([*spans, gauge("inference.cache.usage", 0.97, 1)]).findings
        if one.cause == "capacity"
    )
    assert (finding.symptom, finding.confidence) == ("the key-value cache is full; requests wait", "moderate")


def test_memory_that_stays_at_its_peak_is_named_where_the_batch_does_not_grow() -> None:
    """Weakly: what its budget is nobody recorded."""
    load = with_changes(CALM, rate=4.0)
    spans = [request_span(request, load, **{"inference.request.batch_size": 4}) for request in simulate(load)]
    level = [gauge("inference.memory.used", 79e9, number) for number in range(60)]
    finding = next(one for one in diagnosis_of([*spans, *level]).findings if one.cause == "capacity")
    assert finding.confidence == "weak"
    assert finding.evidence[0] == "memory in use stays at its peak of 79 GB (60 readings); its budget is not recorded"
    assert "capacity" not in found(diagnosis_of([*spans, *level, gauge("inference.memory.used", 99e9, 61)]))


def test_preemptions_too_brief_to_matter_are_weak_evidence() -> None:
    """Even if they befall every request."""
    made = diagnosis(CALM, PLAIN, **{"inference.preemptions": 1, "inference.preempted": 0.001})
    assert found(made) == {"preemption": "weak"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("stray", "cause", "symptom", "line"),
    [
        (
            {"inference.preemptions": 1, "inference.preempted": 0.001},
            "preemption",
            "running requests are preempted",
            "1 of 500 requests (0.2%) was preempted, 1 time, for 0.001 s on average",
        ),
        (
            {"inference.client.disconnected": True},
            "work for clients that left",
            "requests that run on without their client",
            "1 of 500 requests (0.2%) ran to the end though the client had left",
        ),
        (
            {
                "inference.outcome": "failed",
                "inference.failure.stage": "decode",
                "inference.end.reason": "out_of_memory",
            },
            "capacity",
            "requests fail for lack of memory",
            "1 of 500 requests (0.2%) that ended failed for lack of memory",
        ),
    ],
)
def test_one_stray_request_does_not_outweigh_all_others(
    stray: dict[str, Any], cause: str, symptom: str, line: str
) -> None:
    """It is told, and weak; the queue of all the others stays the headline."""
    waits = {"inference.queue_wait": 5.0, "inference.ttft": 6.0}
    made = diagnosis_of([*made_of(1, {**stray, **waits}), *made_of(499, waits, first=1)])
    assert made.headline == "queueing and scheduling (strong evidence)"
    told = made.findings[1]
    assert (told.cause, told.confidence, told.symptom, told.evidence[0]) == (cause, "weak", symptom, line)


def test_a_gap_in_decode_points_at_a_stall() -> None:
    """How many, of how many, and the longest."""
    made = diagnosis(with_changes(CALM, stalled=0.08))
    assert found(made)["a stall in decode"] == "strong"
    assert "of 300 requests" in made.findings[0].evidence[0]


def test_preemption_is_told_from_a_stall() -> None:
    """Where the engine says that it evicted."""
    made = diagnosis(CALM, PLAIN, **{"inference.preemptions": 1, "inference.preempted": 0.5})
    assert found(made) == {"preemption": "strong"}


def wasted(tokens: float) -> MetricPoint:
    """Return a reading of the counter of tokens after the end."""
    return MetricPoint(
        name="inference.tokens",
        series="",
        attributes={"inference.token.direction": "wasted"},
        time_ns=1,
        value=tokens,
        cumulative=True,
    )


def test_tokens_for_nobody_point_at_cancellation() -> None:
    """The server goes on for clients that left."""
    left = {"inference.outcome": "cancelled", "inference.end.reason": "client_disconnected"}
    made = diagnosis_of([*made_of(60, left), *made_of(240, first=60), wasted(1800.0)])
    assert found(made) == {"work for clients that left": "strong"}
    assert made.findings[0].evidence == (
        "1,800 tokens produced after their request had ended",
        "60 of 300 requests (20%) lost their client or ran out of time",
    )


def test_answers_that_nobody_takes_point_at_cancellation() -> None:
    """They run to the end, of as many requests as it is strong evidence."""
    made = diagnosis_of([*made_of(30, {"inference.client.disconnected": True}), *made_of(270, first=30)])
    assert found(made) == {"work for clients that left": "strong"}
    assert made.findings[0].evidence == ("30 of 300 requests (10%) ran to the end though the client had left",)


def test_a_token_after_a_normal_end_says_nothing_of_clients() -> None:
    """None has left."""
    made = diagnosis_of([*made_of(300), wasted(1.0)])
    assert found(made) == {"tokens after the end": "weak"}
    assert made.findings[0].evidence == ("1 token produced after their request had ended",)
