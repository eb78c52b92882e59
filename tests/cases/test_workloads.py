"""Cases of several requests: ratios, means and counters, by the pure functions and by the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from otel_lifecycle import compute_request_metrics, replay_request_events, summarize_workload
from tests.support.plain import Point
from tests.support.telemetry import Telemetry

from .live import EPOCH, OF_THE_PROCESS, expected_points, found_points, near, play
from .notation import NS, Case, parse, std
from .table import BY_ID
from .test_replay import events

QUICK = Case(
    id="quick",
    script=std("0", "0", "0.5") + ", token 0.6, complete 0.6",
    metrics={
        "queue_wait": 0,
        "preprocessing": 0,
        "prefill": 0.5,
        "ttft": 0.5,
        "tpot": 0.1,
        "decode_time": 0.1,
        "token_span": 0.1,
        "e2e": 0.6,
        "streamed_tokens": 2,
    },
    stage="prefill",
    share=5 / 6,
    itl=(0.1,),
)
SOUND = {ttft: std("0", "0", ttft) + f", complete {ttft}" for ttft in ("0.4", "0.6", "1.0", "50.0")}


def replayed(*cases: Case) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return reports and metrics, times in nanoseconds."""
    reports = [replay_request_events(events(case), case.shape) for case in cases]
    return [(report, compute_request_metrics(report)) for report in reports]


