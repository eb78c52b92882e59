"""``otel-lifecycle export`` and what it shares with ``sql``: a table of requests, written to a file or the output."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from otel_lifecycle._cli.commands import options
from otel_lifecycle._cli.commands.progress import reading
from otel_lifecycle._table import perfetto
from otel_lifecycle._table.errors import Unusable
from otel_lifecycle._table.export import FORMS, write
from otel_lifecycle._table.rows import rows_of
from otel_lifecycle._table.sources.tally import TROUBLE, ReadingTally
from otel_lifecycle._table.store import RequestTable, fill
from otel_lifecycle._table.text import number


@click.command(
    help="The table of requests as a file: Parquet, CSV, JSON Lines, or a trace for Perfetto's viewer.\n\n"
    "A row is a request; the columns are described in the documentation. An event log is read, too.\n\n"
    + options.SOURCES
    + options.examples(
        "otel-lifecycle export traces.json --format parquet -o requests.parquet",
        "otel-lifecycle export traces/ --format perfetto -o trace.json",
    )
)
@options.sources_argument
@click.option("--format", "form", type=click.Choice([*FORMS, "perfetto"]), default="jsonl", show_default=True)
@options.out_option
@options.shape_option
def export(sources: tuple[str, ...], form: str, out: str | None, shape: str) -> None:
    """Export the requests of some sources."""
    with table_of(sources, shape) as table:

        def put(path: Path) -> None:
            if form == "perfetto":
                with path.open("wb") as file:
                    perfetto.write(table, file)
            else:
                write(table.connection, "SELECT * FROM requests", options.form_of(form), path)

        into(out, put)


@contextmanager
def table_of(sources: tuple[str, ...], shape: str) -> Iterator[RequestTable]:
    """Give the table of some sources; standard error names what could not be read."""
    tally = ReadingTally()
    with RequestTable() as table:
        with reading(sources) as bar:
            fill(table, rows_of(sources, tally, shape=shape, progress=bar))
        for kind, count, meaning, places in tally.lines():
            if kind in TROUBLE:
                click.echo(f"otel-lifecycle: {number(count)} {meaning} ({'; '.join(places[:1])})", err=True)
        if not table.count:
            # An empty file would be taken for the result of an idle server.
            raise Unusable(f"no request in {', '.join(sources)}")
        yield table


def into(out: str | None, put: Callable[[Path], None]) -> None:
    """Let ``put`` write a file, which is ``out``, or else goes to standard output."""
    if out is not None and out != "-":
        try:
            put(Path(out))
        except OSError as error:
            raise Unusable(f"{out}: {error.strerror or error}") from error
        click.echo(f"wrote {out}", err=True)
        return
    # DuckDB's COPY and Parquet's index need a file to seek in; a pipe gets a copy.
    with tempfile.TemporaryDirectory(prefix="otel-lifecycle-") as folder:
        path = Path(folder) / "out"
        put(path)
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.buffer.flush()
