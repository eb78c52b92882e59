"""Rows of the table from any source: files, folders, patterns, pipes, a Jaeger, and event logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from otel_lifecycle._table.alike.messages import AlikeSpans
from otel_lifecycle._table.errors import NotATrace
from otel_lifecycle._table.events.log import read_logs
from otel_lifecycle._table.events.replayed import replayed
from otel_lifecycle._table.requests.from_span import is_request
from otel_lifecycle._table.requests.troubles import note_troubles
from otel_lifecycle._table.row import TableRow, row_of, row_of_span
from otel_lifecycle._table.sources.made_rows import MadeRows
from otel_lifecycle._table.sources.reader import STDIN, Reader
from otel_lifecycle._table.sources.spans import Span
from otel_lifecycle._table.sources.tally import ReadingTally
from otel_lifecycle._table.store import STATED

Progress = Callable[[int], None]


def rows_of(
    sources: Iterable[str], tally: ReadingTally, *, shape: str = "default", progress: Progress | None = None
) -> Iterator[TableRow | MadeRows]:
    """Yield a row per request of some sources, or many at a time.

    Raises NotATrace for a file that is neither trace nor event log.
    """
    # One reader for all sources, so that a span that comes in two files is in the table once.
    reader = Reader((), tally, progress=progress, alike=AlikeSpans(STATED))
    for source in sources:
        reader.sources = [source]
        try:
            yield from _of_spans(reader, shape, tally)
        except NotATrace:
            # A pipe has been consumed by the first attempt.
            if source == STDIN:
                raise
            yield from _of_events(source, shape, tally, progress)


def _of_spans(reader: Reader, shape: str, tally: ReadingTally) -> Iterator[TableRow | MadeRows]:
    for item in reader:
        if isinstance(item, MadeRows):
            yield item
        elif isinstance(item, Span) and is_request(item):
            note_troubles(item, tally)
            yield row_of_span(item, shape)


def _of_events(source: str, shape: str, tally: ReadingTally, progress: Progress | None) -> Iterator[TableRow]:
    """Yield the requests of a log; NotATrace if the file is not a log either."""
    # The origin for logs whose times are not epoch times.  Whole seconds keep their decimals readable.
    now = time.time_ns() // 10**9 * 10**9
    for log in read_logs((source,), tally, progress):
        one = replayed(log, shape, now)
        yield row_of(one.span, one.judged)
