"""The table of requests as Parquet, read back: as its rows, and as the spans that they were made from.

A row has everything that an analysis needs: the request's attributes, boundaries, violations, tokens and links.  Spans
of other libraries are not in it.  A file with the columns of this version goes back into the table unchanged; of any
other, the rows are made again from the spans.
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson

from otel_lifecycle import semconv
from otel_lifecycle._table.errors import NotATrace
from otel_lifecycle._table.schema import BY_ATTRIBUTE, TABLE, VERSION, VERSION_KEY, create_statement
from otel_lifecycle._table.sources.spans import ReadEvent, Span, SpanLink

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# DuckDB takes the file by its path: its format needs random access, so a pipe cannot be read.
MAGIC: Final = b"PAR1"
# DuckDB produces rows as they are fetched, so memory holds one batch.
BATCH: Final = 1000
NEEDED: Final = frozenset({"trace_id", "span_id", "arrival_ns", "end_ns", "outcome", "name"})
_MARKS: Final = {"arrival_ns": "arrive", "admitted_ns": "admit", "input_ready_ns": "input_ready"}
_TERMINAL: Final = {"completed": "complete", "cancelled": "cancel", "timed_out": "timeout", "failed": "fail"}


def spans_of_parquet(path: str) -> Iterator[list[Span]]:
    """Yield the requests of a Parquet file, some at a time; NotATrace if its columns are not those of the table."""
    # Only Parquet needs DuckDB, and its import takes longer than reading a small trace.
    import duckdb

    with duckdb.connect() as connection:
        try:
            # The path is a parameter: a name with a quote must not become SQL.
            found = connection.execute("SELECT * FROM read_parquet(?)", [path])
        except duckdb.Error as error:
            raise NotATrace(path, str(error).partition("\n")[0]) from error
        columns = [str(column[0]) for column in found.description]
        if missing := NEEDED - set(columns):
            raise NotATrace(path, f"a table without the column {min(missing)}")
        unchanged = _is_current(connection.cursor(), path)
        while rows := found.fetchmany(BATCH):
            yield [_span(dict(zip(columns, row, strict=True)), path, unchanged) for row in rows]


def _is_current(connection: DuckDBPyConnection, path: str) -> bool:
    """Return whether a file has the table's own columns; NotATrace if a newer version wrote it."""
    found = connection.execute("SELECT value FROM parquet_kv_metadata(?) WHERE key = ?", [path, VERSION_KEY.encode()])
    told = found.fetchone()
    if told is not None and told[0].isdigit() and int(told[0]) > VERSION:
        reason = f"version {told[0].decode()} of the table, and this program knows {VERSION}; update it"
        raise NotATrace(path, reason, what="readable")
    connection.execute(create_statement())
    own = connection.execute(f"DESCRIBE {TABLE}").fetchall()
    theirs = connection.execute("DESCRIBE SELECT * FROM read_parquet(?)", [path]).fetchall()
    return told is not None and [column[:2] for column in own] == [column[:2] for column in theirs]


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as :class:`RequestTable` takes it."""
    # The table works the arrival out of arrival_ns.
    told = {name: value for name, value in row.items() if value is not None and name != "arrival"}
    if "attributes" in told:
        told["attributes"] = orjson.Fragment(told["attributes"])
    return told


def _span(row: Mapping[str, Any], path: str, unchanged: bool) -> Span:
    return Span(
        trace_id=row["trace_id"],
        span_id=row["span_id"],
        parent_id=row.get("parent_id") or "",
        name=row["name"],
        start_ns=row["arrival_ns"],
        end_ns=row["end_ns"],
        # Resource attributes were merged into the row's own when the table was made.
        attributes=_attributes(row),
        resource={},
        events=tuple(sorted(_events(row), key=lambda event: event.time_ns)),
        links=tuple(_links(row)),
        dropped_events=row.get("dropped_events") or 0,
        scope=row.get("scope") or "",
        source=path,
        row=_row(row) if unchanged else None,
    )


def _attributes(row: Mapping[str, Any]) -> dict[str, Any]:
    own = {attribute: row[name] for attribute, name in BY_ATTRIBUTE.items() if row.get(name) is not None}
    rest = json.loads(row.get("attributes") or "{}")
    if tokens := row.get("tokens"):
        # Offsets are whole microseconds after the first token, as on the span.
        offsets = [round((time - tokens[0]) * 1e6) for time in tokens]
        own[semconv.TOKEN_OFFSETS] = b64encode(struct.pack(f"<{len(offsets)}I", *offsets)).decode()
    return {**rest, **own, semconv.VIOLATIONS: len(row.get("violations") or ())}


def _events(row: Mapping[str, Any]) -> Iterator[ReadEvent]:
    """Yield the boundaries, the preemptions, the end and the violations, each at its time."""
    arrival: int = row["arrival_ns"]
    for column, event in (*_MARKS.items(), ("first_token_ns", "first_token")):
        if row.get(column) is not None:
            yield ReadEvent(name=event, time_ns=row[column], attributes={})
    for stage in row.get("stages") or ():
        if stage["stage"] == "preempted":
            # An interruption is stored as seconds after arrival; the attributes hold its exact length.
            yield ReadEvent(name="preempt", time_ns=arrival + round(stage["start"] * 1e9), attributes={})
            yield ReadEvent(name="resume", time_ns=arrival + round(stage["end"] * 1e9), attributes={})
    if row["outcome"] in _TERMINAL:
        yield ReadEvent(name=_TERMINAL[row["outcome"]], time_ns=row["end_ns"], attributes={})
    for one in row.get("violations") or ():
        told = {
            semconv.VIOLATION_KIND: one["kind"],
            semconv.VIOLATION_STATE: one["state"],
            semconv.VIOLATION_EVENT: one["event"],
            semconv.TIME_KNOWN: one["at"] is not None,
        }
        # A span event needs some time; TIME_KNOWN says whether it means anything.
        time = arrival + round((one["at"] or 0.0) * 1e9)
        yield ReadEvent(name=semconv.VIOLATION_SPAN_EVENT, time_ns=time, attributes=told)


def _links(row: Mapping[str, Any]) -> Iterator[SpanLink]:
    for one in row.get("links") or ():
        told = {
            semconv.LINK_REASON: one["reason"],
            semconv.LINK_TIME: one["time"],
            semconv.REQUEST_ID: one["request_id"],
        }
        known = {key: value for key, value in told.items() if value is not None}
        yield SpanLink(trace_id=one["trace_id"], span_id=one["span_id"], attributes=known)