def scripted(script: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return report and metrics of a script, times in nanoseconds."""
    recorded = [
        {"event": step.event, "timestamp": EPOCH + step.ns, "count": step.count}
        for step in map(parse, script.split(","))
    ]
    report = replay_request_events(recorded)
    return report, compute_request_metrics(report)


def of(summary: Mapping[str, Any], *keys: str) -> list[Any]:
    """Return some figures of a summary."""
    return [summary[key] for key in keys]


def counted(telemetry: Telemetry, metric: str, attribute: str) -> dict[Any, float]:
    """Return the sums of a counter by one of its attributes, zeros left out."""
    found: dict[Any, float] = {}
    for point in telemetry.points(metric):
        if point["value"]:
            key = point["attributes"].get(attribute)
            found[key] = found.get(key, 0) + point["value"]
    return found


def test_c23_aborted_requests_are_counted(telemetry: Telemetry) -> None:
    """Five aborts: five spans, success 0.0 and not None, and their latencies are there."""
    cases = [BY_ID["C23"]] * 5
    summary = summarize_workload(replayed(*cases))
    keys = ("total_requests", "completed_requests", "success_rate", "ttft_sample_count", "tpot_sample_count")
    assert of(summary, *keys) == [5, 0, 0.0, 5, 5]
    assert (summary["mean_ttft"], summary["mean_tpot"]) == (0.2 * NS, 0.1 * NS)
    for case in cases:
        play(case, telemetry)
    assert len(telemetry.spans("chat tiny")) == 5
    assert found_points(telemetry.points()) == expected_points(*cases)


def test_c24_cancels_are_neither_successes_nor_failures(telemetry: Telemetry) -> None:
    """Seven complete, two cancelled, one failed: success 0.7, and one failure."""
    cases = [*[QUICK] * 7, *[BY_ID["C23"]] * 2, BY_ID["C33-failed"]]
    summary = summarize_workload(replayed(*cases))
    assert summary["success_rate"] == near(0.7)
    assert {status: count for status, count in summary["status_counts"].items() if count} == {
        "completed": 7,
        "cancelled": 2,
        "failed": 1,
    }
    for case in cases:
        play(case, telemetry)
    assert counted(telemetry, "inference.requests", "inference.outcome") == {
        "completed": 7,
        "cancelled": 2,
        "failed": 1,
    }
    errors = counted(telemetry, "inference.requests", "error.type")
    assert errors == {None: 9, "engine_error": 1}


def test_c28_rejected_requests_are_visible(telemetry: Telemetry) -> None:
    """Of 100 arrivals 6 are turned away: in the denominator, under their reason, in no latency of a stage."""
    cases = [*[QUICK] * 94, *[BY_ID["C28"]] * 6]
    summary = summarize_workload(replayed(*cases))
    assert of(summary, "total_requests", "ttft_sample_count") == [100, 94]
    assert summary["success_rate"] == near(0.94)
    for case in cases:
        play(case, telemetry)
    queue = telemetry.point("inference.stage.duration", inference__stage="queue")
    ttft = telemetry.point("inference.time_to_first_token")
    assert (queue["count"], ttft["count"]) == (94, 94)
    assert counted(telemetry, "inference.requests", "error.type") == {None: 94, "queue_full": 6}


def test_c33_failures_stay_out_of_the_latency_of_successes(telemetry: Telemetry) -> None:
    """TTFT of both; durations apart by outcome; the mean of the completed is 2.5 and not 1.625."""
    cases = [BY_ID["C33-failed"], BY_ID["C33-completed"]]
    summary = summarize_workload(replayed(*cases))
    assert of(summary, "success_rate", "ttft_sample_count", "mean_ttft", "mean_completed_e2e", "mean_e2e") == [
        0.5,
        2,
        0.5 * NS,
        2.5 * NS,
        1.625 * NS,
    ]
    for case in cases:
        play(case, telemetry)
    durations = telemetry.points("inference.request.duration")
    assert {point["attributes"]["inference.outcome"]: (point["count"], point["sum"]) for point in durations} == {
        "completed": (1, 2.5),
        "failed": (1, 0.75),
    }


def test_c50_every_attempt_is_a_request(telemetry: Telemetry) -> None:
    """Two failed attempts and a good one: success 1/3, one TTFT sample of 0.6, and each links to the one before."""
    scripts = ("arrive 0, fail 1.0 engine_error", "arrive 1.2, fail 2.2 rate_limited")
    first, second = (Case(id="C50", script=script, metrics={}, stage="queued", status="failed") for script in scripts)
    one = play(first, telemetry, request_id="r", attempt=1)
    two = play(second, telemetry, request_id="r", attempt=2, previous=one)
    play(BY_ID["C50"], telemetry, request_id="r", attempt=3, previous=two.carrier())
    summary = summarize_workload(replayed(first, second, BY_ID["C50"]))
    assert of(summary, "total_requests", "completed_requests", "ttft_sample_count", "mean_ttft") == [
        3,
        1,
        1,
        0.6 * NS,
    ]
    assert summary["success_rate"] == near(1 / 3)
    spans = sorted(telemetry.spans("chat tiny"), key=lambda span: span["start_ns"])
    assert [span["attributes"]["inference.request.attempt"] for span in spans] == [1, 2, 3]
    assert [[link["span_id"] for link in span["links"]] for span in spans] == [
        [],
        [spans[0]["span_id"]],
        [spans[1]["span_id"]],
    ]
    ttft = telemetry.point("inference.time_to_first_token")
    assert (ttft["count"], ttft["sum"]) == (1, near(0.6))
    assert counted(telemetry, "inference.requests", "inference.outcome") == {"completed": 1, "failed": 2}


def test_c50_a_finished_request_is_not_used_again(telemetry: Telemetry) -> None:
    """Marks on a handle that has ended are violations, raise nothing and change nothing."""
    request = play(BY_ID["C50"], telemetry)
    report = request.report
    request.admit()
    request.input_ready()
    request.complete()
    kinds = counted(telemetry, "inference.transition.violations", "inference.violation.kind")
    assert set(kinds) == {"event_after_terminal", "duplicate_terminal"}
    assert request.report == report
    assert counted(telemetry, "inference.requests", "inference.outcome") == {"completed": 1}


def test_c52_halves_of_a_disaggregated_request_feed_no_ttft(telemetry: Telemetry) -> None:
    """One TTFT of 0.95 and one request; prefill and decode roles give stage durations only."""
    halves = {
        "prefill": "arrive 0, admit 0, input_ready 0, first_token 0.6, complete 0.6",
        "decode": "arrive 0.6, admit 0.6, input_ready 0.9, first_token 0.95, complete 1.0",
    }
    whole = Case(
        id="C52",
        script="arrive 0, admit 0, input_ready 0, first_token 0.95, complete 1.0",
        metrics={
            "queue_wait": 0,
            "preprocessing": 0,
            "prefill": 0.95,
            "ttft": 0.95,
            "decode_time": 0.05,
            "token_span": 0,
            "e2e": 1.0,
            "streamed_tokens": 1,
        },
        stage="prefill",
        share=0.95,
    )
    for role, script in halves.items():
        play(Case(id="C52", script=script, metrics={}, stage="prefill"), telemetry, role=role)
    play(whole, telemetry)
    points = telemetry.points()
    found = {key: value for key, value in found_points(points).items() if key[0] != "inference.stage.duration"}
    expected = expected_points(whole)
    assert found == {key: value for key, value in expected.items() if key[0] != "inference.stage.duration"}
    assert durations(points) == {
        "queue": 0,
        "preprocessing": near(0.3),
        "prefill": near(0.6 + 0.05 + 0.95),
        "decode": near(0.05 + 0.05),
    }
    roles = [span["attributes"].get("inference.request.role", "whole") for span in telemetry.spans("chat tiny")]
    assert sorted(roles) == ["decode", "prefill", "whole"]


def durations(points: list[Point]) -> dict[str, float | None]:
    """Return the time in each stage, summed over requests."""
    found = [point for point in points if point["metric"] == "inference.stage.duration"]
    assert {point["count"] for point in found} == {3}
    return {point["attributes"]["inference.stage"]: point["sum"] for point in found}


def test_c54_warm_up_is_told_apart() -> None:
    """Ten warm-ups of 50 s among ninety requests of 1 s: p99 is 50 with them and 1 without."""
    slow, normal = [scripted(SOUND["50.0"])] * 10, [scripted(SOUND["1.0"])] * 90
    assert summarize_workload([*slow, *normal])["p99_ttft"] == 50 * NS
    assert summarize_workload(normal)["p99_ttft"] == 1 * NS


def test_c54_warm_up_is_labelled_on_the_metrics(telemetry: Telemetry) -> None:
    """Traffic other than live carries its name, and stays out of the convention's own metrics."""
    for script, count, traffic in ((SOUND["50.0"], 10, "warmup"), (SOUND["1.0"], 90, "live")):
        for _ in range(count):
            play(Case(id="C54", script=script, metrics={}, stage="prefill"), telemetry, traffic=traffic)
    points = telemetry.points("inference.time_to_first_token")
    found = {point["attributes"].get("inference.traffic"): (point["count"], point["sum"]) for point in points}
    assert found == {"warmup": (10, 500.0), None: (90, 90.0)}
    convention = telemetry.point("gen_ai.server.time_to_first_token")
    assert (convention["count"], convention["sum"]) == (90, 90.0)


def test_c54_every_metric_of_a_warm_up_says_so(telemetry: Telemetry) -> None:
    """A dashboard can leave warm-ups out of whatever it shows; only what is said of the process has no traffic."""
    play(BY_ID["C44"], telemetry, traffic="warmup")
    of_requests = [point for point in telemetry.points() if point["metric"] not in OF_THE_PROCESS]
    points = [point for point in of_requests if point["value"] != 0]
    assert [point["metric"] for point in points if point["attributes"].get("inference.traffic") != "warmup"] == []
    assert {point["metric"] for point in points} == {
        "inference.time_to_first_token",
        "inference.time_per_output_token",
        "inference.inter_token_latency",
        "inference.stage.duration",
        "inference.request.duration",
        "inference.requests",
        "inference.mixed.time",
        "inference.queue.time",
        "inference.tokens",
        "inference.preemptions",
        "inference.transition.violations",
    }


def test_c59_invalid_request_is_in_no_bucket(telemetry: Telemetry) -> None:
    """Two sound requests and one of a negative TTFT: count 2, sum 1.0, one violation, three requests."""
    for script in (SOUND["0.4"], SOUND["0.6"], BY_ID["C59"].script):
        play(Case(id="C59", script=script, metrics={}, stage=None), telemetry)
    ttft = telemetry.point("inference.time_to_first_token")
    assert (ttft["count"], ttft["sum"]) == (2, near(1.0))
    kinds = counted(telemetry, "inference.transition.violations", "inference.violation.kind")
    assert kinds == {"non_monotonic_time": 1}
    assert counted(telemetry, "inference.requests", "inference.outcome") == {"completed": 3}


def test_c84_success_of_nothing_is_none(telemetry: Telemetry) -> None:
    """No traffic has no success rate, and no series that pretends one."""
    assert summarize_workload([])["success_rate"] is None
    assert found_points(telemetry.points()) == {}


def test_c85_total_failure_is_a_number(make_telemetry: Callable[..., Telemetry]) -> None:
    """Ten failures and not one success, ever: 0.0."""
    telemetry = make_telemetry()
    cases = [BY_ID["C28"]] * 10
    assert summarize_workload(replayed(*cases))["success_rate"] == 0.0
    for case in cases:
        play(case, telemetry)
    assert counted(telemetry, "inference.requests", "inference.outcome") == {"failed": 10}


def test_c86_a_long_stream_is_slow_in_e2e_alone() -> None:
    """Its p95 of TTFT and TPOT are 0.4 s; only E2E is 300 s."""
    summary = summarize_workload(replayed(*[BY_ID["C86"]] * 20))
    assert of(summary, "p95_ttft", "p95_tpot", "p95_e2e") == [0.4 * NS, 0.4 * NS, 300 * NS]
