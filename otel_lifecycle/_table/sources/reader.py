"""All sources of a command, one after the other, as spans and metric points."""

from __future__ import annotations

import glob
import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import compress, repeat
from operator import not_
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

from otel_lifecycle._table.errors import BEING_READ, NotATrace, Unusable
from otel_lifecycle._table.sources.decoders import decode_message, decoder_of
from otel_lifecycle._table.sources.framing import BROKEN, CutShort, Message, Stream, messages, unpacked
from otel_lifecycle._table.sources.intake import Intake
from otel_lifecycle._table.sources.made_rows import MadeRows
from otel_lifecycle._table.sources.parquet import MAGIC, spans_of_parquet
from otel_lifecycle._table.sources.seen import Seen
from otel_lifecycle._table.sources.shortcut import ReadMessage, Shortcut, grouped
from otel_lifecycle._table.sources.spans import Item, MetricPoint, Span
from otel_lifecycle._table.sources.tally import ReadingTally

Opener: TypeAlias = Callable[[], IO[bytes]]

STDIN: Final = "-"
CHUNK: Final = 2**20
TELEMETRY: Final = (b'"resourceSpans"', b'"resourceMetrics"', b'"resourceLogs"', b'"data"', b'"batches"', b'"traceID"')
"""What a JSON line that was cut short still shows of a trace file."""


def is_url(source: str) -> bool:
    """Return whether a source names a server to ask instead of a file."""
    return source.startswith(("http://", "https://"))


