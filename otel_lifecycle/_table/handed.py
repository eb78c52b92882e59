"""Columns handed to DuckDB as a Parquet file: values in binary, which nobody has to print and parse.

The plainest form of the format: one row group, one page a column, nothing compressed.  The footer is written in
Thrift's compact protocol.  See https://parquet.apache.org/docs/file-format/.  Of our own, since pyarrow takes more room
than the whole command line may; a row of JSON took 17 µs to insert, and one of these takes 3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

MAGIC: Final = b"PAR1"
_STRUCT: Final = 12
_LIST: Final = 9
_PREFIXES: Final = [chr(size) + "\0\0\0" for size in range(128)]
"""The lengths of short texts, little-endian, as the text that UTF-8 makes these bytes of."""
_DIGITS: Final = bytes.maketrans(b"\0\1", b"01")


class Kind(NamedTuple):
    """A type of the format, whether it is text, and how values of it are written one after the other."""

    number: int
    text: bool
    plain: Callable[[Sequence[Any]], bytes]


class HandedColumn:
    """A column being filled; None is a missing value.  ``known``: there is any other."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.known = False
        self._there = bytearray()
        self._plain: list[bytes] = []

    def take(self, values: Sequence[Any]) -> None:
        """Add values."""
        # Most texts of a run are the same everywhere, and what one request lacks, the others lack as well.
        if (self.kind.text or values[0] is None) and values.count(values[0]) == len(values):
            self.repeat(values[0], len(values))
            return
        try:
            plain, there = self.kind.plain(values), b"\1" * len(values)
        # To look for None costs more than to write the numbers.
        except (TypeError, struct.error):
            plain = self.kind.plain([value for value in values if value is not None])
            there = bytes([value is not None for value in values])
        self._put(plain, there)

    def repeat(self, value: Any, count: int) -> None:
        """Add a value several times."""
        if value is None:
            self._put(b"", bytes(count))
        else:
            self._put(self.kind.plain([value]) * count, b"\1" * count)

    def _put(self, plain: bytes, there: bytes) -> None:
        self.known = self.known or bool(plain)
        self._plain.append(plain)
        self._there += there

    def page(self) -> bytes:
        """Return the one page of the column: its header, which values there are, and these."""
        there = self._there
        rows = len(there)
        # A run of the same level, or else all levels as bits.
        levels = _number_of(rows << 1) + b"\1" if all(there) else _number_of((rows + 7) // 8 << 1 | 1) + _bits(there)
        body = b"".join([struct.pack("<I", len(levels)), levels, *self._plain])
        header = [_int(1, rows), _int(2, 0), _int(3, 3), _int(4, 3)]
        return _closed([_int(1, 0), _int(2, len(body)), _int(3, len(body)), _structure(5, header)]) + body


def file_of(columns: Mapping[str, HandedColumn], rows: int) -> bytes:
    """Return a file of some columns, each with so many values."""
    parts, at = [MAGIC], len(MAGIC)
    schema = [[_binary(4, b"columns"), _int(5, len(columns))]]
    chunks = []
    for name, column in columns.items():
        page, kind, key = column.page(), column.kind, name.encode()
        schema.append([_int(1, kind.number), _int(3, 1), _binary(4, key), *([_int(6, 0)] if kind.text else [])])
        size = len(page)
        meta = [
            *(_int(1, kind.number), _list(2, 5, [_number(0), _number(3)]), _list(3, 8, [_sized(key)]), _int(4, 0)),
            *(_long(5, rows), _long(6, size), _long(7, size), _long(9, at)),
        ]
        chunks.append([_long(2, at), _structure(3, meta)])
        parts.append(page)
        at += size
    group = [_list(1, _STRUCT, map(_closed, chunks)), _long(2, at), _long(3, rows)]
    told = [_int(1, 1), _list(2, _STRUCT, map(_closed, schema)), _long(3, rows), _list(4, _STRUCT, [_closed(group)])]
    footer = _closed(told)
    return b"".join([*parts, footer, struct.pack("<I", len(footer)), MAGIC])


def _bits(flags: bytes | bytearray) -> bytes:
    """Return flags as bits, the first in the lowest."""
    return int(flags[::-1].translate(_DIGITS), 2).to_bytes((len(flags) + 7) // 8, "little")


def _packed(code: str) -> Callable[[Sequence[Any]], bytes]:
    # An array of the standard library takes half as long again.
    return lambda values: struct.pack(f"<{len(values)}{code}", *values)


def _texts(values: Sequence[str]) -> bytes:
    sizes = list(map(len, values))
    longest = max(sizes, default=0)
    if longest < len(_PREFIXES):
        if sizes.count(longest) == len(sizes):
            # Ids have one length.
            joined = "".join([_PREFIXES[longest] + value for value in values])
        else:
            joined = "".join(chain.from_iterable(zip(map(_PREFIXES.__getitem__, sizes), values, strict=True)))
        if joined.isascii():
            return joined.encode()
    encoded = [value.encode("utf-8", "replace") for value in values]
    return b"".join(chain.from_iterable([(struct.pack("<I", len(one)), one) for one in encoded]))


LONG: Final = Kind(2, False, _packed("q"))
DOUBLE: Final = Kind(5, False, _packed("d"))
TEXT: Final = Kind(6, True, _texts)


# A field of a structure is (number, type, bytes); its header holds the distance from the number before it.
_Field = tuple[int, int, bytes]


def _closed(fields: Iterable[_Field]) -> bytes:
    written, last = list[bytes](), 0
    for number, kind, value in fields:
        written += (bytes([(number - last) << 4 | kind]), value)
        last = number
    return b"".join(written) + b"\0"


def _number_of(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number(value: int) -> bytes:
    return _number_of(value << 1)


def _sized(value: bytes) -> bytes:
    return _number_of(len(value)) + value


def _int(field: int, value: int) -> _Field:
    return field, 5, _number(value)


def _long(field: int, value: int) -> _Field:
    return field, 6, _number(value)


def _binary(field: int, value: bytes) -> _Field:
    return field, 8, _sized(value)


def _structure(field: int, fields: Iterable[_Field]) -> _Field:
    return field, _STRUCT, _closed(fields)


def _list(field: int, kind: int, items: Iterable[bytes]) -> _Field:
    items = list(items)
    size = len(items)
    head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + _number_of(size)
    return field, _LIST, head + b"".join(items)
