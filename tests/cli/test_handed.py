"""Columns that are handed over as Parquet come out of DuckDB as they went in."""

from __future__ import annotations

from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from otel_lifecycle._table import handed
from otel_lifecycle._table.sources.made_rows import MadeRows
from otel_lifecycle._table.store import STATED, RequestTable

TEXTS = st.one_of(st.none(), st.text(max_size=6), st.sampled_from(["", "chat", "é" * 70, "x" * 127, "y" * 128, "\0"]))
WHOLE = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
names = count()
FLOATS = st.one_of(st.none(), st.floats(allow_nan=False), st.integers(-(2**53), 2**53))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@example(rows=[("a", 1, 0.5)] * 300 + [(None, None, None)] * 300, sizes=[256])
@example(rows=[(None, None, None)] * 256 + [("b", None, 1)], sizes=[256])
@given(
    rows=st.lists(st.tuples(TEXTS, WHOLE, FLOATS), min_size=1, max_size=600),
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=5),
)
def test_values_of_every_kind_come_back(tmp_path: Path, rows: list[tuple[Any, ...]], sizes: list[int]) -> None:
    """Missing values anywhere, texts that are all the same, that are long, and that are not ASCII; in any portions."""
    columns = [handed.HandedColumn(kind) for kind in (handed.TEXT, handed.LONG, handed.DOUBLE)]
    left, portions = iter(rows), cycle(sizes)
    while portion := list(islice(left, next(portions))):
        for column, values in zip(columns, zip(*portion, strict=True), strict=True):
            if len(set(values)) == 1:
                column.repeat(values[0], len(values))
            else:
                column.take(values)
    # A new name each time: DuckDB may remember what was in a file.
    path = tmp_path / f"{next(names)}.parquet"
    path.write_bytes(handed.file_of(dict(zip("abc", columns, strict=True)), len(rows)))
    assert duckdb.execute(f"SELECT * FROM read_parquet('{path}')").fetchall() == rows
    assert [column.known for column in columns] == [
        any(one is not None for one in cells) for cells in zip(*rows, strict=True)
    ]


def test_half_a_surrogate_pair_becomes_a_question_mark(tmp_path: Path) -> None:
    """As elsewhere: a file has no place for it."""
    column = handed.HandedColumn(handed.TEXT)
    column.take(["\ud800", "b"])
    path = tmp_path / "columns.parquet"
    path.write_bytes(handed.file_of({"a": column}, 2))
    assert duckdb.execute(f"SELECT a FROM read_parquet('{path}')").fetchall() == [("?",), ("b",)]


@pytest.mark.parametrize("columns", [STATED, ("trace_id", "arrival_ns", "stages", "attributes", "legal")])
def test_a_table_has_the_columns_it_was_made_for(columns: tuple[str, ...]) -> None:
    """And ``arrival``, which goes with ``arrival_ns``; nested values come as they are or as text of JSON."""
    stay = {"stage": "queue", "start": 0.0, "end": 1.5}
    with RequestTable(columns=columns) as table:
        row = {"trace_id": "a", "arrival_ns": 1_500, "stages": [stay], "attributes": {"a": [1e2]}, "legal": False}
        table.add(row)
        texts = {"stages": '[{"stage":"queue","start":0.0,"end":1.5}]', "attributes": '{"a":[1E2]}'}
        table.add_made(MadeRows(["a"], ["b"], [{**row, **texts}.get(name) for name in table.columns]))
        table.flush()
        table.add({"trace_id": "b", "arrival_ns": 2})
        table.flush()
        first, second, third = table.rows("SELECT * FROM requests")
        assert set(first) == {*columns, "arrival"}
        assert first == second
        assert (first["stages"], first["attributes"], first["legal"]) == ([stay], '{"a":[100.0]}', False)
        assert (third["trace_id"], third["legal"], table.count) == ("b", None, 3)


@settings(max_examples=20)
@given(sizes=st.lists(st.one_of(st.integers(1, 40), st.just(0)), min_size=1, max_size=12))
def test_rows_come_out_in_the_order_they_came_in(sizes: list[int]) -> None:
    """One by one (0), few and many at a time; ids that differ, a text that is the same everywhere, and nothing."""
    with RequestTable(columns=("trace_id", "span_id", "arrival_ns", "model", "outcome")) as table:
        number = 0
        for size in sizes:
            ids = [str(number + at) for at in range(max(size, 1))]
            number += len(ids)
            if size:
                cells = {"trace_id": ids, "span_id": ids, "arrival_ns": list(map(int, ids)), "outcome": "completed"}
                table.add_made(MadeRows(ids, ids, [cells.get(name) for name in table.columns]))
            else:
                table.add({"trace_id": ids[0], "span_id": ids[0], "arrival_ns": int(ids[0]), "outcome": "completed"})
        table.flush()
        found = table.connection.execute("SELECT trace_id, arrival_ns, model, outcome FROM requests ORDER BY rowid")
        assert found.fetchall() == [(str(at), at, None, "completed") for at in range(number)]
