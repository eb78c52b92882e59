"""The figures of a workload are those of the core, and stay so in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from otel_lifecycle._cli.evidence.document import report_of
from otel_lifecycle._cli.evidence.rows import COLUMNS, INDEX, Sample
from otel_lifecycle._cli.evidence.sketch import RELATIVE_ERROR, Sketch
from otel_lifecycle._cli.evidence.timeline import BINS, WorkloadTimeline
from otel_lifecycle._cli.evidence.workload import OPEN, Workload, WorkloadSettings, gather

from otel_lifecycle import Slo, compute_request_metrics, replay_request_events, summarize_workload
from otel_lifecycle._cli.sources.otlp_json import span
from otel_lifecycle._cli.sources.spans import Span
from otel_lifecycle._cli.sources.tally import ReadingTally
from tests.cli.generator import START_NS, Load, Simulated, simulate, spans_of

LOAD = Load(requests=400, cancelled=0.1, failed=0.05)
PLAIN = WorkloadSettings()


def workload_of(load: Load, chosen: WorkloadSettings = PLAIN, **changes: Any) -> Workload:
    """Return the workload of a simulated run."""
    return gathered((request_span(request, load, **changes) for request in simulate(load)), chosen)


def gathered(spans: Iterable[Span], chosen: WorkloadSettings = PLAIN) -> Workload:
    """Return the workload of some spans."""
    return gather(spans, chosen, ReadingTally())


def request_span(request: Simulated, load: Load, **changes: Any) -> Span:
    """Return the span of a simulated request, with some of its attributes changed; None takes one away."""
    made = span(spans_of(request, load)[0], {})
    attributes = {**made.attributes, **changes}
    return Span(
        trace_id=made.trace_id,
        span_id=made.span_id,
        parent_id="",
        name=made.name,
        start_ns=made.start_ns,
        end_ns=made.end_ns,
        attributes={key: value for key, value in attributes.items() if value is not None},
        resource={},
        events=made.events,
    )


def core_result(request: Simulated) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the core makes of the same request, from its events."""
    events = [
        {"event": name, "timestamp": time}
        for name, time in (
            ("arrive", request.arrive),
            ("admit", request.admit),
            ("input_ready", request.input_ready),
            ("first_token", request.first_token),
        )
    ]
    events.append({"event": "token", "timestamp": request.end, "count": request.output_tokens - 1})
    events.append({"event": request.event, "timestamp": request.end})
    report = replay_request_events(events)
    return report, compute_request_metrics(report)


def test_figures_are_those_of_the_core() -> None:
    """Rates, counts, means and quantiles equal ``summarize_workload`` of the same requests."""
    window = (0.0, 1e6)
    summary = summarize_workload([core_result(request) for request in simulate(LOAD)], window)
    report = report_of(workload_of(LOAD), [])
    latency, output = report["latency"], report["output"]
    assert report["exact"]
    assert report["requests"]["total"] == summary["total_requests"]
    assert report["requests"]["completed"] == summary["completed_requests"]
    assert output["success_rate"] == summary["success_rate"]
    assert output["output_tokens"] == summary["output_tokens"]
    assert report["stages"]["bottlenecks"] == dict(summary["bottleneck_counts"])
    for name in ("ttft", "tpot", "e2e"):
        assert latency[name]["count"] == summary[f"{name}_sample_count"]
        told = [latency[name][figure] for figure in ("mean", "p50", "p95", "p99")]
        core = [summary[f"{figure}_{name}"] for figure in ("mean", "p50", "p95", "p99")]
        assert told == pytest.approx(core, rel=1e-9)
    seconds = report["window"]["seconds"]
    assert output["request_throughput"] * seconds == pytest.approx(summary["request_throughput"] * window[1])
    assert output["token_throughput"] * seconds == pytest.approx(summary["token_throughput"] * window[1])


