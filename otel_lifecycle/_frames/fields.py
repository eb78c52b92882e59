"""Reading fields of a body that may be a mapping or an object, and may hold anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MAX_DEPTH: Final = 4
"""Levels of parts within parts that are searched for text; engines nest two."""


def get(body: object, name: str) -> Any:
    """Return a field of a mapping or of an object; None where there is none."""
    # An attribute that raises anything but AttributeError is caught once, in read_body().
    return body.get(name) if isinstance(body, Mapping) else getattr(body, name, None)


def as_list(value: object) -> list[object]:
    """Return a list or tuple as a list; an empty list for anything else."""
    return list(value) if isinstance(value, (list, tuple)) else []


def as_text(value: object) -> str | None:
    """Return a string that is not empty; None for anything else."""
    return value if isinstance(value, str) and value else None


def as_count(value: object) -> int | None:
    """Return a whole number from 0; None for anything else, because it is not a count."""
    # bool is a subclass of int, but True is not a count.
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def as_seconds(nanoseconds: object) -> float | None:
    """Return a duration in nanoseconds as seconds; None for what is not a duration."""
    known = as_count(nanoseconds)
    return None if known is None else known / 1e9


def index_of(choice: object) -> int:
    """Return the number of a choice; 0 where it has none."""
    return as_count(get(choice, "index")) or 0


def holds_text(value: object, depth: int = MAX_DEPTH) -> bool:
    """Return whether text stands in a value: a string, or a list of parts such as ``{"type": "text", "text": "x"}``.

    ``[{"type": "thinking", "thinking": []}]`` holds none (Mistral opens its reasoning with it).
    """
    if isinstance(value, str):
        return bool(value)
    if depth == 0:
        return False
    if isinstance(value, (list, tuple)):
        return any(holds_text(part, depth - 1) for part in value)
    return any(holds_text(get(value, field), depth - 1) for field in ("text", "thinking", "summary") if value)
