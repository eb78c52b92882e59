"""A progress bar on standard error, only where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from otel_lifecycle._table.sources.reader import total_bytes

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ReadingBar:
    """A bar that is shown; called with the number of bytes as they are read."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def __call__(self, size: int) -> None:
        """Move on."""
        self._progress.update(self._task, advance=size)

    def clear(self) -> None:
        """Remove the bar before something is printed on its terminal."""
        # Only then do the bar and the output share a terminal.
        if sys.stdout.isatty():
            self._progress.stop()


@contextmanager
def reading(sources: Iterable[str], what: str = "reading") -> Iterator[ReadingBar | None]:
    """Show how far the sources are read; give None, and show nothing, where standard error is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    # A script must not wait for the drawing of a bar that it does not see.
    from rich import progress

    from otel_lifecycle._cli.render.terminal import console

    columns = (
        progress.TextColumn(what),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console(stderr=True), transient=True) as shown:
        yield ReadingBar(shown, shown.add_task(what, total=total_bytes(sources)))


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show that something is being computed, where a person looks at standard error."""
    # A log of a build must not hold control sequences.
    if not sys.stderr.isatty():
        yield
        return
    from otel_lifecycle._cli.render.terminal import console

    with console(stderr=True).status(what):
        yield
