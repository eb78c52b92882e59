"""Raw event logs go through the state machine as everything else does."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_lifecycle import compute_request_metrics, replay_request_events
from tests.cli.running import Ran

WORKED = [
    ("a", "arrive", 0),
    ("b", "arrive", 1),
    ("a", "admit", 2),
    ("b", "admit", 3),
    ("a", "input_ready", 3),
    ("b", "cancel", 6),
    ("a", "first_token", 7),
    ("a", "token", 9),
    ("a", "token", 11),
    ("a", "complete", 12),
]
"""The worked example of the contract, and its cancelled request, mixed."""


def write_json(path: Path, events: list[tuple[Any, ...]] = WORKED, **more: Any) -> None:
    """Write a log as JSON Lines."""
    lines = [{"request_id": request, "event": event, "timestamp": time, **more} for request, event, time in events]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_each_request_gives_report_metrics_and_outcome(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Those of the core, in the unit of the log."""
    write_json(tmp_path / "log.jsonl")
    lines = cli("replay", "log.jsonl", "--requests").json_lines
    report = replay_request_events([{"event": e, "timestamp": t} for request, e, t in WORKED if request == "a"])
    completed = next(line for line in lines if line["request"] == "a")
    assert completed["report"] == json.loads(json.dumps(report))
    assert completed["metrics"] == compute_request_metrics(report)
    assert completed["outcome"] == {"outcome": "completed", "stage": "mixed", "dominant_share": 5 / 12}
    assert completed["legal"]
    cancelled = next(line for line in lines if line["request"] == "b")
    assert cancelled["outcome"] == {"outcome": "cancelled", "stage": "preprocessing", "dominant_share": None}
    assert (cancelled["metrics"]["ttft"], cancelled["metrics"]["e2e"]) == (None, 5)


