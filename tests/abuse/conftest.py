"""Values that a hostile client may send where a name is expected."""

from __future__ import annotations

from typing import Final

MIB: Final = 1024 * 1024

NASTY: Final[dict[str, object]] = {
    "line breaks": "tiny\r\nERROR root: all is lost\n",
    "terminal codes": "\x1b[2J\x1b[31mtiny\x07",
    "separators": "tiny\u2028ERROR\u2029\x85root",
    "nothing but control characters": "\x00\x01\x02",
    "null within": "tiny\x00tail",
    "half a surrogate pair": "tiny\ud800tail",
    "one mebibyte": "x" * MIB,
    "one mebibyte of four-byte characters": "\U0001f600" * (MIB // 4),
    "empty": "",
    "blank": "   ",
    "bytes": b"tiny",
    "number": 10**400,
    "not a number": float("nan"),
    "list": ["tiny"] * 1000,
    "mapping": {"tiny": {}},
    "nested": [[[[[["tiny"]]]]]],
    "a class": type,
}
