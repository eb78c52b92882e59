"""Text and JSON of any quality: one value that cannot be read does not cost its neighbours."""

from __future__ import annotations

import json
from typing import Any, Final

import orjson

_SUSPECTS: Final = (b"NaN", b"Infinity", b"\\ud", b"\\uD")
"""What other programs write into JSON although JSON does not allow it: NaN, infinity, half a surrogate pair."""


def loads(raw: bytes) -> Any:
    """Decode JSON; NaN and Infinity become floats, halves of surrogate pairs and broken UTF-8 U+FFFD.

    Raises orjson.JSONDecodeError for anything else that is not JSON.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        # The standard library's parser is ten times slower: it gets only what it may be able to read.
        if not (any(mark in raw for mark in _SUSPECTS) or "utf-8" in str(error).lower() or "surrogate" in str(error)):
            raise
        try:
            return _whole(json.loads(raw.decode("utf-8", "replace")))
        # The first error names the place in the original bytes, which the second parser no longer has.
        except (ValueError, RecursionError):
            raise error from None


def whole(text: str) -> str:
    """Return a text with U+FFFD in place of each half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # By way of UTF-16, which joins two halves that belong together; only a single half becomes U+FFFD.
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
