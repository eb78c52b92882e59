"""From the error that a frame reports to one of the closed list of reasons."""

from __future__ import annotations

from typing import Final

from otel_lifecycle._frames.fields import as_count, get

# The first match wins.  "invalid" is near the end: context_length_exceeded comes with type invalid_request_error.
_ERROR_WORDS: Final = (
    ("context", "input_too_long"),
    ("too_long", "input_too_long"),
    ("too_large", "input_too_long"),
    ("rate_limit", "rate_limited"),
    ("too_many_requests", "rate_limited"),
    ("quota", "rate_limited"),
    ("overloaded", "queue_full"),
    ("memory", "out_of_memory"),
    ("timeout", "deadline"),
    ("timed_out", "deadline"),
    ("deadline", "deadline"),
    ("invalid", "bad_input"),
    ("bad_request", "bad_input"),
    ("badrequest", "bad_input"),
)
_ERROR_CODES: Final = {
    400: "bad_input",
    408: "deadline",
    413: "input_too_long",
    422: "bad_input",
    429: "rate_limited",
    504: "deadline",
}
ENGINE_ERROR: Final = "engine_error"


def reason_of(error: object) -> str:
    """Return the reason for an error by its type and code, in the forms that engines send it.

    A code may be a number or a number as text (``"429"``).  Only words of its type and code are read, not its message,
    which a client can choose; an error that is bare text (Ollama) is ``engine_error``.
    """
    words = f"{_word(error, 'type')} {_word(error, 'code')}".lower().replace(" ", "_").replace("-", "_")
    for word, reason in _ERROR_WORDS:
        if word in words:
            return reason
    code = _code(get(error, "code"))
    return ENGINE_ERROR if code is None else _ERROR_CODES.get(code, ENGINE_ERROR)


def _word(error: object, field: str) -> str:
    value = get(error, field)
    # Types and codes are short.  A longer text is a message in the wrong field: only its head is searched.
    return value[:80] if isinstance(value, str) else ""


def _code(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 3:
        return int(value)
    return as_count(value)
