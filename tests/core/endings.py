"""Ends of requests, as these tests expect them."""

from __future__ import annotations

from typing import NoReturn

from otel_lifecycle._core.endings import Terminal

LEFT = Terminal(event="cancel", reason="client_disconnected")
CANCELLED = Terminal(event="cancel")
TIMED_OUT = Terminal(event="timeout", error_type="timeout")
DEADLINE = Terminal(event="timeout", reason="deadline", error_type="timeout")
SHUTDOWN = Terminal(event="cancel", reason="shutdown")
SEVERAL = Terminal(event="fail", error_type="ExceptionGroup")


def by_reason(reason: str) -> Terminal:
    """Return the failure with a reason of the closed list."""
    return Terminal(event="fail", reason=reason, error_type=reason)


def by_type(name: str) -> Terminal:
    """Return the failure with the type of an exception."""
    return Terminal(event="fail", error_type=name)


def explode(*_: object) -> NoReturn:
    """Raise, as an attribute of somebody else's exception may."""
    raise RuntimeError("hostile")


class Text(str):
    """A string that does nothing of what strings do."""

    __str__ = __eq__ = __len__ = __format__ = explode
    __hash__ = str.__hash__
