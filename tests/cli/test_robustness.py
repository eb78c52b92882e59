"""Whatever is wrong with a file is counted and said, and never fatal; what is not a trace is an error with its name."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from otel_lifecycle._analysis.settings import WorkloadSettings
from otel_lifecycle._analysis.workload import gather
from otel_lifecycle._table.errors import NotATrace, Unusable
from otel_lifecycle._table.sources.reader import Reader
from otel_lifecycle._table.sources.seen import Seen
from otel_lifecycle._table.sources.tally import ReadingTally
from tests.cli.forms import FORMS
from tests.cli.generator import Load, encode, line, simulate, spans_of, write
from tests.cli.live import serve, server
from tests.cli.running import Ran

LOAD = Load(requests=300)


def run_file(path: Path, load: Load = LOAD) -> Path:
    """Write a simulated run."""
    with path.open("wb") as out:
        write(load, out)
    return path


def counted(*sources: Path) -> tuple[int, dict[str, int]]:
    """Return the requests that some sources have, and the troubles counted."""
    tally = ReadingTally()
    workload = gather(Reader([str(source) for source in sources], tally), WorkloadSettings(), tally)
    return workload.total, {kind: number for kind, number, _, _ in tally.lines()}


def one_span(**changes: Any) -> dict[str, Any]:
    """Return a request span with some of its fields changed."""
    return {**spans_of(next(simulate(LOAD)), LOAD)[0], **changes}


def test_an_empty_file_is_counted(tmp_path: Path) -> None:
    """An exporter that has not written yet leaves one."""
    (tmp_path / "empty.json").touch()
    assert counted(tmp_path / "empty.json") == (0, {"empty_file": 1})


def test_a_cut_line_loses_only_itself(tmp_path: Path) -> None:
    """The file of a process that was killed ends within a line."""
    path = run_file(tmp_path / "cut.json")
    path.write_bytes(path.read_bytes()[:-1000])
    assert counted(path) == (256, {"truncated": 1})


def test_a_file_of_one_cut_line_is_still_a_trace(tmp_path: Path) -> None:
    """It is counted as cut short, and no error."""
    path = run_file(tmp_path / "cut.json", Load(requests=5))
    path.write_bytes(path.read_bytes()[:3000])
    assert counted(path) == (0, {"truncated": 1})


@pytest.mark.long
@pytest.mark.parametrize("size", range(995, 1005))
def test_a_line_cut_behind_a_bracket_is_cut(size: int, tmp_path: Path) -> None:
    """Wherever the cut falls."""
    path = run_file(tmp_path / "cut.json", Load(requests=5))
    path.write_bytes(path.read_bytes()[:size])
    assert counted(path) == (0, {"truncated": 1})


def test_a_cut_archive_gives_what_came_before(tmp_path: Path) -> None:
    """A gzip file without its end is read up to there."""
    path = run_file(tmp_path / "run.json")
    whole = gzip.compress(path.read_bytes())
    path.write_bytes(whole[: len(whole) * 3 // 4])
    requests, troubles = counted(path)
    assert 0 < requests < 300
    assert troubles == {"truncated": 1}


@pytest.mark.parametrize("form", ["proto_messages", "proto_delimited", "json_zstd_messages"])
def test_a_cut_message_gives_what_came_before(form: str, tmp_path: Path) -> None:
    """Of framed messages the last one is lost."""
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

    from tests.cli.forms import document

    spans = spans_of(next(simulate(LOAD)), LOAD)
    told = json.loads(line(spans))
    for span in told["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        span["status"] = {}
    message = ParseDict(_base64_ids(told), TracesData()).SerializeToString()
    assert document(message)
    whole = FORMS[form](message)
    (tmp_path / "cut").write_bytes(whole + whole[: len(whole) // 2])
    assert counted(tmp_path / "cut") == (1, {"truncated": 1})


def _base64_ids(value: Any) -> Any:
    import base64

    if isinstance(value, dict):
        ids = {"traceId", "spanId", "parentSpanId"}
        return {
            key: base64.b64encode(bytes.fromhex(inner)).decode() if key in ids else _base64_ids(inner)
            for key, inner in value.items()
        }
    return [_base64_ids(item) for item in value] if isinstance(value, list) else value


def test_a_bad_line_between_good_ones_is_skipped(tmp_path: Path) -> None:
    """Whoever wrote into the same file costs nobody else anything."""
    path = run_file(tmp_path / "run.json")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"exporter restarted\n" + b'{"level": "info"}\n' + b"\n" + b"".join(lines[1:]))
    assert counted(path) == (300, {"unreadable": 2})


def test_unknown_fields_are_ignored(tmp_path: Path) -> None:
    """A newer protocol has more of them."""
    span = one_span(flags=257, profileId="x", attributes=[*one_span()["attributes"], {"key": "new", "value": {"x": 1}}])
    (tmp_path / "new.json").write_bytes(line([span]))
    assert counted(tmp_path / "new.json") == (1, {})


def test_spans_of_other_libraries_are_counted(tmp_path: Path) -> None:
    """They are not part of a lifecycle."""
    other = one_span(spanId="aa" * 8, name="GET /v1", attributes=encode({"http.route": "/v1"}), events=[])
    (tmp_path / "mixed.json").write_bytes(line([other, one_span()]))
    assert counted(tmp_path / "mixed.json") == (1, {"other_spans": 1})


def test_the_same_file_twice_counts_once(tmp_path: Path) -> None:
    """A retried export, or a pattern that matches twice, doubles nothing."""
    path = run_file(tmp_path / "run.json")
    assert counted(path, path) == (300, {"duplicate": 300})


def test_a_trace_in_pieces_counts_once(tmp_path: Path) -> None:
    """The stage spans may come in another file, before or after the request's own."""
    whole, *stages = spans_of(next(simulate(LOAD)), LOAD)
    (tmp_path / "a.json").write_bytes(line(stages))
    (tmp_path / "b.json").write_bytes(line([whole]))
    assert counted(tmp_path) == (1, {})


