"""Options that ``run`` and ``live`` share."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from otel_lifecycle._live.guard import is_loopback
from otel_lifecycle._live.kept import KEEP
from otel_lifecycle._live.saving import JsonLines, Saving, SpooledMessages
from otel_lifecycle._table.errors import Unusable

Command = TypeVar("Command", bound=Callable[..., Any])

FORMS: Final = (".jsonl", ".jsonl.zst", ".parquet")


def live_options(command: Command) -> Command:
    """Choose where to listen, how much to keep and where to save it."""
    for option in (
        click.option("--token", metavar="TEXT", help="The token beyond this machine; made up where none is given."),
        click.option(
            "--host",
            default="127.0.0.1",
            show_default=True,
            help="Address to listen on; beyond this machine only with a token.",
        ),
        click.option(
            "--keep",
            type=click.IntRange(min=1),
            default=KEEP,
            show_default=True,
            help="Requests kept for the page; the oldest leave.",
        ),
        click.option("--save", metavar="FILE", help="Write all that arrives: run.jsonl, run.jsonl.zst or run.parquet."),
    ):
        command = option(command)
    return command


def token_for(host: str, given: str | None) -> str | None:
    """Return the token that a server on a host needs: the given one, or a new one beyond this machine."""
    # Telemetry holds names of users and models, so no one else on the network reads it by default.
    return given or (None if is_loopback(host) else secrets.token_urlsafe(18))


@contextmanager
def saving_to(save: str | None, *, spool: bool) -> Iterator[Saving | None]:
    """Give where telemetry is written while it arrives; Unusable for a form of ``--save`` that is not known.

    JSON lines are written as they arrive.  A Parquet file has its index at its end, so it is made from a temporary file
    when everything has come.  ``spool``: write a temporary file also where nothing is to be saved.
    """
    if save is not None and not save.endswith(FORMS):
        raise Unusable(f"--save {save}: the name must end in {', '.join(FORMS)}")
    if save is not None and not save.endswith(".parquet"):
        # Not a context manager: finish_saving closes it after the servers, which may write until then.
        yield JsonLines(Path(save))
    elif save is None and not spool:
        yield None
    else:
        with tempfile.TemporaryDirectory(prefix="otel-lifecycle-") as folder:
            yield SpooledMessages(Path(folder) / "run.otlp")


def finish_saving(saving: Saving | None, save: str | None, shape: str) -> None:
    """Close the file, make the Parquet file if one is wanted, and say what was written."""
    if saving is None:
        return
    saving.close()
    if save is None:
        return
    if save.endswith(".parquet"):
        # DuckDB is needed for Parquet only.
        from otel_lifecycle._cli.commands.export import table_of
        from otel_lifecycle._table.export import write

        with table_of((str(saving.path),), shape) as table:
            write(table.connection, "SELECT * FROM requests", "parquet", Path(save))
    click.echo(f"wrote {save}", err=True)
