"""``report --follow``: the report again whenever its sources have changed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

import click

from otel_lifecycle._table.errors import UNUSABLE
from otel_lifecycle._table.sources.reader import snapshot

PAUSE_S: Final = 1.0
"""Seconds between two looks at the sources."""
REST: Final = 4
"""The pause after a report in multiples of its own time, so that following a large file takes a fifth of a core."""


def follow(sources: Sequence[str], report: Callable[[], int]) -> int:
    """Call ``report`` now and after every change of the sources, until Ctrl-C; return its last exit code."""
    code, shown = UNUSABLE, snapshot(())
    try:
        click.echo(f"following {', '.join(sources)}; Ctrl-C ends it", err=True)
        while True:
            # Taken before the reading: what arrives in the meantime is a change to be shown next.
            began, found = time.monotonic(), snapshot(sources)
            if found != shown:
                code, shown = _again(report), found
            time.sleep(max(PAUSE_S, REST * (time.monotonic() - began)))
    except KeyboardInterrupt:
        # Ctrl-C is how following ends, so the exit code is that of the last report.
        return code


def _again(report: Callable[[], int]) -> int:
    # A pipe gets one report after the other; only a terminal can be cleared.
    if sys.stdout.isatty():
        click.clear()
    code = report()
    # The reader of a pipe sees the report at once, not when the buffer is full.
    sys.stdout.flush()
    return code
