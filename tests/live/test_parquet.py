"""The table as Parquet is a source like any other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_lifecycle import read_requests
from otel_lifecycle._table.schema import COLUMNS, VERSION
from tests.cli.generator import Load, write
from tests.cli.running import Ran


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of eighty requests as OTLP JSON."""
    path = tmp_path / "run.json"
    with path.open("wb") as out:
        write(Load(requests=80, cancelled=0.1, failed=0.1), out)
    return path


def test_a_report_of_the_table_is_that_of_the_spans(cli: Callable[..., Ran], run: Path) -> None:
    """Latencies, stages, outcomes and conditions are the same; only the place they come from differs."""
    assert cli("export", run, "--format", "parquet", "-o", "run.parquet").code == 0
    told = [cli("report", source, "--json").json for source in (run, "run.parquet")]
    for key in ("requests", "latency", "stages", "output", "abnormal"):
        assert told[0].get(key) == told[1].get(key), key


def test_one_request_of_the_table_can_be_viewed(cli: Callable[..., Ran], run: Path) -> None:
    """By its id, with every stage."""
    cli("export", run, "--format", "parquet", "-o", "run.parquet")
    told = cli("view", "r7", "run.parquet", "--json").json
    assert [bar["name"] for bar in told["waterfall"][1:]] == ["queue", "preprocessing", "prefill", "decode"]


def test_rows_of_the_table_come_back_unchanged(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Every column, also those that the spans could not give again, such as tokens after the end."""
    events = [("arrive", 0), ("admit", 1), ("input_ready", 2), ("first_token", 3), ("token", 4), ("complete", 5)]
    late = [*events, ("token", 6)]
    lines = [{"request_id": "r", "event": name, "timestamp": 1.77e9 + time} for name, time in late]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert cli("export", "log.jsonl", "--format", "parquet", "-o", "one.parquet").code == 0
    assert cli("export", "one.parquet", "--format", "parquet", "-o", "two.parquet").code == 0
    found = [read_requests(tmp_path / name).fetchall() for name in ("one.parquet", "two.parquet")]
    assert found[0] == found[1]
    columns = [column.name for column in COLUMNS]
    assert found[1][0][columns.index("wasted_tokens")] == 1


def test_an_export_states_its_version(cli: Callable[..., Ran], run: Path, tmp_path: Path) -> None:
    """In the metadata of the file, where it is no column."""
    import duckdb

    cli("export", run, "--format", "parquet", "-o", "run.parquet")
    told = duckdb.execute("SELECT key, value FROM parquet_kv_metadata(?)", [str(tmp_path / "run.parquet")]).fetchall()
    assert told == [(b"otel_lifecycle_schema_version", str(VERSION).encode())]


def test_a_table_of_a_newer_version_is_refused(cli: Callable[..., Ran], run: Path, tmp_path: Path) -> None:
    """Its columns may mean something else."""
    import duckdb

    cli("export", run, "--format", "parquet", "-o", "run.parquet")
    newer = f"(FORMAT parquet, KV_METADATA {{otel_lifecycle_schema_version: '{VERSION + 1}'}})"
    duckdb.sql(f"COPY (FROM '{tmp_path / 'run.parquet'}') TO '{tmp_path / 'newer.parquet'}' {newer}")
    ran = cli("report", "newer.parquet")
    assert ran.code == 2
    assert f"version {VERSION + 1} of the table, and this program knows {VERSION}; update it" in ran.err


def test_a_table_without_some_columns_is_read_by_its_spans(cli: Callable[..., Ran], run: Path, tmp_path: Path) -> None:
    """A user's own selection of columns is a source, too."""
    import duckdb

    cli("export", run, "--format", "parquet", "-o", "run.parquet")
    few = f"SELECT * EXCLUDE (wasted_tokens, gaps) FROM '{tmp_path / 'run.parquet'}'"
    duckdb.sql(f"COPY ({few}) TO '{tmp_path / 'few.parquet'}' (FORMAT parquet)")
    told = [cli("report", source, "--json").json["stages"] for source in ("run.parquet", "few.parquet")]
    assert told[0] == told[1]


def test_another_table_is_refused_by_what_it_lacks(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """A Parquet file of something else is not a source."""
    import duckdb

    duckdb.sql(f"COPY (SELECT 1 AS trace_id) TO '{tmp_path / 'other.parquet'}' (FORMAT parquet)")
    ran = cli("report", "other.parquet")
    assert ran.code == 2
    assert "a table without the column arrival_ns" in ran.err
