"""The page *Who ends a request*, written from the table in the code: ``python -m tests.servers.ends_page``."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from otel_lifecycle._core.ending_rows import FINISH_REASONS, ROWS, STATUSES, EndingRow, Terminal
from otel_lifecycle.grpc import STATUSES as GRPC_STATUSES

PAGE = Path(__file__).parents[2] / "docs" / "instrument" / "who-ends-a-request.md"

HEAD = """# Who ends a request

Exactly one terminal event ends a request; nothing after it changes the outcome. The first of these that applies
gives it:

1. The server, by `complete()`, `cancel()`, `timeout()`, `fail()` or `finish(word)`.
2. The exit from the block, the decorated function, the middleware or the interceptor: a normal exit in decode is
   `complete`, and an exception ends the request by the first table below.
3. The response: its HTTP or gRPC status, or the close code of a WebSocket.
4. Nothing: a handle that is dropped without an end is `incomplete`, reason `abandoned`.

A normal exit before the first output is not a completion: outcome `incomplete`, outside every success rate. The
exception always goes on unchanged.
"""

EXCEPTIONS = """
## Exceptions

A class matches by its name, in that module or below it; a name without a module matches anywhere. The nearest
class along the MRO decides. An exception group counts as its members: if all of them end a request alike, that
is the end; otherwise the request failed with `ExceptionGroup`. Every other exception is a failure with its type.
"""

CONNECTIONS = """
A broken connection is the client's, unless the exception came out of `stream()` or `stage()`: then it is the
engine's, and a failure. After `client_disconnected()` a cancellation or a broken connection always has that
reason. A cancellation at or after `deadline`, less 10 ms or 1 %, is a timeout, reason `deadline`.

`configure(endings={"pkg.Class": "cancel:client_disconnected"})` adds rows, which go before these. The value is
`cancel`, `timeout`, `fail` or `complete`, optionally followed by a colon and a reason of the closed list.
"""

RESPONSES = """
## HTTP statuses, of a response or of an exception

Below 300 the request is answered. A redirect is a cancel without a reason. Any other status from 400 on is a
failure, and the status itself is its `error.type`.
"""

GRPC = """
## gRPC status codes

`OK` completes. Any other code is a failure, and its name is the `error.type`.
"""

WORDS = """
## Finish reasons of engines

`request.finish(word)` takes the engine's word, in any case. A word that is not in the table, such as `stop` or
`length`, is a normal completion.
"""


def how(row: EndingRow) -> str:
    """Say how a row ends a request."""
    if row.meaning == "connection":
        return "cancelled, reason client_disconnected (the client's side)"
    if row.meaning == "status":
        return "by its HTTP status"
    if row.meaning == "cancellation":
        return "cancelled"
    if row.meaning == "attempt":
        return "cancelled"
    return said(Terminal(row.meaning, row.reason))


def said(terminal: Terminal) -> str:
    """Say how a request ends."""
    outcome = {"complete": "completed", "cancel": "cancelled", "timeout": "timed out", "fail": "failed"}[terminal.event]
    return outcome if terminal.reason is None else f"{outcome}, reason {terminal.reason}"


def table(head: str, rows: list[tuple[str, str]]) -> str:
    """Return a table of two columns; rows that end alike and follow each other are one."""
    lines = [f"| {head} | ends the request as |", "|---|---|"]
    for ending, group in groupby(rows, key=lambda row: row[1]):
        lines.append(f"| {', '.join(f'`{name}`' for name, _ in group)} | {ending} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the page."""
    by_ending = sorted(((row.name, how(row)) for row in ROWS), key=lambda row: row[1])
    statuses = sorted(((str(status), said(ending)) for status, ending in STATUSES.items()), key=lambda row: row[1])
    codes = sorted(((name, said(ending)) for name, ending in GRPC_STATUSES.items()), key=lambda row: row[1])
    words = sorted(((word, said(ending)) for word, ending in FINISH_REASONS.items()), key=lambda row: row[1])
    return "\n".join(
        [
            HEAD.rstrip(),
            EXCEPTIONS.rstrip(),
            "",
            table("exception", by_ending).rstrip(),
            CONNECTIONS.rstrip(),
            RESPONSES.rstrip(),
            "",
            table("status", statuses).rstrip(),
            GRPC.rstrip(),
            "",
            table("code", codes).rstrip(),
            WORDS.rstrip(),
            "",
            table("word", words).rstrip(),
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