def test_beyond_the_sample_quantiles_keep_their_stated_error() -> None:
    """Counts, means and extremes stay exact; quantiles are within half a percent, and the report says so."""
    exact, sketched = (report_of(workload_of(LOAD, WorkloadSettings(sample=size)), []) for size in (400, 100))
    assert (exact["relative_error"], sketched["relative_error"]) == (0.0, RELATIVE_ERROR)
    for name in ("ttft", "tpot", "e2e"):
        for figure in ("count", "mean", "max"):
            assert sketched["latency"][name][figure] == exact["latency"][name][figure]
        for figure in ("p50", "p95"):
            # Linear interpolation between two samples lies between the two bins.
            assert sketched["latency"][name][figure] == pytest.approx(exact["latency"][name][figure], rel=0.03)


@given(st.lists(st.floats(1e-8, 1e6), min_size=1, max_size=300), st.sampled_from([0.0, 0.1, 0.5, 0.95, 0.99, 1.0]))
def test_a_sketch_is_within_its_error_of_a_sample(values: list[float], q: float) -> None:
    """Any quantile of any samples is that near to the sample of its rank."""
    sketch = Sketch()
    sketch.add(np.array(values))
    rank = sorted(values)[math.floor(q * (len(values) - 1))]
    found = sketch.quantile(q)
    assert found is not None
    assert found == pytest.approx(rank, rel=RELATIVE_ERROR * 1.01)


@given(st.lists(st.one_of(st.just(0.0), st.just(math.nan), st.floats(1e-6, 1e3)), max_size=50))
def test_what_is_unknown_is_no_sample(values: list[float]) -> None:
    """NaN is left out, zero is a sample; the mean of none is None."""
    sketch = Sketch()
    sketch.add(np.array(values, dtype=np.float64))
    known = [value for value in values if not math.isnan(value)]
    assert sketch.n == len(known)
    assert sketch.mean == (pytest.approx(sum(known) / len(known)) if known else None)
    assert sketch.quantile(0.0) == (pytest.approx(min(known), rel=RELATIVE_ERROR * 1.01) if known else None)


