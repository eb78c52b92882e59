"""The table of requests in a DuckDB database that spills to disk: filled row by row, read by SQL."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_lifecycle._table import handed
from otel_lifecycle._table.errors import Unusable
from otel_lifecycle._table.machine import to_json_bytes
from otel_lifecycle._table.row import TableRow
from otel_lifecycle._table.schema import COLUMNS, TABLE, create_statement
from otel_lifecycle._table.sources.made_rows import MadeRows

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

BATCH: Final = 20_480
"""Rows written together, or some more.  They pass through a Parquet file: that keeps digits, and nothing is parsed."""
AT_ONCE: Final = 256
"""Rows that are handed over together, of those that come one by one: the processor finds them in its cache."""
FEW: Final = 16
"""So many rows at least are handed over by columns: for fewer, each column costs more than its values."""
MEMORY: Final = "160MB"
"""What the database holds in memory; the rest is on disk.  Python needs about as much for itself."""
STATED: Final = tuple([column.name for column in COLUMNS if column.name != "arrival"])
"""The columns that a row states; the table works the arrival out of ``arrival_ns``."""

_KINDS: Final = {"BIGINT": handed.LONG, "BOOLEAN": handed.LONG, "DOUBLE": handed.DOUBLE}
"""How values are handed over; all others are text, and nested ones text of JSON."""
_SQL: Final = {
    **{column.type: f'"{{}}"::JSON::{column.type}' for column in COLUMNS},
    **dict.fromkeys(("VARCHAR", "BIGINT", "DOUBLE"), '"{}"'),
    "BOOLEAN": '"{}"::BOOLEAN',
    # As DuckDB writes it: numbers have many spellings.
    "JSON": 'json("{}")',
}
"""And how a column is made of them."""
_FLAT: Final = frozenset({"VARCHAR", *_KINDS})


class RequestTable:
    """The table ``requests``.

    ``connection`` is DuckDB's own, for any SQL.  Close the table, or use it as a context manager:
    its files are deleted then.  ``keep_in_memory`` is for a connection that outlives the table.  ``columns``: of
    :data:`STATED`, those that are kept.
    """

    def __init__(self, *, columns: Collection[str] = STATED, keep_in_memory: bool = False) -> None:
        connect = _connect()
        self._kept = [column for column in COLUMNS if column.name in columns]
        self.columns: Final = tuple([column.name for column in self._kept])
        # A folder with mode 0700: rows may hold ids of users.
        self._folder = Path(tempfile.mkdtemp(prefix="otel-lifecycle-"))
        self._pending: list[tuple[Any, ...]] = []
        self._filled = self._empty()
        self._handed = self.count = 0
        self._begun = False
        # Not a file, which would be written twice, and first of all as a log.  What memory does not hold is spilled.
        self.connection: DuckDBPyConnection = connect(":memory:")
        if not keep_in_memory:
            # DuckDB's default is 80 % of the machine, which may be the machine that serves the model.
            self.connection.execute(f"SET memory_limit = '{MEMORY}'; SET preserve_insertion_order = true")
            self.connection.execute(f"SET temp_directory = {quoted(str(self._folder / 'spilled'))}")
            # Sums of floats depend on their order: with one thread, the same file gives the same report.
            self.connection.execute("SET threads = 1")
        # The folder goes with the table, also where nobody closes it: a table lives as long as its workload.
        self._delete = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.connection.execute(create_statement(columns=[*self.columns, "arrival"]))

    def __enter__(self) -> RequestTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and delete its files."""
        self.connection.close()
        self._delete()

    def add(self, row: TableRow) -> None:
        """Add a row; it is in the table after the next :meth:`flush`."""
        self._add_cells(tuple(map(row.get, self.columns)))

    def add_made(self, rows: MadeRows) -> None:
        """Add rows whose columns are those of the table."""
        if rows.size < FEW:
            cells = [one if type(one) is list else repeat(one, rows.size) for one in rows.columns]
            for row in zip(*cells, strict=True):
                self._add_cells(row)
        else:
            # They come after all that are pending.
            self._hand_pending()
            self._hand(rows.columns, rows.size)

    def _add_cells(self, cells: tuple[Any, ...]) -> None:
        self._pending.append(cells)
        if len(self._pending) == AT_ONCE:
            self._hand_pending()

    def _hand_pending(self) -> None:
        if self._pending:
            self._hand(list(map(list, zip(*self._pending, strict=True))), len(self._pending))
            self._pending.clear()

    def _hand(self, columns: Sequence[Any], size: int) -> None:
        """Hand over some rows, column by column."""
        for column, filled, cells in zip(self._kept, self._filled, columns, strict=True):
            if type(cells) is not list:
                filled.repeat(cells, size)
            elif column.type in _FLAT:
                filled.take(cells)
            else:
                filled.take([None if cell is None else _as_json(cell) for cell in cells])
        self._handed += size
        self.count += size
        if self._handed >= BATCH:
            self._write()

    def flush(self) -> None:
        """Write what is pending."""
        self._hand_pending()
        if self._handed:
            self._write()
        if self._begun:
            self.connection.execute("COMMIT")
            self._begun = False

    def _empty(self) -> list[handed.HandedColumn]:
        return [handed.HandedColumn(_KINDS.get(column.type, handed.TEXT)) for column in self._kept]

    def _write(self) -> None:
        told = [(column, filled) for column, filled in zip(self._kept, self._filled, strict=True) if filled.known]
        # A new name each time: DuckDB may remember what was in a file.
        path = self._folder / f"{self.count}.parquet"
        path.write_bytes(handed.file_of({column.name: filled for column, filled in told}, self._handed))
        self._filled, self._handed = self._empty(), 0
        chosen = "".join([f', {_SQL[column.type].format(column.name)} AS "{column.name}"' for column, _ in told])
        if not self._begun:
            # One transaction for all: at the end of each, DuckDB packs its rows, which takes longer than all the rest.
            self.connection.execute("BEGIN")
            self._begun = True
        # A file and not INSERT with parameters: a bulk read is many times faster than single rows.
        self.connection.execute(
            f"INSERT INTO {TABLE} BY NAME SELECT make_timestamp(arrival_ns // 1000) AS arrival{chosen}"
            f" FROM read_parquet({quoted(str(path))})"
        )
        path.unlink()

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Return what a query gives, each row by its columns."""
        found = self.connection.execute(sql, list(parameters))
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def one(self, sql: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Return the one row that a query gives."""
        found = self.connection.execute(sql, list(parameters)).fetchone()
        assert found is not None  # noqa: S101 - an aggregate always gives a row
        return found

    def relation(self) -> DuckDBPyRelation:
        """Return the table as a DuckDB relation; the database lives as long as that does."""
        # It gives connections their relations, see below.
        import duckdb  # noqa: F401

        self.flush()
        self._delete()
        return self.connection.table(TABLE)


