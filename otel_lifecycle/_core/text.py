"""Strings that come from outside, made fit for a label, a log line and an OTLP message.

How it works.  A value from outside may be of any class, and its own methods may raise.  The functions here therefore
ask ``type`` and call the methods of ``str`` itself, never those of the value.
"""

from __future__ import annotations

import re

# Long enough for ids and the names of models, and short enough that clients cannot inflate an export.
MAX_LENGTH = 256
_KEPT = slice(MAX_LENGTH)
# U+2028 and U+2029 are not control characters, but they break lines in logs and JavaScript.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# `\Z`, because `$` also matches before a newline at the end.
_IDENTIFIER = re.compile(r"[A-Za-z0-9_.]{1,64}\Z")


def is_a(value: object, kind: type | tuple[type, ...]) -> bool:
    """Return whether a value from outside is of a type.

    ``isinstance`` asks a value that is not of the type for its ``__class__``, which may be a property that raises.
    """
    return issubclass(type(value), kind)


def clean(text: str) -> str:
    """Return the text as valid UTF-8 without control characters, cut at 256 characters."""
    # The method of str itself: a subclass may have one that raises.
    cut = str.__getitem__(text, _KEPT)
    # Nearly always: two C calls rule out control characters and lone surrogates.
    if cut.isascii() and cut.isprintable():
        return cut
    # A lone surrogate has no UTF-8 form; protobuf refuses it, and with it the whole batch.
    return _CONTROL.sub("", cut.encode("utf-8", "replace").decode("utf-8"))


def shown(value: object) -> str:
    """Return a value for a message, cut at 80 characters; its type where it cannot be shown."""
    try:
        text = repr(value)
        return str.__getitem__(text, slice(80))
    except Exception:  # noqa: BLE001  # it came from outside, and so did its __repr__
        return f"a {type(value).__name__}"


def is_identifier(text: str) -> bool:
    """Return whether the text may be an error type: letters, digits, ``_`` and ``.``, up to 64."""
    return _IDENTIFIER.match(text) is not None


class Bounded:
    """A set of names that grows to a maximum; every name beyond it is ``_OTHER``."""

    __slots__ = ("_maximum", "_names")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._names: dict[str, str] = {}

    def admit(self, name: str) -> str:
        """Return the name, or ``_OTHER`` once the maximum of others is known."""
        known = self._names.get(name)
        if known is not None:
            return known
        # Two threads may pass here together; the maximum is then exceeded by one, and stays bounded.
        if len(self._names) >= self._maximum:
            return "_OTHER"
        return self._names.setdefault(name, name)