def test_the_summary_is_the_worked_one(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Success rate 0.5; one TTFT of 7."""
    write_json(tmp_path / "log.jsonl")
    report = cli("replay", "log.jsonl", "--json").json
    assert report["output"]["success_rate"] == 0.5
    assert (report["latency"]["ttft"]["count"], report["latency"]["ttft"]["mean"]) == (1, 7.0)


def csv_log(events: list[tuple[Any, ...]]) -> str:
    """Return the log as CSV."""
    return "request_id,event,timestamp\n" + "".join(f"{request},{event},{time}\n" for request, event, time in events)


@pytest.mark.long
@pytest.mark.parametrize("form", ["csv", "gzip", "iso", "milliseconds", "nanoseconds", "other_names"])
def test_every_form_of_log_says_the_same(cli: Callable[..., Ran], tmp_path: Path, form: str) -> None:
    """CSV or JSON, packed or not, with numbers of any unit or ISO times."""
    path, options = tmp_path / "log", list[str]()
    write_json(path)
    if form == "csv":
        path.write_text(csv_log(WORKED))
    elif form == "gzip":
        path.write_bytes(gzip.compress(path.read_bytes()))
    elif form == "iso":
        write_json(path, [(request, event, f"2026-02-02T02:40:{time:02d}Z") for request, event, time in WORKED])
    elif form == "milliseconds":
        write_json(path, [(request, event, time * 1000) for request, event, time in WORKED])
        options = ["--unit", "ms"]
    elif form == "nanoseconds":
        epoch = 1_770_000_000_000_000_000
        write_json(path, [(request, event, epoch + time * 10**9) for request, event, time in WORKED])
        options = ["--unit", "ns"]
    else:
        path.write_text("".join(json.dumps({"id": r, "name": e, "ts": t}) + "\n" for r, e, t in WORKED))
    report = cli("replay", "log", "--json", *options).json
    told = {name: report["latency"][name]["mean"] for name in ("ttft", "tpot", "e2e")}
    assert told == {"ttft": 7.0, "tpot": 2.0, "e2e": 8.5}
    assert report["stages"]["bottlenecks"] == {"mixed": 1}


def test_what_is_illegal_is_told_and_nothing_else_is_lost(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Exit code 1 only where it was asked for."""
    write_json(tmp_path / "log.jsonl", [*WORKED, ("b", "token", 7), ("c", "arrive", 0), ("c", "token", 1)])
    lines = {line["request"]: line for line in cli("replay", "log.jsonl", "--requests").json_lines}
    assert [violation["kind"] for violation in lines["b"]["violations"]] == ["event_after_terminal"]
    assert [violation["kind"] for violation in lines["c"]["violations"]] == ["illegal_transition", "missing_terminal"]
    assert lines["a"]["legal"]
    assert cli("replay", "log.jsonl").code == 0
    assert cli("replay", "log.jsonl", "--strict").code == 1


def test_an_unknown_time_is_unknown(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """The state moves; what needs the time is absent."""
    write_json(tmp_path / "log.jsonl", [(r, e, None if e in {"admit", "input_ready"} else t) for r, e, t in WORKED])
    report = cli("replay", "log.jsonl", "--json").json
    assert report["latency"]["ttft"]["mean"] == 7.0
    assert report["stages"]["count"] == 0
    assert report["output"]["illegal"] == 0


def test_the_spans_say_the_same_again(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Written as OTLP and read back, the report is the same."""
    write_json(tmp_path / "log.jsonl", [*WORKED, ("b", "token", 7)], model="m")
    first = cli("replay", "log.jsonl", "--json", "--otlp", "traces.json", "--start", "2026-01-01T00:00:00Z").json
    second = cli("report", "traces.json", "--json").json
    for part in ("requests", "stages", "abnormal", "window"):
        assert first[part] == second[part]
    assert first["latency"]["itl"]["count"] == 2
    for part in (first, second):
        # A token too late is in the events alone.
        part["output"].pop("wasted_tokens")
    assert first["latency"] == second["latency"]
    assert first["output"] == second["output"]
    assert second["conditions"]["stated"]["model"] == {"m": 2}
    checked = cli("check", "traces.json", "--json")
    assert (checked.code, [line["kind"] for line in checked.json_lines]) == (1, ["event_after_terminal"])


def test_the_stage_spans_are_there(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Children of the request, with exact times."""
    write_json(tmp_path / "log.jsonl")
    ran = cli("replay", "log.jsonl", "--otlp", "-", "--start", "2026-01-01T00:00:00Z")
    spans = json.loads(ran.out)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    epoch = 1_767_225_600
    told = [
        (span["name"], int(span["startTimeUnixNano"]) / 1e9 - epoch, int(span["endTimeUnixNano"]) / 1e9 - epoch)
        for span in spans
        if span["traceId"] == spans[-1]["traceId"]
    ]
    stages = [("queue", 0, 2), ("preprocessing", 2, 3), ("prefill", 3, 7), ("decode", 7, 12)]
    assert told == [("chat", 0, 12), *stages]
    assert {span.get("parentSpanId", span["spanId"]) for span in spans} == {
        span["spanId"] for span in spans if span["name"] == "chat"
    }


def test_a_bad_line_is_counted(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """And its neighbours are read."""
    write_json(tmp_path / "log.jsonl")
    path = tmp_path / "log.jsonl"
    path.write_text('{"event": 5}\nnot json\n{"timestamp": 3}\n[1]\n' + path.read_text())
    report = cli("replay", "log.jsonl", "--json").json
    assert report["requests"]["total"] == 3
    assert [(item["kind"], item["count"]) for item in report["trouble"]] == [
        ("unreadable_line", 3),
        ("no_id", 1),
        ("no_end", 1),
    ]


def test_what_is_no_log_is_an_error_with_its_name(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Exit code 2."""
    (tmp_path / "notes.txt").write_text("these are\nnot events\n")
    ran = cli("replay", "notes.txt")
    assert ran.code == 2
    assert ran.err.startswith("otel-lifecycle: notes.txt is not an event log")


@pytest.mark.parametrize(
    "content",
    [bytes(range(256)) * 4, b"request_id,event\ra,arrive\rb", b"\xff\xfe\r\n", b"\x1f\x8b broken"],
    ids=["binary", "bare_cr", "utf16", "no_gzip"],
)
def test_any_bytes_are_refused_by_name(cli: Callable[..., Ran], tmp_path: Path, content: bytes) -> None:
    """Exit code 2, and one line that names the file."""
    (tmp_path / "other.bin").write_bytes(content)
    ran = cli("replay", "other.bin")
    assert "fault of otel-lifecycle" not in ran.err
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert "other.bin" in ran.err


@pytest.mark.parametrize(
    ("time", "unit"),
    [
        (1e300, "s"),
        (10**30, "ns"),
        (-1e300, "s"),
        pytest.param(1e300, "ns", marks=pytest.mark.slow),
        pytest.param(10**30, "s", marks=pytest.mark.slow),
        pytest.param(-1e300, "ns", marks=pytest.mark.slow),
    ],
)
def test_a_time_of_no_clock_is_a_bad_line(cli: Callable[..., Ran], tmp_path: Path, time: float, unit: str) -> None:
    """It is counted, and its neighbours are read."""
    write_json(tmp_path / "log.jsonl", [*WORKED, ("a", "token", time)])
    report = cli("replay", "log.jsonl", "--json", "--unit", unit).json
    assert [(item["kind"], item["count"]) for item in report["trouble"]] == [("unreadable_line", 1)]
    assert report["requests"]["total"] == 2


def test_a_count_that_is_none_costs_nothing_else(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """More tokens than there are numbers for, and a batch as large."""
    write_json(
        tmp_path / "log.jsonl", batch_size=1e300, concurrency=10**30, input_tokens=10**30, output_tokens="\u00b2"
    )
    report = cli("replay", "log.jsonl", "--json", "--otlp", "traces.json").json
    for told in (report, cli("report", "traces.json", "--json").json):
        assert told["requests"]["total"] == 2
        assert told["conditions"]["measured"].keys() <= {"output_tokens"}


def test_a_byte_order_mark_is_no_part_of_the_first_line(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Other programs begin a text with one."""
    write_json(tmp_path / "log.jsonl")
    (tmp_path / "log.jsonl").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "log.jsonl").read_bytes())
    report = cli("replay", "log.jsonl", "--json").json
    assert (report["requests"]["total"], report["trouble"]) == (2, [])


def test_requests_that_no_column_tells_apart_are_counted(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Two arrivals and no id that is known: the columns that are there are named."""
    lines = [{"rid": request, "event": event, "timestamp": time} for request, event, time in WORKED]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (told,) = [item for item in cli("replay", "log.jsonl", "--json").json["trouble"] if item["kind"] == "no_id"]
    assert told["count"] == len(WORKED)
    assert told["places"][0] == (
        "log.jsonl:2: none of request_id, request, id, inference.request.id or trace_id among its columns (rid)"
    )


def test_an_unknown_event_breaks_the_rule_of_the_table(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Not that of a count."""
    write_json(tmp_path / "log.jsonl", [("a", "arrive", 0), ("a", "explode", 1), ("a", "cancel", 2)])
    told = cli("replay", "log.jsonl", "--requests").json_lines[0]["violations"]
    assert [one["event"] for one in told] == ["explode"]
    assert told[0]["rule"].startswith("unknown event 'explode'; legal there in shape 'default': admit or ")


def test_the_same_log_gives_the_same_traces(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Whenever it is replayed."""
    write_json(tmp_path / "log.jsonl")
    ids = []
    for start in ("2026-01-01", "2026-01-02"):
        spans = json.loads(cli("replay", "log.jsonl", "--otlp", "-", "--start", start).out)["resourceSpans"][0]
        ids.append([(span["traceId"], span["spanId"]) for span in spans["scopeSpans"][0]["spans"]])
    assert ids[0] == ids[1]
    assert len({trace for trace, _ in ids[0]}) == 2


def test_an_event_of_unknown_time_stays_one(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """The span has a place for its violation, and says that it is none."""
    write_json(tmp_path / "log.jsonl", [("a", "arrive", 0), ("a", "first_token", None), ("a", "cancel", 13)])
    cli("replay", "log.jsonl", "--otlp", "traces.json", "--start", "2026-01-01")
    told = cli("check", "traces.json", "--json").json_lines
    assert [(one["event"], one["offset"], one["at"]) for one in told] == [("first_token", None, None)]


def test_counts_choices_and_shapes_are_those_of_the_contract(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """A chunk of three tokens, and a pooling request."""
    lines = [
        {"event": "arrive", "timestamp": 0},
        {"event": "admit", "timestamp": 0},
        {"event": "input_ready", "timestamp": 0},
        {"event": "first_token", "timestamp": 1.0},
        {"event": "token", "timestamp": 1.3, "count": 3},
        {"event": "token", "timestamp": 1.6, "count": 3},
        {"event": "complete", "timestamp": 1.6},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = cli("replay", "log.jsonl", "--requests").json_lines[0]
    assert (told["metrics"]["tpot"], told["metrics"]["streamed_tokens"]) == (pytest.approx(0.1), 7)
    assert told["report"]["itl"] == []
    pooled = [lines[0], lines[1], lines[2], {"event": "complete", "timestamp": 2}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in pooled))
    told = cli("replay", "log.jsonl", "--requests", "--shape", "pooling").json_lines[0]
    assert (told["legal"], told["metrics"]["prefill"], told["outcome"]["stage"]) == (True, 2, "prefill")
