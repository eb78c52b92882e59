"""Conditions that all requests of a server share: read and cleaned once for all of them.

How it works.  A set of texts that were clean as they were given is remembered by what it was, and the last set by
itself, since most servers give the same conditions each time.  What differs from request to request goes into a copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from otel_lifecycle import semconv
from otel_lifecycle._core.labels import RequestLabels
from otel_lifecycle._core.text import clean
from otel_lifecycle._request.conditions import CONDITIONS, USUAL_LABELS, RequestConditions
from otel_lifecycle.errors import InvalidValue

_OWN: Final = frozenset(row.name for row in CONDITIONS.values() if not row.server or row.name == "deadline")
"""Conditions that differ from request to request; the others, but for a deadline, are those of a server."""

MAX_SETS: Final = 512
"""Sets of a server's conditions that are remembered; a model is a name that clients choose."""


# One for all sets: hundreds are remembered.
_NO_USAGE: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SharedConditions:
    """What a set of conditions amounts to once it is read and cleaned; requests share it, and nothing changes it."""

    # Read for every request, for which a NamedTuple takes three times as long.
    labels: RequestLabels
    attributes: Mapping[str, Any]
    usage: Mapping[str, int] = field(default_factory=lambda: _NO_USAGE)
    deadline: float | None = None
    engine: str = ""


class _Remembered:
    """Sets of conditions that were read before, by the operation of a shape and as they were given.

    Threads may remember at once: equal sets are read alike, and a race goes beyond the limit by one a thread.
    """

    __slots__ = ("_last", "_sets")

    def __init__(self) -> None:
        self._sets: dict[tuple[object, ...], SharedConditions] = {}
        # The last set that was found, replaced as a whole: most servers ask for the same one each time.
        self._last: tuple[str, Mapping[str, object], SharedConditions | None] = ("", {}, None)

    def find(self, operation: str, values: Mapping[str, object]) -> SharedConditions | None:
        """Return what was read of these before."""
        # The exact type: the methods of another one may raise, and equal values of it may read differently.
        for value in values.values():
            if type(value) is not str:
                return None
        same_operation, same_values, found = self._last
        if same_operation is operation and same_values == values:
            return found
        found = self._sets.get((operation, *values.items()))
        if found is not None:
            self._last = operation, {**values}, found
        return found

    def keep(self, operation: str, values: Mapping[str, Any], read: RequestConditions) -> None:
        """Remember a set, if there is room; only of clean texts, so that what is kept is bounded by their length."""
        if len(self._sets) < MAX_SETS and all(type(text) is str and clean(text) == text for text in values.values()):
            known = SharedConditions(read.labels, read.attributes.copy(), engine=read.engine)
            key = (operation, *values.items())
            self._sets[key] = known

    def forget(self) -> None:
        """Forget all of them."""
        self._sets.clear()
        self._last = "", {}, None


remembered: Final = _Remembered()


GivenConditions: TypeAlias = "SharedConditions | RequestConditions"
"""What is known of a request when it arrives."""


def own_conditions(known: GivenConditions) -> RequestConditions:
    """Return conditions that a request may change, from those that several share."""
    return RequestConditions(known.labels, {**known.attributes})


def read_conditions(operation: str, values: Mapping[str, object]) -> tuple[GivenConditions, list[InvalidValue]]:
    """Read what is given at arrival; return it with what is wrong with it.  ``operation``: unless they say one."""
    known = remembered.find(operation, values)
    if known is not None:
        return known, []
    own = values.keys() & _OWN
    if not own:
        return _read_shared(operation, values)
    shared = {name: value for name, value in values.items() if name not in own}
    known = remembered.find(operation, shared)
    if known is None:
        conditions, wrong = _read_shared(operation, shared)
    else:
        conditions, wrong = own_conditions(known), []
    return conditions, wrong + conditions.take_each({name: values[name] for name in values if name in own})


def _read_shared(operation: str, values: Mapping[str, object]) -> tuple[RequestConditions, list[InvalidValue]]:
    conditions = RequestConditions(USUAL_LABELS, {})
    wrong = conditions.take_each({"operation": operation, **values})
    conditions.attributes[semconv.GEN_AI_OPERATION_NAME] = conditions.labels.operation
    if not wrong:
        remembered.keep(operation, values, conditions)
    return conditions, wrong
