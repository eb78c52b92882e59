"""Every form of trace file says the same."""

from __future__ import annotations

import io
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from otel_lifecycle._table.sources.framing import messages
from otel_lifecycle._table.sources.reader import Reader, total_bytes
from otel_lifecycle._table.sources.spans import Item, MetricPoint, Span
from otel_lifecycle._table.sources.tally import ReadingTally
from tests.cli.forms import FORMS, Form
from tests.cli.live import Server, serve, server
from tests.cli.running import Ran


@pytest.fixture(scope="module")
def made() -> Server:
    """A process that served three requests."""
    with server(token_times=True) as process:
        serve(process, (0.2, 0.3, 1.0), (1.1, 1.2, 1.5), ("complete", 1.6), request_id="r1", input_tokens=7)
        serve(process, (0.2,), (), ("cancel", 0.5), start=1.0, request_id="r2")
        serve(process, (0.1, 0.2, 0.4), (0.5,), ("fail", 0.6), start=2.0, request_id="r3")
        process.reader.collect()
        return process


def read(*sources: object) -> tuple[list[Item], ReadingTally]:
    """Read some sources."""
    tally = ReadingTally()
    return list(Reader([str(source) for source in sources], tally)), tally


def spans_of(items: list[Item]) -> list[Span]:
    """Return the spans among items."""
    return [item for item in items if isinstance(item, Span)]


def expected(made: Server) -> list[tuple[str, str, dict[str, Any], list[tuple[str, int]]]]:
    """Return what the SDK's own spans say of the three requests."""
    return [
        (
            f"{span.context.trace_id:032x}",
            f"{span.context.span_id:016x}",
            dict(span.attributes or {}),
            [(event.name, event.timestamp) for event in span.events],
        )
        for span in made.spans
        if span.name == "chat smollm2"
    ]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_gives_the_spans_of_the_sdk(made: Server, form: Form, tmp_path: Path) -> None:
    """Ids, attributes of every type and events with their times come out as they went in."""
    path = tmp_path / "traces"
    path.write_bytes(form(made.proto()))
    items, tally = read(path)
    told = [
        (span.trace_id, span.span_id, dict(span.attributes), [(event.name, event.time_ns) for event in span.events])
        for span in spans_of(items)
    ]
    assert told == expected(made)
    assert dict(tally.read) == {"spans": len(made.spans), "messages": 1, "files": 1}
    assert tally.lines() == []


@pytest.mark.long
@pytest.mark.parametrize("requests", [1, 20, 100, 1000, 3000])
def test_a_bare_message_of_any_size_is_one(made: Server, requests: int, tmp_path: Path) -> None:
    """From 16 KiB to 2 MiB its first bytes are a length, too: 0A xx xx xx 0A."""
    message = TracesData.FromString(made.proto())
    spans = message.resource_spans[0].scope_spans[0].spans
    whole = next(span for span in spans if span.name == "chat smollm2")
    del spans[:]
    for number in range(requests):
        spans.add().CopyFrom(whole)
        spans[-1].span_id = (number + 1).to_bytes(8, "big")
    path = tmp_path / "bare.pb"
    path.write_bytes(message.SerializeToString())
    items, tally = read(path)
    assert (len(spans_of(items)), tally.lines()) == (requests, [])


def test_a_length_that_begins_as_a_message_is_one_where_it_fits() -> None:
    """A message of 160 MiB, whose length reads as the start of a bare one."""
    size = 0x0A010A00
    content = struct.pack(">I", size) + b"{".ljust(size) + struct.pack(">I", 2) + b"{}"
    told = [(kind, len(message)) for kind, message in messages(io.BufferedReader(io.BytesIO(content)))]
    assert told == [("json", size), ("json", 2)]


