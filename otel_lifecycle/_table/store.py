"""The table of requests in a DuckDB database that spills to disk: filled row by row, read by SQL."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_lifecycle._table.errors import Unusable
from otel_lifecycle._table.machine import to_json_bytes
from otel_lifecycle._table.row import TableRow
from otel_lifecycle._table.schema import COLUMNS, TABLE, create_statement

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

BATCH: Final = 10_000
"""Rows written together.  They pass through a file of JSON Lines: that keeps nested columns and every digit."""
MEMORY: Final = "160MB"
"""What the database holds in memory; the rest is on disk.  Python needs about as much for itself."""
LOG: Final = "2GB"
"""What the database's log takes on disk: about two million rows."""

_TYPES: Final = ", ".join(f"'{column.name}': '{column.type}'" for column in COLUMNS)


class RequestTable:
    """The table ``requests``.

    ``connection`` is DuckDB's own, for any SQL.  Close the table, or use it as a context manager:
    its files are deleted then.  ``keep_in_memory`` is for a connection that outlives the table.
    """

    def __init__(self, *, keep_in_memory: bool = False) -> None:
        connect = _connect()
        # A folder with mode 0700: rows may hold ids of users.
        folder = Path(tempfile.mkdtemp(prefix="otel-lifecycle-"))
        self._batch = folder / "batch.jsonl"
        self._pending: list[bytes] = []
        self.count = 0
        database = ":memory:" if keep_in_memory else str(folder / "requests.duckdb")
        self.connection: DuckDBPyConnection = connect(database)
        if not keep_in_memory:
            # DuckDB's default is 80 % of the machine, which may be the machine that serves the model.
            self.connection.execute(f"SET memory_limit = '{MEMORY}'; SET preserve_insertion_order = true")
            self.connection.execute(f"SET temp_directory = {quoted(str(folder / 'spilled'))}")
            # The file goes with the command.  By default its log is folded into it every 16 MB, and each time the rows
            # that do not fill a row group yet are compressed again: a third of all the time of writing.
            self.connection.execute(f"SET checkpoint_threshold = '{LOG}'; PRAGMA disable_checkpoint_on_shutdown")
            # Sums of floats depend on their order: with one thread, the same file gives the same report.
            self.connection.execute("SET threads = 1")
        # The folder goes with the table, also where nobody closes it: a table lives as long as its workload.
        self._delete = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.connection.execute(create_statement())

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
        self.add_made(to_json_bytes(row))

    def add_made(self, row: bytes) -> None:
        """Add a row that is a line of JSON already."""
        self._pending.append(row)
        self.count += 1
        if len(self._pending) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Write what is pending."""
        if not self._pending:
            return
        # The reader takes buffers of twice the longest row that it is told of.
        longest = max(2**20, *map(len, self._pending)) + 1
        self._batch.write_bytes(b"\n".join(self._pending))
        self._pending.clear()
        self.connection.execute(
            # A file and not INSERT with parameters: a bulk read is many times faster than single rows.
            f"INSERT INTO {TABLE} SELECT * REPLACE (make_timestamp(arrival_ns // 1000) AS arrival)"
            f" FROM read_json({quoted(str(self._batch))}, format = 'newline_delimited', columns = {{{_TYPES}}},"
            f" maximum_object_size = {longest})"
        )

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


def fill(table: RequestTable, rows: Iterable[TableRow | bytes]) -> None:
    """Put all rows into a table; one that is bytes is a line of JSON already."""
    for row in rows:
        if isinstance(row, bytes):
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