class Reader:
    """Iterates over the wanted spans and metric points of ``sources``: paths, folders, globs, ``-``, Jaeger's URL.

    ``tally`` tells what was read and what was not.  ``everything``: spans of any library, too.  ``progress`` is called
    with the number of bytes as they are read.  ``pipe`` opens what ``-`` stands for.  With ``alike``, requests may come
    as rows, many at a time.  Raises NotATrace for a named file that holds no telemetry, Unusable for one that cannot be
    opened, NoAnswer for a Jaeger that does not answer.
    """

    def __init__(
        self,
        sources: Iterable[str],
        tally: ReadingTally,
        *,
        everything: bool = False,
        progress: Callable[[int], None] | None = None,
        pipe: Opener | None = None,
        alike: Shortcut | None = None,
    ) -> None:
        self.sources = list(sources)
        self.tally = tally
        self._everything = everything
        self._progress = progress
        self._pipe = pipe or (lambda: sys.stdin.buffer)
        self._alike = alike
        self._seen = Seen()

    def __iter__(self) -> Iterator[Item]:
        for source in self.sources:
            for batch in self._batches(source):
                # Across all sources: a rotated file and its copy are often both given.
                for item in batch:
                    if isinstance(item, MadeRows):
                        yield self._new_of(item)
                    elif self._is_new(item):
                        yield item
        # Past the memory for ids a duplicate counts twice; the report says so instead of hiding it.
        self.tally.counts["duplicates_unchecked"] = self._seen.forgotten

    def _is_new(self, item: Span | MetricPoint) -> bool:
        if isinstance(item, MetricPoint) or self._seen.add(item.trace_id, item.span_id):
            return True
        self._note_duplicate(item.trace_id, item.span_id)
        return False

    def _new_of(self, rows: MadeRows) -> MadeRows:
        new = self._seen.add_all(rows.trace_ids, rows.span_ids)
        if all(new):
            return rows
        for trace_id, span_id in compress(zip(rows.trace_ids, rows.span_ids, strict=True), map(not_, new)):
            self._note_duplicate(trace_id, span_id)
        return rows.chosen(new)

    def _note_duplicate(self, trace_id: str, span_id: str) -> None:
        self.tally.add("duplicate", f"span {span_id} of trace {trace_id}")

    def _batches(self, source: str) -> Iterator[list[Item]]:
        """Yield the items of a source, message by message."""
        if is_url(source):
            yield from self._answers(source)
            return
        for name, opened in _files(source):
            yield from self._file(name, self._pipe if source == STDIN else opened)

    def _answers(self, source: str) -> Iterator[list[Item]]:
        """Yield the items of a Jaeger, answer by answer."""
        # Only a server needs the libraries of HTTP.
        from otel_lifecycle._table.sources import jaeger_api

        place = jaeger_api.without_credentials(source)
        for answer in jaeger_api.fetch(source, time.time_ns() // 1000, self.tally):
            BEING_READ.set(place)
            intake, decode = self._intake(place), decoder_of(answer)
            if decode is not None:
                decode(answer, intake)
            yield intake.items

    def _intake(self, source: str, line: int = 0) -> Intake:
        return Intake(source=source, line=line, tally=self.tally, everything=self._everything)

    def _file(self, name: str, opened: Opener) -> Iterator[list[Item]]:
        try:
            raw = opened()
        except OSError as error:
            raise Unusable(f"{name}: {error.strerror or error}") from error
        with raw:
            buffered: Stream = io.BufferedReader(Counted(raw, self._progress), CHUNK)
            # A fresh Collector creates its file before the first batch, so an empty file is not an error.
            if not buffered.peek(1):
                self.tally.add("empty_file", name)
                return
            # DuckDB opens the file by its name, and standard input has none.
            if buffered.peek(4)[:4] == MAGIC and name != "standard input":
                yield from self._parquet(name)
                return
            yield from self._messages(name, unpacked(buffered))
            self.tally.read["files"] += 1

    def _parquet(self, name: str) -> Iterator[list[Item]]:
        for spans in spans_of_parquet(name):
            intake = self._intake(name)
            for span in spans:
                intake.take(span)
            self.tally.read["spans"] += len(spans)
            yield intake.items
        self.tally.read["files"] += 1

    def _messages(self, name: str, stream: Stream) -> Iterator[list[Item]]:
        known, number, problem, cut = 0, 0, "it holds no message", False
        try:
            for number, (message, found) in enumerate(self._found(name, stream), 1):
                intake = self._intake(name, number)
                BEING_READ.set(intake.place)
                if found is not None:
                    found.put(intake)
                # One bad message does not end the file: after a crash the next line is whole again.
                elif reason := decode_message(message, intake):
                    problem = reason
                    cut |= self._unread(message[1], intake.place, reason)
                    continue
                known += 1
                yield intake.items
        except (CutShort, *BROKEN) as error:
            problem = str(error) or "it ends too early"
            # A damaged compressed file is a cut one; bytes that only look framed are telemetry if their content is.
            cut = not isinstance(error, CutShort) or error.telemetry
            if not known and not cut:
                problem = f"it begins with no OTLP message, JSON or protobuf ({problem})"
            if known or cut:
                self.tally.add("truncated", f"{name}, after {known} messages: {problem}")
        # A file that is only cut short is a trace that a crash has ended, never "not a trace".
        if not known and not cut:
            if name in self.sources or name == "standard input":
                raise NotATrace(name, problem)
            # A folder may contain other files beside the traces.
            self.tally.add("not_a_trace", f"{name}: {problem}")
            return
        self.tally.read["messages"] += known

    def _found(self, name: str, stream: Stream) -> Iterator[tuple[Message, ReadMessage | None]]:
        """Yield the messages of a file, and what is found in them without parsing."""
        if self._alike is None:
            yield from zip(messages(stream), repeat(None), strict=False)
            return
        line = 1
        for group in grouped(messages(stream)):
            found: Sequence[ReadMessage | None] = [None] * len(group)
            if group[0][0] == "json":
                BEING_READ.set(self._intake(name, line).place)
                found = self._alike.read([content for _, content in group], name, line)
            yield from zip(group, found, strict=True)
            line += len(group)

    def _unread(self, message: bytes, place: str, reason: str) -> bool:
        """Count a message that was not read; return whether it is a trace that was cut short."""
        # The last line of a file that is still written, or whose writer was killed.
        ends = "unexpected end" in reason or not message.rstrip().endswith((b"}", b"]"))
        cut = ends and any(mark in message[:4096] for mark in TELEMETRY)
        self.tally.add("truncated" if cut else "unreadable", place if cut else f"{place}: {reason}")
        return cut


@contextmanager
def kept_pipe(sources: Iterable[str]) -> Iterator[Opener | None]:
    """Give how to open standard input more than once, from a copy without a name; None where no source is that."""
    if STDIN not in sources:
        yield None
        return
    # On disk and not in memory: a pipe may bring gigabytes.
    with tempfile.TemporaryFile() as kept:
        shutil.copyfileobj(sys.stdin.buffer, kept)

        def again() -> IO[bytes]:
            kept.seek(0)
            # The reader closes what it opened; a duplicate keeps the copy for the next pass.
            return os.fdopen(os.dup(kept.fileno()), "rb")

        yield again


def _files(source: str) -> list[tuple[str, Opener]]:
    """Return the name of every file that a source means, and how to open it."""
    if source == STDIN:
        return [("standard input", lambda: sys.stdin.buffer)]
    found = _paths(source)
    if not found:
        raise Unusable(f"{source}: the folder is empty")
    return [(str(path), _opener(path)) for path in found]


def _paths(source: str) -> list[Path]:
    """Return the path of every file that a source means; a name that matches nothing stands for itself."""
    path = Path(source)
    if path.is_dir():
        # Sorted, because rotated files are named by time; hidden files are those that editors and rsync leave.
        return sorted(item for item in path.iterdir() if item.is_file() and not item.name.startswith("."))
    # A file whose name has brackets is that file, not a pattern.
    if not path.exists() and (matches := sorted(glob.glob(source))):  # noqa: PTH207 - a pattern may be absolute
        return [Path(match) for match in matches]
    return [path]


def _opener(path: Path) -> Opener:
    return lambda: path.open("rb")


def total_bytes(sources: Iterable[str]) -> int | None:
    """Return how many bytes the sources have, None where that cannot be known (a pipe, a URL)."""
    total = 0
    for source in sources:
        if source == STDIN or is_url(source):
            return None
        for name, _ in _files(source):
            path = Path(name)
            if not path.is_file():
                return None
            total += path.stat().st_size
    return total


def snapshot(sources: Iterable[str]) -> frozenset[tuple[str, int, int]]:
    """Return name, size and time of change of every file there is; two that differ say that there is more to read."""
    found = set()
    for source in sources:
        # A backend does not say whether it has more: each look at it counts as a change.
        if is_url(source):
            found.add((source, 0, time.monotonic_ns()))
            continue
        for path in _paths(source):
            # A file may be rotated away between the listing and here.
            with suppress(OSError):
                status = path.stat()
                found.add((str(path), status.st_size, status.st_mtime_ns))
    return frozenset(found)


class Counted(io.RawIOBase):
    """A file that reports the bytes read to a progress bar."""

    def __init__(self, raw: IO[bytes], progress: Callable[[int], None] | None) -> None:
        # The type of binary files lacks the method that all of them have.
        self._raw: Any = raw
        self._progress = progress

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size: int = self._raw.readinto(buffer)
        if self._progress is not None:
            self._progress(size)
        return size