def test_a_pipe_is_a_source(made: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dash reads standard input."""

    class Pipe:
        buffer = io.BytesIO(made.json_line())

    monkeypatch.setattr(sys, "stdin", Pipe)
    items, _ = read("-")
    assert len(spans_of(items)) == 3


def test_a_rotated_set_is_one_source(made: Server, tmp_path: Path) -> None:
    """A folder or a pattern means all of its files; what lies beside the traces is counted and skipped."""
    message = json.loads(made.json_line())
    spans = message["resourceSpans"][0]["scopeSpans"][0]["spans"]
    for number, part in enumerate((spans[:4], spans[4:])):
        message["resourceSpans"][0]["scopeSpans"][0]["spans"] = part
        (tmp_path / f"traces-{number}.json").write_text(json.dumps(message) + "\n")
    (tmp_path / "README").write_text("what lies here\n")
    items, tally = read(tmp_path)
    assert [span.span_id for span in spans_of(items)] == [span_id for _, span_id, _, _ in expected(made)]
    assert [(kind, count) for kind, count, _, _ in tally.lines()] == [("not_a_trace", 1)]
    assert spans_of(read(tmp_path / "traces-*.json")[0]) == spans_of(items)


def test_metrics_beside_the_spans_are_read(made: Server, tmp_path: Path) -> None:
    """The inter-token histogram is taken from the same file, with its buckets."""
    path = tmp_path / "both.json"
    path.write_bytes(made.json_line() + made.metrics_line())
    items, tally = read(path)
    points = [item for item in items if isinstance(item, MetricPoint) and item.count is not None]
    told = {point.name: (point.count, point.total) for point in points}
    assert told["inference.inter_token_latency"][0] == 4
    assert told["inference.inter_token_latency"][1] == pytest.approx(0.1 + 0.1 + 0.3 + 0.1)
    assert tally.counts["other_metrics"] > 0


@pytest.mark.parametrize("text", [b"tiny-llm", b"tiny\xffllm"], ids=["sound", "broken"])
def test_metrics_in_protobuf_are_what_they_are_in_json(made: Server, text: bytes, tmp_path: Path) -> None:
    """Also with a text that is not UTF-8: the parser of spans refuses either, and no repair makes spans of them."""
    line = made.metrics_line()
    assert b"tiny-llm" in line
    message = ParseDict(json.loads(line), MetricsData()).SerializeToString()
    (tmp_path / "metrics.json").write_bytes(line.replace(b"tiny-llm", text))
    (tmp_path / "metrics.pb").write_bytes(message.replace(b"tiny-llm", text))
    (plain, told), (items, tally) = (read(tmp_path / f"metrics.{form}") for form in ("json", "pb"))
    assert items == plain != []
    assert tally.counts == told.counts


def test_everything_gives_the_spans_of_all_libraries(made: Server, tmp_path: Path) -> None:
    """For a single trace the stage spans are wanted, too."""
    path = tmp_path / "traces.pb"
    path.write_bytes(made.proto())
    found = [item for item in Reader([str(path)], ReadingTally(), everything=True) if isinstance(item, Span)]
    assert [span.name for span in found] == [span.name for span in made.spans]


def test_the_size_is_known_of_files_only(tmp_path: Path) -> None:
    """A progress bar has a total where there is one."""
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").write_bytes(b"678")
    assert total_bytes([str(tmp_path)]) == 8
    assert total_bytes([str(tmp_path / "a"), "-"]) is None
    assert total_bytes(["http://localhost:16686"]) is None


def test_progress_counts_every_byte(made: Server, tmp_path: Path) -> None:
    """The bar ends at its end."""
    path, seen = tmp_path / "traces.json", list[int]()
    path.write_bytes(made.json_line())
    list(Reader([str(path)], ReadingTally(), progress=seen.append))
    assert sum(seen) == path.stat().st_size


def test_reports_of_two_forms_are_the_same(made: Server, cli: Callable[..., Ran], tmp_path: Path) -> None:
    """What is said does not depend on how it was written."""
    told = []
    for name in ("json_line", "proto_zstd_messages"):
        (tmp_path / "traces").write_bytes(FORMS[name](made.proto()))
        told.append(cli("report", "traces", "--json").json)
    assert told[0] == told[1]


def test_metric_points_are_the_same_in_both_encodings(tmp_path: Path) -> None:
    """A count of 0, which printers leave out, is 0; a gauge without a recorded value is no reading of 0."""
    points: list[dict[str, Any]] = [
        {"name": "inference.cache.usage", "gauge": {"dataPoints": [{"timeUnixNano": "5", "flags": 1}]}},
        {"name": "inference.tokens", "sum": {"dataPoints": [{"asInt": "7"}], "aggregationTemporality": 2}},
        {
            "name": "inference.inter_token_latency",
            "histogram": {"dataPoints": [{"explicitBounds": [0.1], "bucketCounts": ["0", "0"]}]},
        },
        {"name": "another", "gauge": {"dataPoints": [{"asInt": "7"}]}},
    ]
    document = {"resourceMetrics": [{"scopeMetrics": [{"metrics": points}]}]}
    (tmp_path / "json").write_text(json.dumps(document))
    (tmp_path / "proto").write_bytes(ParseDict(document, MetricsData()).SerializeToString())
    (from_json, left), (from_proto, also_left) = read(tmp_path / "json"), read(tmp_path / "proto")
    assert from_json == from_proto
    told = [(point.value, point.count, point.cumulative) for point in from_json if isinstance(point, MetricPoint)]
    assert told == [(None, None, False), (7.0, None, True), (None, 0, False)]
    assert left.counts["other_metrics"] == also_left.counts["other_metrics"] == 1
