"""Text and JSON of any quality: one value that cannot be read does not cost its neighbours."""

from __future__ import annotations

import json
from typing import Any, Final

import orjson

_SUSPECTS: Final = (b"NaN", b"Infinity", b"\\ud", b"\\uD")
"""What other programs write into JSON though JSON has no such thing: numbers that are none, halves of a character."""


def loads(raw: bytes) -> Any:
    """Decode JSON; NaN and Infinity become floats, halves of surrogate pairs and broken UTF-8 U+FFFD.

    Raises orjson.JSONDecodeError for what is no JSON even so.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        # The standard library's parser is ten times slower: it gets only what may profit from it.
        if not (any(mark in raw for mark in _SUSPECTS) or "utf-8" in str(error).lower() or "surrogate" in str(error)):
            raise
        try:
            return _whole(json.loads(raw.decode("utf-8", "replace")))
        except (ValueError, RecursionError):
            raise error from None


def whole(text: str) -> str:
    """Return a text with U+FFFD in place of each half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {whole(key): _whole(item) for key, item in value.items()}
    return value