@pytest.mark.parametrize(
    "changes",
    [
        {"traceId": "zz" * 16},
        {"traceId": "0" * 32},
        {"spanId": ""},
        {"startTimeUnixNano": "soon"},
        {"endTimeUnixNano": None},
        {"events": [{"name": "arrive"}]},
    ],
)
def test_a_broken_span_is_counted(changes: dict[str, Any], tmp_path: Path) -> None:
    """Its neighbours are read."""
    (tmp_path / "broken.json").write_bytes(line([one_span(**changes), one_span(spanId="ab" * 8)]))
    assert counted(tmp_path / "broken.json") == (1, {"broken_span": 1})


IMPOSSIBLE = [
    ("inference.e2e", {"doubleValue": "Infinity"}),
    ("inference.ttft", {"doubleValue": "NaN"}),
    ("inference.tpot", {"doubleValue": -0.5}),
    ("inference.prefill", {"stringValue": "long"}),
    ("inference.share.queue", {"doubleValue": 5.0}),
    ("inference.request.batch_size", {"intValue": "-4"}),
    ("inference.request.batch_size", {"doubleValue": "Infinity"}),
    ("inference.request.concurrency", {"doubleValue": -1.5}),
    ("gen_ai.usage.input_tokens", {"intValue": "9" * 40}),
    ("gen_ai.usage.input_tokens", {"doubleValue": 1e300}),
    ("gen_ai.usage.cache_read.input_tokens", {"doubleValue": "Infinity"}),
    ("app.number", {"intValue": "abc"}),
    ("app.number", {"intValue": "9" * 40}),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("key", "value"),
    [
        # The quick suite tries every other one: one of each kind of value, and nearly every key.
        pytest.param(key, value, id=f"{key}-{value}", marks=[pytest.mark.slow] if number % 2 else [])
        for number, (key, value) in enumerate(IMPOSSIBLE)
    ],
)
def test_an_attribute_that_cannot_be_costs_nothing_else(
    key: str, value: dict[str, Any], cli: Callable[..., Ran], tmp_path: Path
) -> None:
    """It is counted by name and left out; the request keeps its outcome and its other figures."""
    span = one_span()
    kept = [item for item in span["attributes"] if item["key"] != key]
    (tmp_path / "odd.json").write_bytes(line([one_span(attributes=[*kept, {"key": key, "value": value}])]))
    report = cli("report", "odd.json", "--json").json
    told = [(item["kind"], item["count"], item["places"]) for item in report["trouble"]]
    assert told == [("broken_attribute", 1, [f"odd.json:1: {key}"])]
    assert report["requests"]["completed"] == 1
    counts = [report["latency"][name]["count"] for name in ("ttft", "tpot", "e2e")]
    assert sum(counts) == 3 - (key in {"inference.ttft", "inference.tpot", "inference.e2e"})
    assert report["conditions"]["measured"].keys().isdisjoint({"batch_size", "concurrency"})


