"""What the demo prints is drawn to scale from the spans, and says the same as they do."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

import otel_lifecycle as lifecycle
from examples import breakdown
from otel_lifecycle import semconv
from tests.support.telemetry import Telemetry

SECOND = 1_000_000_000
START = 1_790_000_000 * SECOND


def serve(telemetry: Telemetry, name: str, times: dict[str, float], tokens: tuple[float, ...] = (), **end: Any) -> None:
    """Run a request whose boundaries, tokens and end come at given seconds after arrival."""
    request = telemetry.request(request_id=name, arrived_at_ns=START)
    for boundary, seconds in times.items():
        getattr(request, boundary)(at_ns=START + int(seconds * SECOND))
    for seconds in tokens:
        request.token(at_ns=START + int(seconds * SECOND))
    for event, seconds in end.items():
        getattr(request, event)(at_ns=START + int(seconds * SECOND))


def printed(table: object) -> list[str]:
    """Print for a console of 100 columns that is not a terminal; lines without their trailing blanks."""
    file = io.StringIO()
    Console(file=file, width=100).print(table)
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.fixture
def requests(telemetry: Telemetry) -> dict[str, breakdown.Request]:
    """The worked example, one cut off in the queue, and one that was never ended."""
    serve(telemetry, "worked", {"admit": 2, "input_ready": 3, "first_token": 7}, (9, 11), complete=12)
    serve(telemetry, "cut", {}, cancel=6)
    serve(telemetry, "left", {"admit": 1})
    telemetry.tracer_provider.force_flush()
    return breakdown.read_requests(telemetry.exporter.get_finished_spans())


def test_stages_are_read_with_those_that_were_cut_off(requests: dict[str, breakdown.Request]) -> None:
    """A request that was cancelled while it waited shows how long it waited."""
    assert {name: dict(request.stages) for name, request in requests.items() if name != "left"} == {
        "worked": {"queue": 2.0, "preprocessing": 1.0, "prefill": 4.0, "decode": 5.0},
        "cut": {"queue": 6.0},
    }


def test_a_bar_is_to_scale() -> None:
    """Rounding never adds up: the bar is as long as the request, to half a cell."""
    stages = {"queue": 0.4, "preprocessing": 0.4, "prefill": 0.4, "decode": 2.0}
    bars = [breakdown.stage_bar(stages, 1.0).plain, breakdown.stage_bar(stages, 0.4, ascii_only=True).plain]
    assert bars == ["▒██", "qpfddddd"]


def test_the_summary_is_made_from_spans_alone(requests: dict[str, breakdown.Request]) -> None:
    """Replayed from the span's events, every figure of the worked example comes back; no end, no report."""
    (report, metrics), (cut, _) = breakdown.results(requests[name] for name in ("worked", "left", "cut"))
    assert (report["status"], cut["failure_stage"], lifecycle.classify_request_outcome(report, metrics)) == (
        "completed",
        "queued",
        {"outcome": "completed", "stage": "mixed", "dominant_share": pytest.approx(5 / 12)},
    )
    assert metrics == {
        "queue_wait": 2.0,
        "preprocessing": 1.0,
        "prefill": 4.0,
        "ttft": 7.0,
        "tpot": 2.0,
        "decode_time": 5.0,
        "token_span": 4.0,
        "e2e": 12.0,
        "streamed_tokens": 3,
    }


def test_a_line_per_request(requests: dict[str, breakdown.Request]) -> None:
    """Stages to scale, outcome, TTFT, TPOT, and the bottleneck or where it ended; what is not known is a dash."""
    rows = [(name, requests[name]) for name in ("worked", "cut")]
    assert printed(breakdown.request_table(rows, title="Two requests")) == [
        "Two requests",
        "request             in/out  stages, 0.63 s a cell       outcome   TTFT s TPOT ms   bottleneck or end",
        "worked              -/3     ░░░▒▒▓▓▓▓▓▓████████ 12.00 s completed   7.00  2000.0   mixed, decode 42%",
        "cut                 -/0     ░░░░░░░░░░ 6.00 s           cancelled      -       -   in queue",
    ]


def test_every_outcome_and_bottleneck_is_counted_with_its_zeros(requests: dict[str, breakdown.Request]) -> None:
    """A count of nothing is said too, so that nothing can be overlooked."""
    found = list(requests.values())
    summary = lifecycle.summarize_workload(breakdown.results(found))
    assert [line.split() for line in printed(breakdown.count_table(found, summary))[1:]] == [
        ["completed", "1", "queue", "0", "queue", "1"],
        ["cancelled", "1", "preprocessing", "0", "preprocessing", "0"],
        ["timed_out", "0", "prefill", "0", "prefill", "0"],
        ["failed", "0", "decode", "0", "decode", "0"],
        ["incomplete", "1", "mixed", "1", "unknown", "0"],
    ]
    assert [line.split()[-5:] for line in printed(breakdown.latency_table(summary))[1:4]] == [
        ["1", "7.00", "7.00", "7.00", "7.00"],
        ["1", "2000.0", "2000.0", "2000.0", "2000.0"],
        ["2", "9.00", "9.00", "11.70", "11.94"],
    ]
    assert breakdown.success_line(summary) == "1 of 2 completed, success rate 50%"


def test_what_was_illegal_is_said_of_the_request_it_was_in(requests: dict[str, breakdown.Request]) -> None:
    """And one line says so where nothing was."""
    assert breakdown.violation_lines(list(requests.values())) == ["left: missing_terminal (left while preprocessing)"]
    assert breakdown.violation_lines([requests["worked"]]) == ["No violation in 1 requests: every lifecycle was legal."]
    assert semconv.LEGAL in requests["worked"].attributes


def test_what_held_a_request_is_told(telemetry: Telemetry) -> None:
    """One waited beside another's decode, one was stalled by a prefill; the worst pair is the longest of the two."""
    serve(telemetry, "waits", {"admit": 8, "input_ready": 8, "first_token": 8}, complete=9)
    served: dict[str, float] = {"admit": 0, "input_ready": 0, "first_token": 0}
    serve(telemetry, "runs", served, (*(number / 10 for number in range(1, 11)), 9), complete=9)
    serve(telemetry, "waits too", {"admit": 8, "input_ready": 8, "first_token": 8}, complete=9)
    found = breakdown.read_requests(telemetry.exporter.get_finished_spans())
    told = str(breakdown._verdict(found["waits too"]))
    assert told == "queue 89%, most of it beside decode"
    assert breakdown.worst_pair(found.values()) == "The worst pair: waits too waited for 8.00 s beside runs."
    named = breakdown.worst_pair(found.values(), {"runs": "Rush 6 (long text)"})
    assert named == "The worst pair: waits too waited for 8.00 s beside Rush 6 (long text)."
    assert breakdown.worst_pair([]) == "No request held another for a tenth of its wait or of its stalls."
    stalled = breakdown.Request(
        attributes={
            semconv.BOTTLENECK: "decode",
            semconv.DOMINANT_STAGE: "decode",
            semconv.DOMINANT_SHARE: 0.71,
            semconv.BOTTLENECK_CAUSE: "prefill",
        },
        events=(),
        stages={},
        violations=(),
        culprits=({semconv.LINK_REASON: "stall", semconv.LINK_TIME: 2.0},) * 2,
    )
    assert str(breakdown._verdict(stalled)) == "decode 71%, most of it beside 2 prefills"
    assert breakdown.worst_pair([stalled]) == "The worst pair: ? stalled for 2.00 s beside another request."
