"""The table as Parquet is a source like any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

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


def test_another_table_is_refused_by_what_it_lacks(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """A Parquet file of something else is not a source."""
    import duckdb

    duckdb.sql(f"COPY (SELECT 1 AS trace_id) TO '{tmp_path / 'other.parquet'}' (FORMAT parquet)")
    ran = cli("report", "other.parquet")
    assert ran.code == 2
    assert "a table without the column arrival_ns" in ran.err
