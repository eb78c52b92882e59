"""What a time, a count, a choice or a duration must be.

How it works.  Each function returns the value in a plain form, or says that it is none.  The exact built-in types are
asked first, because they are nearly always what is given; the abstract number classes, whose methods may raise, last.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, Final

from otel_lifecycle._core.text import is_a, shown
from otel_lifecycle.errors import InvalidTimestamp, InvalidValue

MAX_CHUNK: Final = 2**16
"""Tokens that one event can have: a report gives the time of each, and counts come from outside."""

# More than any context holds: a larger figure is the error of a counter.
MAX_OUTPUT: Final = 2**31
"""Tokens that a whole answer can have."""


MAX_CHOICES: Final = 1024
"""Choices one request can have: their number is the client's to choose."""


def check_timestamp(timestamp: object, event: str | None = None, state: str | None = None) -> Any:
    """Return the time; InvalidTimestamp unless it is None or a finite number."""
    # The exact type first: nearly every time is a plain int, and the abstract classes are slow to ask.
    if timestamp is None or type(timestamp) is int or _is_finite(timestamp):
        return timestamp
    raise InvalidTimestamp(
        f"the time of {event!r} is {shown(timestamp)}; it must be None or a finite number",
        state=state,
        event=event,
        timestamp=timestamp,
    )


def _is_finite(number: object) -> bool:
    """Whether it is a finite number.  A bool is an int to Python and a slip to everybody else."""
    if is_a(number, bool):
        return False
    # Every integer is finite, also one that no float can hold.
    if is_a(number, Integral):
        return True
    try:
        return is_a(number, Real) and math.isfinite(number)  # type: ignore[arg-type]  # a number by the test before
    except Exception:  # noqa: BLE001  # a fraction that no float can hold, or a number whose own methods raise
        return False


def seconds(number: object) -> float | None:
    """Return a number of seconds; None unless it is a finite number that a float can hold."""
    if is_a(number, bool) or not is_a(number, Real):
        return None
    try:
        given = float(number)  # type: ignore[arg-type]  # a number by the line above
    except Exception:  # noqa: BLE001  # no float can hold it, or its own methods raise
        return None
    return given if math.isfinite(given) else None


def whole(number: object) -> int | None:
    """Return it as an int; None unless it is a whole number from 0 that fits an OTLP integer."""
    if type(number) is int:  # Nearly always; asking the abstract class costs ten times as much.
        return number if 0 <= number < 2**63 else None
    if is_a(number, bool) or not is_a(number, Integral):
        return None
    try:
        integer = int(number)  # type: ignore[call-overload]  # a number by the line above
    except Exception:  # noqa: BLE001  # its own methods raise
        return None
    return integer if 0 <= integer < 2**63 else None


def check_count(
    count: object, event: str | None = None, state: str | None = None, timestamp: object = None
) -> int | None:
    """Return the token count of one event; InvalidValue unless it is None or a whole number that one event can have."""
    known = whole(count)
    most = MAX_OUTPUT if event == "output" else MAX_CHUNK
    if count is not None and (known is None or known > most):
        raise InvalidValue(
            f"the token count of {event!r} is {shown(count)}; it must be None or a whole number from 0 to {most}",
            state=state,
            event=event,
            timestamp=timestamp,
        )
    return known


def check_choice(choice: object, event: str | None = None, state: str | None = None, timestamp: object = None) -> int:
    """Return the choice's index; InvalidValue unless it is a whole number from 0."""
    known = whole(choice)
    if known is None or known >= MAX_CHOICES:
        raise InvalidValue(
            f"the choice of {event!r} is {shown(choice)}; it must be a whole number from 0, below {MAX_CHOICES}",
            state=state,
            event=event,
            timestamp=timestamp,
        )
    return known
