"""The table of requests: its schema, its rows, and the ways out of it."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from otel_lifecycle import read_requests, request
from otel_lifecycle._table.schema import BY_ATTRIBUTE, COLUMNS, GROUPS, VERSION, create_statement, markdown
from otel_lifecycle._table.store import MEMORY, RequestTable
from tests.cli.generator import Load, encode, line, simulate, spans_of, write
from tests.cli.live import ARRIVED, serve, server
from tests.cli.running import Ran
from tests.cli.test_replay import WORKED, write_json

LOAD = Load(requests=50)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A simulated run."""
    with (tmp_path / "run.json").open("wb") as out:
        write(LOAD, out)
    return tmp_path / "run.json"


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A request with everything: token times, a preemption, a stall, a violation, a link, a caller."""
    with server(token_times=True) as process:
        tracer = process.provider.get_tracer("client")
        with tracer.start_as_current_span("POST /chat"):
            handle = request(tracer_provider=process.provider, arrived_at_ns=ARRIVED, request_id="r1", model="m")
            times = [0.1, 0.2, 0.5]
            with handle:
                for mark, time in zip((handle.admit, handle.input_ready, handle.first_token), times, strict=True):
                    mark(at_ns=ARRIVED + round(time * 1e9))
                for number in range(1, 12):
                    late = 1.0 if number > 6 else 0.0
                    handle.token(at_ns=ARRIVED + round((0.5 + 0.02 * number + late) * 1e9))
                handle.admit(at_ns=ARRIVED + 1_750_000_000)
                handle.complete(at_ns=ARRIVED + 1_800_000_000)
        made = json.loads(process.json_line())
    span = next(
        span
        for scope in made["resourceSpans"][0]["scopeSpans"]
        for span in scope["spans"]
        if any(event["name"] == "arrive" for event in span.get("events", ()))
    )
    link = encode({"inference.link.reason": "stall", "inference.link.time": 0.9, "inference.request.id": "r0"})
    span["links"] = [{"traceId": "ab" * 16, "spanId": "cd" * 8, "attributes": link}]
    span["attributes"] += encode({"inference.queue.idle": 0.1, "inference.queue.ahead": 3, "app.tier": "gold"})
    (tmp_path / "whole.json").write_text(json.dumps(made))
    return tmp_path / "whole.json"


def answers(path: Path, query: str) -> list[Any]:
    """Return what a query over the requests of a file, ``r``, gives."""
    found = read_requests(path).query("r", query)
    assert found is not None
    return found.fetchall()


def test_every_column_is_described_once() -> None:
    """With a type that DuckDB knows, a meaning, and a unit wherever it is a figure."""
    names = [column.name for column in COLUMNS]
    assert len(set(names)) == len(names) == sum(len(group.columns) for group in GROUPS)
    assert len(BY_ATTRIBUTE) == sum(column.attribute is not None for column in COLUMNS)
    assert [column.name for column in COLUMNS if not column.meaning] == []
    figures = {"DOUBLE", "DOUBLE[]", "BIGINT"}
    assert [column.name for column in COLUMNS if column.type in figures and not column.unit] == ["line"]
    with duckdb.connect() as connection:
        connection.execute(create_statement())
        described = connection.execute("describe requests").fetchall()
    assert [name for name, *_ in described] == names
    assert all(f"| `{name}` |" in markdown() for name in names)


def test_the_table_says_what_the_report_says(run: Path, cli: Callable[..., Ran]) -> None:
    """Counts, and quantiles to the last digit."""
    report = cli("report", "run.json", "--json").json
    (row,) = cli(
        "sql",
        "select count(*) as total, count(*) filter (outcome = 'completed') as completed,"
        " quantile_cont(ttft, 0.95) as p95, avg(e2e) as e2e, sum(output_tokens)::bigint as tokens,"
        " count(distinct bottleneck) as kinds from requests",
        "run.json",
        "--format",
        "jsonl",
    ).json_lines
    assert row["total"] == report["requests"]["total"]
    assert row["completed"] == report["requests"]["completed"]
    assert row["p95"] == pytest.approx(report["latency"]["ttft"]["p95"], rel=1e-12)
    assert row["e2e"] == pytest.approx(report["latency"]["e2e"]["mean"], rel=1e-12)
    assert row["tokens"] == report["output"]["output_tokens"]
    assert row["kinds"] == len(report["stages"]["bottlenecks"])


def test_a_row_has_all_that_its_span_says(whole: Path) -> None:
    """Nested columns in seconds after arrival; what is unknown is NULL."""
    relation = read_requests(whole)
    (values,) = relation.fetchall()
    row = dict(zip(relation.columns, values, strict=True))
    assert (row["request_id"], row["model"], row["outcome"], row["line"]) == ("r1", "m", "completed", 1)
    assert (row["arrival_ns"], row["first_token_ns"]) == (ARRIVED, ARRIVED + 500_000_000)
    assert [(one["stage"], one["start"], one["end"]) for one in row["stages"]] == [
        ("queue", 0.0, pytest.approx(0.1)),
        ("preprocessing", pytest.approx(0.1), pytest.approx(0.2)),
        ("prefill", pytest.approx(0.2), pytest.approx(0.5)),
        ("decode", pytest.approx(0.5), pytest.approx(1.8)),
    ]
    assert row["tokens"] == pytest.approx([0.5 + 0.02 * n + (1.0 if n > 6 else 0.0) for n in range(12)])
    assert row["stalls"] == [{"token": 7, "start": pytest.approx(0.64), "length": pytest.approx(1.0)}]
    assert [(one["kind"], one["state"], one["event"]) for one in row["violations"]] == [
        ("illegal_transition", "decode", "admit")
    ]
    assert row["links"] == [
        {"trace_id": "ab" * 16, "span_id": "cd" * 8, "reason": "stall", "time": 0.9, "request_id": "r0"}
    ]
    assert (row["queue_idle"], row["queue_ahead"], row["stall_prefill"], row["legal"]) == (0.1, 3, 0.0, False)
    assert len(row["parent_id"]) == 16
    assert json.loads(row["attributes"])["app.tier"] == "gold"


def test_an_event_log_is_a_source(tmp_path: Path) -> None:
    """Its requests are rows like all others."""
    write_json(tmp_path / "log.jsonl")
    query = "select request_id, outcome, ttft, e2e, source is not null and line > 0 from r order by 1"
    assert answers(tmp_path / "log.jsonl", query) == [
        ("a", "completed", 7.0, 12.0, True),
        ("b", "cancelled", None, 5.0, True),
    ]


def test_read_requests_refuses_what_is_no_trace(tmp_path: Path) -> None:
    """With the reason."""
    (tmp_path / "notes.txt").write_text("nothing\nof interest\n")
    with pytest.raises(ValueError, match=r"notes\.txt is no"):
        read_requests(tmp_path / "notes.txt")


@pytest.mark.long
@pytest.mark.parametrize(
    ("form", "out"), [("parquet", "-o"), ("jsonl", "-o"), ("csv", "-o"), ("jsonl", ""), ("csv", "")]
)
def test_each_form_has_all_rows_and_columns(form: str, out: str, run: Path, cli: Callable[..., Ran]) -> None:
    """In a file, or on standard output."""
    path = run.parent / f"out.{form}"
    ran = cli("export", "run.json", "--format", form, *([out, path] if out else []))
    assert ran.code == 0
    if not out:
        path.write_text(ran.out)
    reader = {"parquet": "read_parquet", "jsonl": "read_json", "csv": "read_csv"}[form]
    with duckdb.connect() as connection:
        found = connection.execute(f"select * from {reader}('{path}')")
        assert [name for name, *_ in found.description or ()] == [column.name for column in COLUMNS]
        assert len(found.fetchall()) == LOAD.requests


def test_parquet_keeps_types_and_nested_columns(whole: Path, cli: Callable[..., Ran]) -> None:
    """Integers of 64 bits, and lists of structs."""
    assert cli("export", "whole.json", "--format", "parquet", "-o", "out.parquet").code == 0
    with duckdb.connect() as connection:
        types = connection.execute(f"describe select * from '{whole.parent / 'out.parquet'}'").fetchall()
        row = connection.execute(
            f"select arrival_ns, stages[3].stage, links[1].reason from '{whole.parent / 'out.parquet'}'"
        ).fetchone()
    told = {name: str(kind).replace('"', "").upper() for name, kind, *_ in types}
    plain = [column for column in COLUMNS if column.type != "JSON"]
    assert {column.name: told[column.name] for column in plain} == {
        column.name: column.type.replace('"', "").upper() for column in plain
    }
    assert row == (ARRIVED, "prefill", "stall")


def test_csv_is_safe_for_spreadsheets(tmp_path: Path, cli: Callable[..., Ran]) -> None:
    """A formula is quoted, and no control character passes."""
    made = [spans_of(one, LOAD)[0] for one in simulate(Load(requests=3))]
    for span, name in zip(made, ["=1+1", "\x1b[31m\u202e", "plain"], strict=True):
        span["attributes"] += encode({"inference.request.workload": name})
    (tmp_path / "run.json").write_bytes(line(made))
    out = cli("export", "run.json", "--format", "csv").out
    cells = [row["workload"] for row in csv.DictReader(io.StringIO(out))]
    assert cells == ["'=1+1", "\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}", "plain"]


def test_perfetto_has_a_track_for_each_request(whole: Path, cli: Callable[..., Ran]) -> None:
    """Stages and stalls as slices, tokens as instants."""
    document = json.loads(cli("export", "whole.json", "--format", "perfetto").out)
    assert document["otherData"] == {"otel_lifecycle_schema_version": VERSION}
    events = document["traceEvents"]
    slices = [(event["name"], event["ts"], event["dur"]) for event in events if event.get("ph") == "X"]
    assert slices == [
        ("chat m", 0.0, 1_800_000.0),
        ("queue", 0.0, pytest.approx(100_000)),
        ("preprocessing", pytest.approx(100_000), pytest.approx(100_000)),
        ("prefill", pytest.approx(200_000), pytest.approx(300_000)),
        ("decode", pytest.approx(500_000), pytest.approx(1_300_000)),
        ("stall", pytest.approx(640_000), pytest.approx(1_000_000)),
    ]
    assert sum(event.get("ph") == "i" for event in events) == 12
    names = [event["args"]["name"] for event in events if event.get("name") == "thread_name"]
    assert names == ["r1"]


def test_perfetto_draws_links_between_requests(tmp_path: Path, cli: Callable[..., Ran]) -> None:
    """From the request that caused a delay to the one that was delayed."""
    cause, effect = (spans_of(one, LOAD)[0] for one in simulate(Load(requests=2)))
    told = encode({"inference.link.reason": "queue", "inference.link.time": 0.5})
    effect["links"] = [{"traceId": cause["traceId"], "spanId": cause["spanId"], "attributes": told}]
    (tmp_path / "run.json").write_bytes(line([cause, effect]))
    events = json.loads(cli("export", "run.json", "--format", "perfetto").out)["traceEvents"]
    flows = [(event["ph"], event["name"], event["tid"]) for event in events if event.get("cat") == "link"]
    assert flows == [("s", "queue", 1), ("f", "queue", 2)]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("select nothing from requests", "nothing"),
        ("selct 1", "syntax error"),
        ("select * from elsewhere", "elsewhere"),
    ],
)
def test_a_query_that_makes_no_sense_is_code_2(run: Path, cli: Callable[..., Ran], query: str, reason: str) -> None:
    """With what the database says of it, in one line."""
    ran = cli("sql", query, "run.json")
    assert (ran.code, ran.out) == (2, "")
    assert reason in ran.err
    assert len(ran.err.splitlines()) == 1


def test_sql_shows_a_table(run: Path, cli: Callable[..., Ran]) -> None:
    """Columns, rows and their number."""
    out = cli("sql", "select outcome, count(*) as n from requests group by all order by n desc", "run.json").out
    assert [row.split() for row in out.strip().splitlines()][:2] == [["outcome", "n"], ["completed", "50"]]
    assert out.splitlines()[-1].strip() == "1 row"


def test_no_request_is_code_2(tmp_path: Path, cli: Callable[..., Ran]) -> None:
    """An empty table is written nowhere."""
    (tmp_path / "empty.json").touch()
    for command in (("export",), ("sql", "select 1")):
        ran = cli(*command, "empty.json", "-o", "out")
        assert ran.code == 2
        assert ran.err.endswith("otel-lifecycle: no request in empty.json\n")
    assert not (tmp_path / "out").exists()


def test_the_table_spills_to_disk() -> None:
    """It holds a bounded part of its rows in memory, and deletes its files in the end."""
    with RequestTable() as table:
        (limit,) = table.rows("select current_setting('memory_limit') as found")
        folder = Path(table.rows("select current_setting('temp_directory') as found")[0]["found"]).parent
        assert folder.exists()
    number, unit = limit["found"].split()
    assert unit == "MiB"
    assert float(number) <= float(MEMORY.removesuffix("MB"))
    assert not folder.exists()


def test_wide_values_stay_whole(tmp_path: Path) -> None:
    """An integer of 64 bits, a text of any characters, and a number of 17 digits."""
    with server() as process:
        serve(process, (0.1, 0.2, 0.3), (), ("complete", 1 / 3), request_id='r"1,', input_tokens=2**53 - 1)
        (tmp_path / "run.json").write_bytes(process.json_line())
    ((name, tokens, seconds),) = answers(tmp_path / "run.json", "select request_id, input_tokens, e2e from r")
    assert (name, tokens) == ('r"1,', 2**53 - 1)
    assert seconds == pytest.approx(1 / 3, abs=1e-9)


def test_the_worked_example_is_a_row(tmp_path: Path) -> None:
    """Of the contract: queue 2, preprocessing 1, prefill 4, decode 5; mixed."""
    write_json(tmp_path / "log.jsonl", [one for one in WORKED if one[0] == "a"])
    columns = "queue_wait, preprocessing, prefill, decode_time, ttft, tpot, token_span, e2e, streamed_tokens"
    found = answers(tmp_path / "log.jsonl", f"select {columns}, bottleneck from r")
    assert found == [(2.0, 1.0, 4.0, 5.0, 7.0, 2.0, 4.0, 12.0, 3, "mixed")]


def test_a_duckdb_without_its_private_module_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is filled and read by the public package alone, and by relations in any case."""
    with RequestTable() as table:
        assert table.relation().fetchall() == []
    monkeypatch.setitem(sys.modules, "_duckdb", None)
    with RequestTable() as table:
        assert table.one("SELECT count(*) FROM requests") == (0,)
