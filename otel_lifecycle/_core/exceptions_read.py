"""What can be learnt from a server's exception without running its code: names, the members of a group, a status.

Nothing here may replace the exception that is looked at.  Names are read with ``type``'s own descriptors, which run no
code of the class, and everything that is read from the instance is guarded.
"""

from __future__ import annotations

import re
from typing import Any, Final, cast

from otel_lifecycle import semconv
from otel_lifecycle._core.text import is_identifier

MAX_MEMBERS: Final = 10_000
"""Exceptions looked at in one group.  A larger one counts as several types; the bound keeps the end short."""

STATUS_ATTRIBUTES: Final = ("status_code", "code", "status", "error_code")
"""Where frameworks keep the status of an exception, in the order they are asked."""


# The descriptors of ``type`` itself: a metaclass or a class attribute of the same name cannot stand in front of them.
_MRO: Final = vars(type)["__mro__"]
_NAME: Final = vars(type)["__name__"]
_QUALNAME: Final = vars(type)["__qualname__"]
_MODULE: Final = vars(type)["__module__"]
# Bases of everything: as an error type they would hide that the class itself has no usable name.
_TELLS_NOTHING: Final = frozenset({"Exception", "BaseException", "object"})
# By name: before Python 3.11 the class is that of a backport, and older versions of trio have MultiError.
_GROUPS: Final = frozenset({"BaseExceptionGroup", "MultiError"})
_STATUS_LINE: Final = re.compile(r"[1-5][0-9]{2}(?![0-9])")


def _read_name(descriptor: Any, kind: type) -> str:
    """Return a name of a class as an exact ``str``; empty where it is none."""
    try:
        name = descriptor.__get__(kind)
    except AttributeError:
        return ""
    # A subclass of str may override what is called on it; str.__str__ copies without asking it.
    return str.__str__(name) if issubclass(type(name), str) else ""


def class_name(kind: type) -> str:
    """Return the bare name of a class."""
    return _read_name(_NAME, kind)


def module_name(kind: type) -> str:
    """Return the name of a class's module; empty where it is not a string."""
    return _read_name(_MODULE, kind)


def lineage(kind: type) -> tuple[type, ...]:
    """Return the real MRO of a class, whatever ``kind.__mro__`` would answer."""
    classes: tuple[type, ...] = _MRO.__get__(kind)
    return classes


def error_type(error: BaseException | type[BaseException]) -> str:
    """Return the qualified name of an exception's class; that of its nearest base where it is not an identifier.

    ``_OTHER`` where no class of it has such a name.
    """
    # Not isinstance(): it reads __class__ of an object that is not an instance, and that may be a property that raises.
    kind = cast("type", error) if issubclass(type(error), type) else type(error)
    for base in lineage(kind):
        module, qualified, bare = (_read_name(one, base) for one in (_MODULE, _QUALNAME, _NAME))
        names = (qualified if module in ("builtins", "") else f"{module}.{qualified}", bare)
        name = next((name for name in names if is_identifier(name)), None)
        if name is not None:
            return semconv.OTHER if name in _TELLS_NOTHING and base is not kind else name
    return semconv.OTHER


def read_status(value: object) -> int | None:
    """Return an HTTP status given as a number, ``"429"`` or ``"429 Too Many Requests"``; None for anything else."""
    kind = type(value)
    if issubclass(kind, int) and kind is not bool:
        status = int.__index__(cast("int", value))
        # gRPC codes and errno values stand under the same attribute names.
        return status if 100 <= status <= 599 else None
    found = _STATUS_LINE.match(str.__str__(value)) if issubclass(kind, str) else None
    return None if found is None else int(found[0])


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that a framework's exception carries; None where it carries none."""
    return next((status for name in STATUS_ATTRIBUTES if (status := _status_in(error, name)) is not None), None)


def _status_in(error: BaseException, name: str) -> int | None:
    try:
        return read_status(getattr(error, name, None))
    except Exception:  # noqa: BLE001  # an attribute of the server's exception, which may be a property that raises
        return None


def leaves(error: BaseException) -> list[BaseException] | None:
    """Return the exceptions of a group, of nested ones too; of any other exception itself.

    None for a group with more than :data:`MAX_MEMBERS`.  Each member is looked at once, so a group that contains
    itself ends, and without recursion, so its depth does not matter.
    """
    found: list[BaseException] = []
    pending: list[BaseException] = [error]
    seen: set[int] = set()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        members = _members(one)
        if len(seen) + len(members or ()) > MAX_MEMBERS:
            return None
        if members is None:
            found.append(one)
        else:
            # The stack gives the last one first: reversed, the leaves come out in the order of the group.
            pending.extend(reversed(members))
    return found


def _members(error: BaseException) -> list[BaseException] | None:
    """Return what a group holds; None for an exception that is not a group, or a group that tells nothing."""
    if not any(class_name(kind) in _GROUPS for kind in lineage(type(error))):
        return None
    try:
        members = error.exceptions  # type: ignore[attr-defined]  # of a group, by its name
        # A subclass may return anything. One more than the bound, so that `leaves` sees that it is exceeded.
        inner = [one for one in members[: MAX_MEMBERS + 1] if issubclass(type(one), BaseException)]
    except Exception:  # noqa: BLE001  # a subclass of the server's may override it
        return None
    return inner or None
