"""``otel-lifecycle sql``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from otel_lifecycle._cli.commands import options
from otel_lifecycle._cli.commands.export import into, table_of
from otel_lifecycle._cli.render.sections import Table
from otel_lifecycle._cli.render.terminal import console, show_tables
from otel_lifecycle._table.errors import Unusable
from otel_lifecycle._table.export import FORMS, write
from otel_lifecycle._table.store import RequestTable, as_text, sql_error
from otel_lifecycle._table.text import plural, printable

# More rows scroll out of any terminal, and each is laid out in memory.
SHOWN = 1000
"""Rows that the terminal shows."""


@click.command(
    help="The table of requests, asked in DuckDB's SQL.\n\n"
    + options.SOURCES
    + " An event log is read, too."
    + options.examples(
        "otel-lifecycle sql 'select model, count(*), quantile_cont(ttft, 0.95) from requests group by all' run.jsonl",
        "otel-lifecycle sql 'describe requests' run.jsonl",
    )
)
@click.argument("query")
@options.sources_argument
@click.option("--format", "form", type=click.Choice(["table", *FORMS]), default="table", show_default=True)
@options.out_option
@options.shape_option
def sql(query: str, sources: tuple[str, ...], form: str, out: str | None, shape: str) -> None:
    """Ask the requests of some sources."""
    import duckdb

    with table_of(sources, shape) as table:
        try:
            if form == "table" and out is None:
                _show(table, query)
            else:
                # A file wants a form that programs read.
                chosen = options.form_of("jsonl" if form == "table" else form)
                # COPY takes a query in brackets, in which a semicolon is an error.
                into(out, lambda path: write(table.connection, query.rstrip("; \n"), chosen, Path(path)))
        except duckdb.Error as error:
            raise sql_error(error) from error


def _show(table: RequestTable, query: str) -> None:
    found = table.connection.execute(query)
    names = tuple(column[0] for column in found.description or ())
    if not names:
        raise Unusable("the query gives no rows")
    # One row more than shown tells whether there are more.
    rows = found.fetchmany(SHOWN + 1)
    numbers = [all(_is_number(row[index]) for row in rows) for index in range(len(names))]
    shown = Table(
        title="",
        columns=tuple(map(printable, names)),
        rows=tuple(tuple(printable(as_text(cell)) for cell in row) for row in rows[:SHOWN]),
        left=next((index for index, number in enumerate(numbers) if number), len(names)),
        note=plural(len(rows), "row") if len(rows) <= SHOWN else f"the first {SHOWN:,} rows; -o FILE writes all",
    )
    show_tables(console(), [shown])


def _is_number(cell: Any) -> bool:
    return cell is None or (isinstance(cell, (int, float)) and not isinstance(cell, bool))