@pytest.mark.long
@pytest.mark.parametrize("outcome", ["exploded", "", 5])
def test_an_outcome_that_is_none_is_incomplete(outcome: object, cli: Callable[..., Ran], tmp_path: Path) -> None:
    """It is in the counts, and the page is drawn; so it is with a stage that has no colour."""
    spans = [one_span()]
    attributes = {item["key"]: item["value"] for item in spans[0]["attributes"]}
    value = {"intValue": str(outcome)} if isinstance(outcome, int) else {"stringValue": outcome}
    attributes |= {"inference.outcome": value, "inference.bottleneck": {"stringValue": "network"}}
    odd = one_span(spanId="ab" * 8, attributes=[{"key": key, "value": value} for key, value in attributes.items()])
    completed = {**attributes, "inference.outcome": {"stringValue": "completed"}}
    other = one_span(spanId="ac" * 8, attributes=[{"key": key, "value": value} for key, value in completed.items()])
    (tmp_path / "odd.json").write_bytes(line([*spans, odd, other]))
    report = cli("report", "odd.json", "--json", "--html", "page.html").json
    assert (report["requests"]["total"], report["requests"]["completed"], report["requests"]["incomplete"]) == (3, 2, 1)
    assert [(item["kind"], item["count"]) for item in report["trouble"]] == [("unknown_outcome", 1), ("no_end", 1)]


def test_an_outcome_that_a_limit_took_is_told_by_the_events(
    cli: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT drops the oldest attributes, the outcome among them."""
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "6")
    with server() as process:
        serve(process, (0.2, 0.3, 1.0), (1.1, 1.2, 1.5), ("complete", 1.6), input_tokens=7)
        serve(process, (0.2,), (), ("cancel", 0.5), start=1.0)
        (tmp_path / "run.pb").write_bytes(process.proto())
    report = cli("report", "run.pb", "--json").json
    counts = {item["kind"]: item["count"] for item in report["trouble"]}
    assert (report["requests"]["completed"], report["requests"]["cancelled"]) == (1, 1)
    assert (report["latency"]["ttft"]["max"], report["latency"]["e2e"]["max"]) == (1.0, 1.6)
    assert counts["outcome_dropped"] == 2
    assert (cli("check", "run.pb").code, cli("view", "run.pb").code) == (0, 2)


@pytest.mark.parametrize(
    "odd",
    [
        {"asDouble": "Infinity"},
        {"count": "4", "sum": 1.0, "explicitBounds": [1.0], "bucketCounts": ["1", "1", "1", "1"]},
        {"count": "-4", "sum": 1.0},
        {"count": "4", "sum": "NaN"},
    ],
)
def test_a_metric_point_that_cannot_be_is_counted(odd: dict[str, Any], cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Tokens without end, a histogram with a bucket too many; the points beside it are read."""
    key = "histogram" if "count" in odd else "sum"
    name = "inference.inter_token_latency" if key == "histogram" else "inference.tokens"
    time = {"timeUnixNano": "1770000000000000000"}
    wasted = [{"key": "inference.token.direction", "value": {"stringValue": "wasted"}}]
    sound = {"count": "1", "sum": 0.5, "explicitBounds": [1.0], "bucketCounts": ["1", "0"]}
    points = [{**time, **odd, "attributes": wasted}, {**time, **(sound if key == "histogram" else {"asInt": "3"})}]
    points[1]["attributes"] = [*wasted, {"key": "other", "value": {"boolValue": True}}]
    metric = {"name": name, key: {"dataPoints": points}}
    message = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}
    (tmp_path / "run.json").write_bytes(line([one_span()]) + json.dumps(message).encode())
    report = cli("report", "run.json", "--json").json
    assert [(item["kind"], item["count"]) for item in report["trouble"]] == [("broken_point", 1)]
    assert report["latency"]["itl"]["count"] == (1 if key == "histogram" else 0)
    assert report["output"]["wasted_tokens"] == (0 if key == "histogram" else 3)


def test_histograms_of_two_makes_are_not_added_up(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """One with a single bucket and one without any have the same edges: none."""
    point = {"timeUnixNano": "1770000000000000000", "count": "4", "sum": 1.0}
    label = {"attributes": [{"key": "other", "value": {"boolValue": True}}]}
    points = [point, {**point, **label, "bucketCounts": ["4"]}]
    metric = {"name": "inference.inter_token_latency", "histogram": {"dataPoints": points}}
    message = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}
    (tmp_path / "run.json").write_bytes(line([one_span()]) + json.dumps(message).encode())
    report = cli("report", "run.json", "--json").json
    assert (report["latency"]["itl"]["count"], report["trouble"]) == (0, [])