def rows(starts: list[float], lengths: list[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return rows of requests that only have times."""
    made = np.full((len(starts), len(COLUMNS)), np.nan)
    made[:, INDEX["start"]] = np.array(starts) + 1.7e9
    made[:, INDEX["end"]] = made[:, INDEX["start"]] + lengths
    made[:, INDEX["completed"]] = 1
    made[:, INDEX["whole_breakdown"]] = 0
    return made


TIMES = st.lists(st.tuples(st.floats(0, 20_000), st.floats(0, 600)), min_size=1, max_size=60)


@settings(deadline=None)
@given(TIMES, st.integers(1, 5))
def test_a_timeline_loses_nothing_while_it_widens(times: list[tuple[float, float]], parts: int) -> None:
    """However the requests come in, arrivals, ends and the time spent in flight add up."""
    timeline = WorkloadTimeline()
    for part in range(parts):
        chosen = times[part::parts]
        if chosen:
            timeline.add(rows([start for start, _ in chosen], [length for _, length in chosen]))
    assert timeline.field("arrivals").sum() == len(times)
    assert timeline.field("ends").sum() == len(times)
    assert len(timeline.field("arrivals")) <= BINS
    spent = float(timeline.in_flight().sum() * timeline.width)
    assert spent == pytest.approx(sum(length for _, length in times), abs=1e-3 * len(times))


def test_an_impossible_time_does_not_stretch_the_timeline() -> None:
    """A clock that was never set would make every bin a year long."""
    timeline = WorkloadTimeline()
    made = rows([0.0, 10.0], [1.0, 1.0])
    made[0, INDEX["start"]] = 5.0
    timeline.add(made)
    assert timeline.field("arrivals").sum() == 1
    assert timeline.width < 1


def test_a_sample_is_uniform() -> None:
    """Early and late requests are kept alike, whatever the batches."""
    sample = Sample(500)
    for batch in np.array_split(np.arange(20_000, dtype=np.float64), 37):
        made = np.zeros((len(batch), len(COLUMNS)))
        made[:, INDEX["start"]] = batch
        sample.add(made)
    kept = sample.column("start")
    assert (len(kept), len(np.unique(kept)), sample.complete) == (500, 500, False)
    # The mean of 500 of 0..19999 lies within 4 standard errors of the middle.
    assert abs(float(kept.mean()) - 10_000) < 4 * 20_000 / math.sqrt(12 * 500)


def test_warm_up_and_parts_of_requests_stand_apart() -> None:
    """They are in no figure of the live traffic."""
    load = Load(requests=30, seed=5)
    spans = [
        *(request_span(one, LOAD) for one in simulate(Load(requests=100))),
        *(request_span(one, load, **{"inference.traffic": "warmup", "inference.ttft": 50.0}) for one in simulate(load)),
        *(request_span(one, load, **{"inference.request.role": "prefill"}) for one in simulate(load)),
    ]
    report = report_of(gathered(spans), [])
    assert report["requests"]["total"] == 100
    assert report["latency"]["ttft"]["max"] < 50
    assert [(part["name"], part["total"], part["ttft"]["p99"]) for part in report["apart"]] == [("warmup", 30, 50.0)]
    assert [(role["name"], role["total"], role["prefill"]["count"]) for role in report["roles"]] == [
        ("prefill", 30, 30)
    ]


def test_a_window_counts_what_ended_in_it() -> None:
    """After its start, up to and with its end; throughput is over its length."""
    requests = sorted(simulate(Load(requests=50, cancelled=0, failed=0)), key=lambda request: request.end)
    ends = [START_NS + round(request.end * 1e9) for request in requests]
    window = (ends[9], ends[29])
    report = report_of(workload_of(Load(requests=50, cancelled=0, failed=0), WorkloadSettings(window=window)), [])
    assert report["requests"]["completed"] == 20
    assert report["window"]["requests_outside"] == 30
    assert report["output"]["request_throughput"] == pytest.approx(20 / ((ends[29] - ends[9]) * 1e-9))


EVEN = Load(requests=50, cancelled=0, failed=0)


def epoch_ns(seconds: float) -> int:
    """Return an instant of a simulated run."""
    return START_NS + round(seconds * 1e9)


def test_an_open_end_of_a_window_is_that_of_the_requests_kept() -> None:
    """Not the year 1970, and not 2262: throughput is over the time there was."""
    requests = sorted(simulate(EVEN), key=lambda request: request.end)
    cut, first = requests[29].end, min(request.arrive for request in requests)
    for window, kept, seconds in (
        ((epoch_ns(cut), OPEN[1]), 20, requests[-1].end - cut),
        ((OPEN[0], epoch_ns(cut)), 30, cut - first),
        (OPEN, 50, requests[-1].end - first),
    ):
        report = report_of(workload_of(EVEN, WorkloadSettings(window=window)), [])
        assert report["requests"]["completed"] == kept
        assert report["window"]["seconds"] == pytest.approx(seconds, abs=1e-5)
        assert report["output"]["request_throughput"] == pytest.approx(kept / seconds, rel=1e-5)


def test_in_flight_in_a_window_are_also_those_that_end_after_it() -> None:
    """And of those that came before it only the time within it counts."""
    requests = list(simulate(Load(requests=300, cancelled=0, failed=0)))
    start, end = (float(np.quantile([request.end for request in requests], q)) for q in (0.3, 0.4))
    spent = sum(max(0.0, min(request.end, end) - max(request.arrive, start)) for request in requests)
    spans = [request_span(request, LOAD) for request in requests]
    report = report_of(gathered(spans, WorkloadSettings(window=(epoch_ns(start), epoch_ns(end)))), [])
    assert report["requests"]["total"] == 30
    # To half a bin of the timeline, at the window's start.
    assert report["output"]["in_flight_mean"] == pytest.approx(spent / (end - start), rel=0.02)
    whole = report_of(gathered(spans), [])
    total = sum(request.end - request.arrive for request in requests)
    assert whole["output"]["in_flight_mean"] == pytest.approx(total / whole["window"]["seconds"], rel=1e-6)


@pytest.mark.parametrize(
    ("start", "end"),
    [(None, 8_650_000_000), (8_650_000_000, 8_650_000_000), (1_000_000_000, None), (5, 6)],
    ids=["ends in 2244", "is in 2244", "starts in 2001", "is in 1970"],
)
@pytest.mark.parametrize("place", [0, 30])
def test_one_wrong_clock_is_counted_and_left_out_of_the_window(start: int | None, end: int | None, place: int) -> None:
    """Throughput, the level in flight and the pattern of arrivals stay those of all others."""
    spans = [request_span(request, EVEN) for request in simulate(replace(EVEN, requests=31))]
    wrong = spans[place]
    instants: dict[str, Any] = {"start_ns": wrong.start_ns, "end_ns": wrong.end_ns}
    instants |= {} if start is None else {"start_ns": start * 10**9}
    instants |= {} if end is None else {"end_ns": end * 10**9}
    right = gathered([span for span in spans if span is not wrong])
    spans[place] = replace(wrong, events=(), **instants)
    workload = gathered(spans)
    report, expected = report_of(workload, []), report_of(right, [])
    assert report["requests"]["total"] == 31
    assert report["window"]["seconds"] == expected["window"]["seconds"]
    assert report["output"]["in_flight_mean"] == pytest.approx(expected["output"]["in_flight_mean"])
    assert report["conditions"]["arrivals"]["pattern"] == expected["conditions"]["arrivals"]["pattern"]
    trouble = {item["kind"]: item for item in report["trouble"]}
    assert trouble["clock_skew"]["count"] == 1
    assert "far from all others; not in the window" in trouble["clock_skew"]["places"][0]


def test_runs_months_apart_are_no_wrong_clocks() -> None:
    """The window reaches from one to the other."""
    spans = [request_span(request, EVEN) for request in simulate(EVEN)]
    far = 10**16
    later = [replace(span, start_ns=span.start_ns + far, end_ns=span.end_ns + far, events=()) for span in spans]
    report = report_of(gathered([*spans, *later]), [])
    assert report["window"]["seconds"] > far * 1e-9
    assert report["trouble"] == []


def test_e2e_of_the_completed_is_told_from_that_of_all() -> None:
    """A request that failed after 0.75 s is not a quick answer (2.5 s, not the mean of both)."""
    ok, bad = list(simulate(replace(EVEN, requests=2)))
    spans = [
        request_span(ok, EVEN, **{"inference.e2e": 2.5}),
        request_span(bad, EVEN, **{"inference.e2e": 0.75, "inference.outcome": "failed"}),
    ]
    for sample in (2, 1):
        report = report_of(gathered(spans, WorkloadSettings(sample=sample, group_by="model")), [])
        latency = report["latency"]
        assert {name: (latency[name]["count"], latency[name]["mean"]) for name in ("e2e_completed", "e2e")} == {
            "e2e_completed": (1, 2.5),
            "e2e": (2, 1.625),
        }
        assert latency["e2e_completed"]["p50"] == pytest.approx(2.5, rel=RELATIVE_ERROR)
        assert report["groups"][0]["e2e_completed"]["count"] == 1


def test_groups_add_up_to_the_whole() -> None:
    """Every live request is in one group, by a short name or any attribute."""
    for key in ("outcome", "inference.outcome"):
        report = report_of(workload_of(LOAD, WorkloadSettings(group_by=key)), [])
        assert {group["name"]: group["total"] for group in report["groups"]} == {
            outcome: report["requests"][outcome] for outcome in ("completed", "cancelled", "failed")
        }


def test_goodput_is_met_over_judged() -> None:
    """An SLO of the command judges each request as the server would have."""
    slo = Slo(ttft=0.5)
    met = sum(request.event == "complete" and request.first_token - request.arrive <= 0.5 for request in simulate(LOAD))
    report = report_of(workload_of(LOAD, WorkloadSettings(slo=slo)), [])
    assert (report["output"]["goodput"], report["output"]["slo_judged"]) == (met / 400, 400)


def test_missing_is_absent_and_never_zero() -> None:
    """A workload without token times has no TPOT, no ITL and no bottleneck, and its success rate all the same."""
    gone: dict[str, Any] = dict.fromkeys(
        ["inference.tpot", "inference.ttft", *(f"inference.itl.{name}" for name in ("p50", "p95", "p99", "max"))]
        + [f"inference.share.{stage}" for stage in ("queue", "preprocessing", "prefill", "decode")]
        + ["inference.bottleneck"]
    )
    report = report_of(workload_of(LOAD, PLAIN, **gone), [])
    nothing = {"count": 0, "mean": None, "p50": None, "p95": None, "p99": None, "max": None}
    assert report["latency"]["ttft"] == nothing
    assert report["latency"]["tpot"] == nothing
    assert report["latency"]["itl"] == {**nothing, "of": "no gaps recorded", "relative_error": None}
    assert (report["stages"]["count"], report["stages"]["bottlenecks"]) == (0, {})
    assert report["output"]["success_rate"] == report["requests"]["completed"] / 400


def test_nothing_is_no_rate() -> None:
    """Without a terminated request the success rate is None, not 0 and not 1."""
    report = report_of(gathered([]), [])
    assert report["output"]["success_rate"] is None
    assert report["output"]["request_throughput"] is None
    assert report["window"]["start"] is None


@pytest.mark.parametrize(
    ("changes", "load", "name"),
    [
        ({}, Load(requests=300), "interactive short"),
        ({}, Load(requests=300, rate=1e6), "batch"),
        ({"gen_ai.usage.input_tokens": 9000}, Load(requests=300), "long context"),
        ({"gen_ai.usage.input_tokens": None}, Load(requests=300), "unknown length"),
        ({"inference.request.workload": "nightly"}, Load(requests=300), "nightly"),
    ],
)
def test_classes_are_told_from_lengths_and_arrivals(changes: dict[str, Any], load: Load, name: str) -> None:
    """Unless the server labelled them."""
    report = report_of(workload_of(load, PLAIN, **changes), [])
    assert [part["name"] for part in report["classes"] if part["total"] > 150] == [name]


def test_clumped_arrivals_are_bursty() -> None:
    """Ten at a time, every ten seconds, for a long while."""
    made = [
        request_span(
            Simulated(
                number=number,
                arrive=(start := 10.0 * (number // 10) + 0.001 * number),
                admit=start,
                input_ready=start,
                first_token=start + 0.1,
                end=start + 0.5,
                event="complete",
                input_tokens=100,
                output_tokens=5,
                gap=0.1,
                longest=0.1,
            ),
            LOAD,
        )
        for number in range(400)
    ]
    assert [part["name"] for part in report_of(gathered(made), [])["classes"]] == ["bursty"]


def test_abnormal_requests_are_kept_by_kind_and_counted_all() -> None:
    """A thousand alike do not hide the one that is different."""
    load = Load(requests=600, cancelled=0.5, failed=0.002, seed=3)
    workload = workload_of(load)
    report = report_of(workload, [])
    kinds = {(kind["outcome"], kind["reason"]): kind["count"] for kind in report["abnormal"]["kinds"]}
    assert kinds[("cancelled", "client_disconnected")] == report["requests"]["cancelled"] > 200
    shown = [row["outcome"] for row in report["abnormal"]["requests"]]
    assert shown.count("cancelled") == 50
    assert shown.count("failed") == report["requests"]["failed"] > 0
