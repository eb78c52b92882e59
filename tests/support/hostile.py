"""Values from outside that may be anything: of the wrong type, of no sense, or with methods that raise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any


class Raising:
    """Every method of it raises."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __hash__(self) -> int:
        raise RuntimeError

    def __bool__(self) -> bool:
        raise RuntimeError

    def __str__(self) -> str:
        raise RuntimeError

    def __repr__(self) -> str:
        raise RuntimeError

    def __index__(self) -> int:
        raise RuntimeError

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError


class RaisingText(str):
    """A string whose methods raise."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __getitem__(self, key: Any) -> Any:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = str.__hash__

    def __str__(self) -> str:
        raise RuntimeError

    def __repr__(self) -> str:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError


class RaisingNumber(int):
    """A number whose methods raise."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __lt__(self, other: object) -> bool:
        raise RuntimeError

    def __le__(self, other: object) -> bool:
        raise RuntimeError

    def __gt__(self, other: object) -> bool:
        raise RuntimeError

    def __ge__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = int.__hash__

    def __int__(self) -> int:
        raise RuntimeError

    def __repr__(self) -> str:
        raise RuntimeError


class RaisingMapping(Mapping[str, Any]):
    """A mapping whose methods raise."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError

    def __len__(self) -> int:
        return 1


class OddError(Exception):
    """An exception whose attributes raise."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __str__(self) -> str:
        raise RuntimeError


VALUES: dict[str, Any] = {
    "raising": Raising(),
    "raising text": RaisingText("text"),
    "raising number": RaisingNumber(3),
    "raising mapping": RaisingMapping(),
    "exception": OddError(),
    "a class": OddError,
    "huge": 10**5000,
    "huge float": 1e308,
    "10**400": 10**400,
    "fraction": Fraction(10**400, 3),
    "negative": -1,
    "nan": float("nan"),
    "bytes": b"\xff",
    "surrogate": "\ud800",
    "object": object(),
    "list": [1, None],
    "generator": (1 / 0 for _ in "a"),
    "true": True,
    "complex": 1j,
    "function": print,
}
"""A value of every kind, by what it is."""
