"""A progress bar on standard error, and only where a person looks at it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from otel_lifecycle._cli.render.terminal import console
from otel_lifecycle._cli.sources.reader import total_bytes

Advance = Callable[[int], None]


@contextmanager
def reading(sources: Iterable[str], what: str = "reading") -> Iterator[Advance | None]:
    """Show how far the sources are read; give None, and show nothing, where standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total_bytes(sources))
        yield lambda size: progress.update(task, advance=size)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show that something is being computed, where a person looks at standard error."""
    if not sys.stderr.isatty():
        yield
        return
    with console(stderr=True).status(what):
        yield