def _as_json(cell: Any) -> str:
    return cell if isinstance(cell, str) else to_json_bytes(cell).decode()


def _connect() -> Callable[[str], DuckDBPyConnection]:
    """Import DuckDB and return its connect(); only commands that use the table pay for that."""
    try:
        # The same function without the package's layer of relations and expressions, whose import takes 0.3 s of CPU,
        # half of a short report.  The module is private: duckdb 1.4 to 2.0 have it, others go the public way.
        from _duckdb import connect
    except ImportError:
        from duckdb import connect
    return connect


def quoted(text: str) -> str:
    """Return a text as an SQL literal."""
    # COPY and SET take no parameters, so the text is quoted here.
    return "'" + text.replace("'", "''") + "'"


def fill(table: RequestTable, rows: Iterable[TableRow | MadeRows]) -> None:
    """Put all rows into a table."""
    for row in rows:
        if isinstance(row, MadeRows):
            table.add_made(row)
        else:
            table.add(row)
    table.flush()


def as_text(value: object) -> str:
    """Return a cell of any type as text; nested ones as JSON."""
    if isinstance(value, (Mapping, list)):
        return to_json_bytes(value).decode()
    return "" if value is None else str(value)


def sql_error(error: Exception) -> Unusable:
    """Return what to say of a query that DuckDB refused: the first line, which names the reason."""
    # DuckDB adds the whole query with a marker below it.
    return Unusable(str(error).strip().splitlines()[0])
