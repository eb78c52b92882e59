"""Results for programs: JSON, and CSV with a figure a line."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from typing import IO, Any, Final

import orjson

from otel_lifecycle._table.text import NOTHING, printable


def to_json(document: Any) -> str:
    """Return a document as indented JSON; what is not a number is null, bytes are hex."""
    return _dumps(document, orjson.OPT_INDENT_2)


def to_json_line(document: Any) -> str:
    """Return a document as one line of JSON."""
    return _dumps(document, 0)


def to_json_bytes(document: Any) -> bytes:
    """Return a document as one line of JSON, encoded; it has no line break in it."""
    return _encoded(document, 0)


def _dumps(document: Any, options: int) -> str:
    return _encoded(document, options).decode()


def _encoded(document: Any, options: int) -> bytes:
    # Keys are not always texts: attributes of foreign spans can be anything.
    options |= orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(document, option=options, default=_default)
    # The document is copied only when the fast way failed, which one odd attribute causes.
    except TypeError:
        return orjson.dumps(_plain(document), option=options, default=_default)


def _plain(value: Any) -> Any:
    """Return a document without what orjson refuses: integers of more than 64 bits, halves of surrogate pairs."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    # As text: a float would change the number without notice.
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value


def _default(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).hex()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(type(value).__name__)


def write_csv(document: Mapping[str, Any], out: IO[str]) -> None:
    """Write ``section, name, figure, value`` for every figure of a report, in full precision."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("section", "name", "figure", "value"))
    for path, value in _leaves(document, ()):
        section, *rest = path
        writer.writerow(map(safe_cell, (section, "/".join(rest[:-1]), rest[-1] if rest else "", value)))


FORMULA: Final = ("=", "+", "@", "-", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters of cells that a spreadsheet runs; the last four are full-width forms."""


def safe_cell(value: Any) -> Any:
    """Return a cell of CSV that is safe for terminals and spreadsheets; numbers stay as they are.

    A text that begins as a formula gets an apostrophe in front, as OWASP advises.
    """
    # Numbers are safe: a negative one starts with "-", but a spreadsheet reads it as a number.
    if not isinstance(value, str) or value == NOTHING:
        return value
    return printable(f"'{value}" if value.startswith(FORMULA) else value)


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from _leaves(inner, (*path, _name(inner, number)))
    elif value is not None and not (isinstance(value, float) and math.isnan(value)):
        yield path, value


def _name(inner: Any, number: int) -> str:
    """Return what an item of a list is called by itself, or else its place."""
    if isinstance(inner, Mapping) and "outcome" not in inner:
        for key in ("name", "stage", "phase", "metric", "kind"):
            if key in inner and len(inner) > 1 and isinstance(inner[key], str):
                return str(inner[key])
    return str(number)
