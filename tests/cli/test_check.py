"""Every illegal transition, with its request, its trace, its place and the rule it broke."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_lifecycle import semconv
from otel_lifecycle._table.requests.from_span import MOST_UNTOLD, verdict_of
from otel_lifecycle._table.sources.spans import Span
from tests.cli.generator import Load, write
from tests.cli.live import serve, server
from tests.cli.running import Ran


def test_a_legal_run_is_code_0(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """With the number of requests checked."""
    with (tmp_path / "run.json").open("wb") as out:
        write(Load(requests=50), out)
    ran = cli("check", "run.json")
    assert (ran.code, ran.out) == (0, "all legal: 50 requests\n")


def illegal(path: Path) -> str:
    """Write a run with one request that skipped a boundary, and one that never ended; return the trace of the first."""
    with server() as process:
        serve(process, (0.1, 0.2, 0.4), (0.5,), ("complete", 0.6), request_id="good")
        serve(process, (0.1, None, 0.4), (), ("cancel", 0.6), request_id="skipped")
        serve(process, (0.1, 0.2), (), None, request_id="endless")
        path.write_bytes(process.json_line())
        span = next(
            span for span in process.spans if dict(span.attributes or {}).get("inference.request.id") == "skipped"
        )
        return f"{span.context.trace_id:032x}"


def test_an_illegal_transition_is_code_1(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """What, where, in which trace, and what was legal there."""
    trace = illegal(tmp_path / "run.json")
    ran = cli("check", "run.json")
    assert ran.code == 1
    assert "illegal_transition: first_token in preprocessing, " in ran.out
    assert f"request skipped  trace {trace}" in ran.out
    assert "rule: 'first_token' while preprocessing; legal there in shape 'default': input_ready or" in ran.out
    assert "missing_terminal" in ran.out
    assert ran.out.endswith("2 violations in 2 of 3 requests\n")


def test_programs_get_the_same(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """As lines of JSON, and as CSV."""
    trace = illegal(tmp_path / "run.json")
    lines = cli("check", "run.json", "--json").json_lines
    assert [(line["request"], line["kind"], line["state"], line["event"]) for line in lines] == [
        ("skipped", "illegal_transition", "preprocessing", "first_token"),
        ("endless", "missing_terminal", "prefill", None),
    ]
    assert lines[0]["trace_id"] == trace
    rows = list(csv.DictReader(io.StringIO(cli("check", "run.json", "--csv").out)))
    assert [row["rule"] for row in rows] == [line["rule"] for line in lines]


def test_lost_events_are_no_violation(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """What a limit dropped cannot be called illegal; that it was is said."""
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from tests.cli.live import ARRIVED, proto_of

    exporter, provider = InMemorySpanExporter(), TracerProvider(span_limits=SpanLimits(max_events=3))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    span = provider.get_tracer("somebody.else").start_span("chat", start_time=ARRIVED)
    for number, event in enumerate(("arrive", "admit", "input_ready", "first_token", "token", "complete")):
        span.add_event(event, timestamp=ARRIVED + number)
    span.end(ARRIVED + 9)
    (tmp_path / "run.pb").write_bytes(proto_of(exporter.get_finished_spans()))
    ran = cli("check", "run.pb")
    assert ran.code == 0
    assert "all legal: 1 request\n1 request cannot be judged: limits dropped events of theirs" in ran.out
    report = cli("report", "run.pb", "--json").json
    assert (report["requests"]["completed"], report["latency"]["e2e"]["count"]) == (1, 0)


@pytest.mark.parametrize("content", ["empty", "cut", "foreign"])
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_nothing_to_check_is_code_2(
    cli: Callable[..., Ran], tmp_path: Path, content: str, form: tuple[str, ...]
) -> None:
    """All of no requests are legal, and a pipeline that lost its traces is not in order."""
    with (tmp_path / "run.json").open("wb") as out:
        write(Load(requests=1), out)
    whole = (tmp_path / "run.json").read_bytes()
    told = {
        "empty": b"",
        "cut": whole[:1000],
        "foreign": whole.replace(b"inference.", b"other.").replace(b"arrive", b"x"),
    }
    (tmp_path / "run.json").write_bytes(told[content])
    ran = cli("check", "run.json", *form)
    assert (ran.code, ran.err) == (2, "otel-lifecycle: nothing to check: no request in run.json\n")
    assert "all legal" not in ran.out


def test_a_span_that_counts_any_number_of_violations_is_read() -> None:
    """A damaged count takes no memory for each violation it claims."""
    attributes = {semconv.OUTCOME: "completed", semconv.VIOLATIONS: 10**15}
    span = Span(
        trace_id="1" * 32,
        span_id="1" * 16,
        parent_id="",
        name="",
        start_ns=1,
        end_ns=2,
        attributes=attributes,
        resource={},
    )
    assert len(verdict_of(span).breaches) == MOST_UNTOLD


def test_no_name_steers_the_terminal(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """What a client calls its request is printed, and does nothing."""
    illegal(tmp_path / "run.json")
    content = (tmp_path / "run.json").read_text().replace('"skipped"', json.dumps("\x1b[31mred\u202e"))
    (tmp_path / "run.json").write_text(content)
    ran = cli("check", "run.json")
    assert "request �[31mred�  trace" in ran.out


@pytest.mark.process
def test_the_bar_is_gone_before_anything_is_printed(tmp_path: Path) -> None:
    """On one terminal both would write into each other's lines."""
    illegal(tmp_path / "run.json")
    (tmp_path / "log.jsonl").write_text('{"event": "arrive", "timestamp": 0}\n')
    for command in (("check", "run.json"), ("replay", "--requests", "log.jsonl")):
        told = on_terminal(*command, folder=tmp_path)
        first = told.index("trace " if command[0] == "check" else '{"request"')
        assert "━" not in told[first:], told
        # Whatever the bar wrote was erased: its line, and the cursor's hiding.
        assert "━" not in told or "\x1b[2K" in told[:first]


def on_terminal(*arguments: str, folder: Path) -> str:
    """Run the command on a terminal of its own, and return what appeared there."""
    root = str(Path(__file__).parents[2])
    code = f"import sys; sys.path.insert(0, {root!r}); from otel_lifecycle._cli.main import main; main()"
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=folder, stdout=follower, stderr=follower, env=environment
    )
    os.close(follower)
    told = bytearray()
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # How Linux tells the end of a terminal.
            break
        if not chunk:
            break
        told += chunk
    process.wait(60)
    os.close(leader)
    return told.decode()


def test_many_are_counted_beyond_the_limit(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """The exit code and the count do not depend on what is printed."""
    illegal(tmp_path / "run.json")
    ran = cli("check", "run.json", "--limit", 1)
    assert (ran.code, ran.out.count("rule:")) == (1, 1)
    assert ran.out.endswith("2 violations in 2 of 3 requests\n")
