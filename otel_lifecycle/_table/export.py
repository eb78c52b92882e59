"""The table as a file: Parquet, CSV, JSON Lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from otel_lifecycle._table.machine import FORMULA
from otel_lifecycle._table.schema import VERSION, VERSION_KEY
from otel_lifecycle._table.store import quoted

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Form = Literal["parquet", "csv", "jsonl"]
FORMS: Final[tuple[Form, ...]] = ("parquet", "csv", "jsonl")

_OPTIONS: Final = {
    "parquet": f"FORMAT parquet, COMPRESSION zstd, KV_METADATA {{{VERSION_KEY}: '{VERSION}'}}",
    "csv": "FORMAT csv, HEADER true",
    "jsonl": "FORMAT json",
}
# A character class of RE2, in which "-" means itself only at the end.
_FORMULA: Final = f"^[{''.join(mark for mark in FORMULA if mark != '-')}-]"
# Control characters, and the marks that change the direction of text: both can disguise what a terminal shows.
_STEERING: Final = r"[\x00-\x1f\x7f-\x{9f}\x{61c}\x{200e}\x{200f}\x{2028}-\x{202e}\x{2066}-\x{2069}]"


def write(connection: DuckDBPyConnection, query: str, form: Form, path: Path) -> None:
    """Write what a query gives into a file."""
    if form == "csv":
        query = _for_csv(connection, query)
    connection.execute(f"COPY ({query}) TO {quoted(str(path))} ({_OPTIONS[form]})")


def _for_csv(connection: DuckDBPyConnection, query: str) -> str:
    """Return the query with every text made safe, and nested columns as JSON.

    In SQL: the database writes a million rows in seconds, a row at a time through Python takes a minute.
    """
    columns = connection.execute(f"DESCRIBE {query}").fetchall()
    return f"SELECT {', '.join(_cell(str(name), str(kind)) for name, kind, *_ in columns)} FROM ({query})"


def _cell(name: str, kind: str) -> str:
    # Column names come from the user's query and may hold quotes.
    column = '"' + name.replace('"', '""') + '"'
    if kind == "VARCHAR" or kind.startswith("ENUM"):
        return f"{_safe(f'{column}::VARCHAR')} AS {column}"
    nested = kind == "JSON" or kind.endswith("]") or kind.startswith(("STRUCT", "MAP", "UNION"))
    return f"{_safe(f'to_json({column})::VARCHAR')} AS {column}" if nested else column


def _safe(text: str) -> str:
    """Return a text for a spreadsheet and a terminal: a formula gets an apostrophe, control characters go."""
    # A single "-" is how tables say "nothing"; it is not a formula.
    formula = f"regexp_matches({text}, {quoted(_FORMULA)}) AND {text} <> '-'"
    cell = f"CASE WHEN {formula} THEN chr(39) || {text} ELSE {text} END"
    return f"regexp_replace({cell}, {quoted(_STEERING)}, '\N{REPLACEMENT CHARACTER}', 'g')"
