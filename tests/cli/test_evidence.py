"""The figures of a workload are those of the core, and stay so in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_lifecycle import Slo, compute_request_metrics, replay_request_events, summarize_workload
from otel_lifecycle._analysis import figures
from otel_lifecycle._analysis.arrivals import in_flight
from otel_lifecycle._analysis.document import report_of
from otel_lifecycle._analysis.settings import OPEN, WorkloadSettings
from otel_lifecycle._analysis.workload import Workload, gather
from otel_lifecycle._table.sources.otlp_json import span
from otel_lifecycle._table.sources.spans import Span
from otel_lifecycle._table.sources.tally import ReadingTally
from tests.cli.generator import START_NS, Load, Simulated, request_span_of, simulate

LOAD = Load(requests=400, cancelled=0.1, failed=0.05)
PLAIN = WorkloadSettings()


def workload_of(load: Load, chosen: WorkloadSettings = PLAIN, **changes: Any) -> Workload:
    """Return the workload of a simulated run."""
    return gathered((request_span(request, load, **changes) for request in simulate(load)), chosen)


def gathered(spans: Iterable[Span], chosen: WorkloadSettings = PLAIN) -> Workload:
    """Return the workload of some spans."""
    return gather(spans, chosen, ReadingTally())


@lru_cache(maxsize=4000)
def plain_span(request: Simulated, load: Load) -> Span:
    """Return the span of a simulated request. Many tests change a few attributes of the same ones."""
    return span(request_span_of(request, load), {})


def request_span(request: Simulated, load: Load, **changes: Any) -> Span:
    """Return the span of a simulated request, with some of its attributes changed; None takes one away."""
    made = plain_span(request, load)
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


def test_quantiles_are_exact_whatever_is_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large workload is asked column by column, so that memory stays bounded; the figures are the same."""
    whole = report_of(workload_of(LOAD), [])
    monkeypatch.setattr(figures, "AT_ONCE", 1)
    assert report_of(workload_of(LOAD), [])["latency"] == whole["latency"]
    assert (whole["exact"], whole["relative_error"]) == (True, 0.0)


TIMES = st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 10**11)), min_size=1, max_size=40)


@pytest.mark.long
@settings(deadline=None, max_examples=8)
@given(TIMES)
def test_the_level_in_flight_is_that_of_a_count(times: list[tuple[int, int]]) -> None:
    """Mean and peak, of any stays, also of no length and at one instant."""
    starts = [START_NS + start for start, _ in times]
    ends = [start + length for start, (_, length) in zip(starts, times, strict=True)]
    made = [
        replace(request_span(one, EVEN), span_id=f"{number:016x}", start_ns=start, end_ns=end, events=())
        for number, (one, start, end) in enumerate(zip(simulate(Load(requests=len(times))), starts, ends, strict=False))
    ]
    workload = gathered(made)
    mean, peak = in_flight(workload.table, min(starts), max(ends))
    stays = [(start, max(end, start + 1)) for start, end in zip(starts, ends, strict=True)]
    assert peak == max(sum(a <= at < b for a, b in stays) for at in starts)
    length = max(ends) - min(starts)
    assert mean == (pytest.approx(sum(min(b, max(ends)) - a for a, b in stays) / length, rel=1e-6) if length else None)


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


@cache
def without(place: int) -> Mapping[str, Any]:
    """Return the report of all even requests but one."""
    spans = [request_span(request, EVEN) for request in simulate(replace(EVEN, requests=31))]
    return report_of(gathered(spans[:place] + spans[place + 1 :]), [])


@pytest.mark.long
@pytest.mark.parametrize(
    ("start", "end", "place"),
    [
        pytest.param(start, end, place, id=f"{name}, {place}", marks=[] if quick == place else [pytest.mark.slow])
        for name, start, end, quick in (
            ("ends in 2244", None, 8_650_000_000, 0),
            ("is in 2244", 8_650_000_000, 8_650_000_000, 30),
            ("starts in 2001", 1_000_000_000, None, 30),
            ("is in 1970", 5, 6, 0),
        )
        for place in (0, 30)
    ],
)
def test_one_wrong_clock_is_counted_and_left_out_of_the_window(start: int | None, end: int | None, place: int) -> None:
    """Throughput, the level in flight and the pattern of arrivals stay those of all others."""
    spans = [request_span(request, EVEN) for request in simulate(replace(EVEN, requests=31))]
    wrong = spans[place]
    instants: dict[str, Any] = {"start_ns": wrong.start_ns, "end_ns": wrong.end_ns}
    instants |= {} if start is None else {"start_ns": start * 10**9}
    instants |= {} if end is None else {"end_ns": end * 10**9}
    spans[place] = replace(wrong, events=(), **instants)
    workload = gathered(spans)
    report, expected = report_of(workload, []), without(place)
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
    report = report_of(gathered(spans, WorkloadSettings(group_by="model")), [])
    latency = report["latency"]
    assert {name: (latency[name]["count"], latency[name]["mean"]) for name in ("e2e_completed", "e2e")} == {
        "e2e_completed": (1, 2.5),
        "e2e": (2, 1.625),
    }
    assert latency["e2e_completed"]["p50"] == 2.5
    assert report["groups"][0]["e2e_completed"]["count"] == 1


@pytest.mark.long
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


@pytest.mark.long
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
