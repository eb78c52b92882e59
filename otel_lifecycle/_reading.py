"""Traces and event logs as a table: what the command line reads, for notebooks and scripts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation


def read_requests(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, shape: str = "default"
) -> DuckDBPyRelation:
    """Return the requests of some traces or event logs as a DuckDB relation, a row per request.

    ``path``: a file, a folder, a pattern, the address of a Jaeger, or several of these; OTLP JSON or protobuf, plain,
    gzip or zstd, Jaeger's or Tempo's JSON, or an event log.  ``shape`` is the lifecycle of spans that do not name
    theirs.  The columns, with units, are those of ``otel-lifecycle sql 'describe requests'``; ``.df()``, ``.pl()`` and
    ``.arrow()`` of the relation convert it, ``.query("requests", "select …")`` asks it.

    Needs the extra ``cli``; raises ModuleNotFoundError without it.  Raises ValueError, with the reason, for a source
    that cannot be read or holds no telemetry.
    """
    from otel_lifecycle._table.errors import Unusable
    from otel_lifecycle._table.rows import rows_of
    from otel_lifecycle._table.sources.tally import ReadingTally
    from otel_lifecycle._table.store import RequestTable, fill

    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    table = RequestTable(keep_in_memory=True)
    try:
        fill(table, rows_of([os.fspath(one) for one in paths], ReadingTally(), shape=shape))
    except Unusable as error:
        table.close()
        raise ValueError(str(error)) from error
    return table.relation()