def test_no_place_steers_the_terminal(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """The name of what was left out comes from whoever sent it."""
    odd = {"key": "\x1b[31mred", "value": {"intValue": "abc"}}
    (tmp_path / "odd.json").write_bytes(line([one_span(attributes=[*one_span()["attributes"], odd])]))
    ran = cli("check", "odd.json")
    assert (ran.code, "odd.json:1: �[31mred" in ran.out) == (0, True)


@pytest.mark.long
@pytest.mark.parametrize("packed", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gzip", "zstd"])
@pytest.mark.parametrize("part", [0.005, 0.5, 0.99])
def test_an_archive_cut_anywhere_is_cut_short(packed: Callable[[bytes], bytes], part: float, tmp_path: Path) -> None:
    """Within its first block as within its last."""
    path = run_file(tmp_path / "run.json")
    whole = packed(path.read_bytes())
    path.write_bytes(whole[: int(len(whole) * part)])
    assert counted(path)[1] == {"truncated": 1}


def test_an_archive_cut_at_a_line_is_cut_short(tmp_path: Path) -> None:
    """All of its lines are whole, and there were more of them."""
    path = run_file(tmp_path / "run.json")
    packer = zstandard.ZstdCompressor().compressobj()
    packed = packer.compress(path.read_bytes()) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    path.write_bytes(packed)
    assert counted(path) == (300, {"truncated": 1})
    path.write_bytes((packed + packer.flush()) * 2)
    assert counted(path) == (300, {"duplicate": 300})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{\n "resourceSpans": []\n}\n{\n "resourceSpans": []\n}\n', "several JSON documents of many lines each"),
        (
            b'{\n "name": "chat",\n "context": {\n  "trace_id": "0x1"\n }\n}\n',
            "the output of Python's ConsoleSpanExporter",
        ),
        (b'{"resource_spans": []}\n', "OTLP with snake_case names"),
    ],
)
def test_what_nearly_is_a_trace_is_named(content: bytes, reason: str, cli: Callable[..., Ran], tmp_path: Path) -> None:
    """With what to do instead."""
    (tmp_path / "near.json").write_bytes(content)
    ran = cli("report", "near.json")
    assert ran.code == 2
    assert f"it looks like {reason}" in ran.err


def test_clocks_that_disagree_are_counted(tmp_path: Path) -> None:
    """A span that ends before it starts, and one with an event after its end."""
    span = one_span()
    late = {"name": "complete", "timeUnixNano": str(int(span["endTimeUnixNano"]) + 5_000_000)}
    back = one_span(spanId="ab" * 8, endTimeUnixNano=str(int(span["startTimeUnixNano"]) - 1))
    (tmp_path / "skew.json").write_bytes(line([{**span, "events": [late]}, back]))
    assert counted(tmp_path / "skew.json") == (2, {"clock_skew": 2})


def test_what_limits_dropped_is_counted(tmp_path: Path) -> None:
    """Events and attributes that never left the process."""
    (tmp_path / "limits.json").write_bytes(line([one_span(droppedEventsCount=72, droppedAttributesCount=3)]))
    assert counted(tmp_path / "limits.json") == (1, {"events_dropped": 72, "attributes_dropped": 3})


@pytest.mark.parametrize(
    "content",
    [b"hello, world\n", b'{"name": "a package"}\n', b"\x00\x01\x02\x03 binary", b"\x7fELF\x02\x01\x01" + bytes(99)],
    ids=["text", "json", "binary", "program"],
)
def test_what_is_no_trace_is_an_error_with_its_name(content: bytes, tmp_path: Path) -> None:
    """A wrong file given by name is a mistake of the person who gave it."""
    path = tmp_path / "other.bin"
    path.write_bytes(content)
    with pytest.raises(NotATrace, match=r"other\.bin is not a trace file"):
        counted(path)


def test_a_file_that_is_not_there_is_an_error_with_its_name(cli: Callable[..., Ran]) -> None:
    """Exit code 2, one line, no traceback."""
    ran = cli("report", "missing.json")
    assert (ran.code, ran.out, ran.err) == (2, "", "otel-lifecycle: missing.json: No such file or directory\n")


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    """Nothing to read is not an empty workload."""
    with pytest.raises(Unusable, match="the folder is empty"):
        counted(tmp_path)


def test_troubles_are_said(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """The report names how many, what, and the first places."""
    path = run_file(tmp_path / "run.json")
    path.write_bytes(path.read_bytes() + b"garbage\n")
    ran = cli("report", "run.json")
    assert ran.code == 0
    assert "What was not read" in ran.out
    assert "messages that are not OTLP; skipped" in ran.out
    assert "run.json:4" in ran.out


def test_duplicates_are_checked_in_bounded_memory() -> None:
    """The oldest ids are forgotten, and how many is known."""
    seen = Seen(capacity=10)
    assert all(seen.add("trace", str(number)) for number in range(35))
    assert not seen.add("trace", "34")
    assert not seen.add("trace", "20")
    assert seen.add("trace", "0")
    assert seen.forgotten == 20
