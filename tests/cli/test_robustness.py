"""Whatever is wrong with a file is counted and said, and never fatal; what is no trace is an error with its name."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_lifecycle._cli.evidence.workload import Settings, gather
from otel_lifecycle._cli.problems import NotATrace, Unusable
from otel_lifecycle._cli.sources.reader import Reader
from otel_lifecycle._cli.sources.seen import Seen
from otel_lifecycle._cli.sources.tally import Tally
from tests.cli.forms import FORMS
from tests.cli.generator import Load, encode, line, simulate, spans_of, write
from tests.cli.running import Ran

LOAD = Load(requests=300)


def run_file(path: Path, load: Load = LOAD) -> Path:
    """Write a simulated run."""
    with path.open("wb") as out:
        write(load, out)
    return path


def counted(*sources: Path) -> tuple[int, dict[str, int]]:
    """Return the requests that some sources have, and the troubles counted."""
    tally = Tally()
    workload = gather(Reader([str(source) for source in sources], tally), Settings(), tally)
    return workload.main.total, {kind: number for kind, number, _, _ in tally.lines()}


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


def test_a_cut_archive_gives_what_came_before(tmp_path: Path) -> None:
    """A gzip file without its end is read up to there."""
    path = run_file(tmp_path / "run.json", Load(requests=2000))
    path.write_bytes(gzip.compress(path.read_bytes())[:-20000])
    requests, troubles = counted(path)
    assert 0 < requests < 2000
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
    """They are no part of a lifecycle."""
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
        {"attributes": [{"key": "inference.outcome", "value": {"intValue": "many"}}]},
    ],
)
def test_a_broken_span_is_counted(changes: dict[str, Any], tmp_path: Path) -> None:
    """Its neighbours are read."""
    (tmp_path / "broken.json").write_bytes(line([one_span(**changes), one_span(spanId="ab" * 8)]))
    assert counted(tmp_path / "broken.json") == (1, {"broken_span": 1})


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
    with pytest.raises(NotATrace, match=r"other\.bin is no trace file"):
        counted(path)


def test_a_file_that_is_not_there_is_an_error_with_its_name(cli: Callable[..., Ran]) -> None:
    """Exit code 2, one line, no traceback."""
    ran = cli("report", "missing.json")
    assert (ran.code, ran.out, ran.err) == (2, "", "otel-lifecycle: missing.json: No such file or directory\n")


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    """Nothing to read is no empty workload."""
    with pytest.raises(Unusable, match="the folder is empty"):
        counted(tmp_path)


def test_troubles_are_said(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """The report names how many, what, and the first places."""
    path = run_file(tmp_path / "run.json")
    path.write_bytes(path.read_bytes() + b"garbage\n")
    ran = cli("report", "run.json")
    assert ran.code == 0
    assert "What was not read" in ran.out
    assert "messages that are no OTLP; skipped" in ran.out
    assert "run.json:4" in ran.out


def test_duplicates_are_checked_in_bounded_memory() -> None:
    """The oldest ids are forgotten, and how many is known."""
    seen = Seen(capacity=10)
    assert all(seen.add("trace", str(number)) for number in range(35))
    assert not seen.add("trace", "34")
    assert not seen.add("trace", "20")
    assert seen.add("trace", "0")
    assert seen.forgotten == 20
