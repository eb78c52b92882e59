"""The kinds of requests of one tracer provider: what is known before a request opens, read once for all of a kind.

How it works.  Most servers give each request the same conditions.  A set of texts that were clean as they were given is
remembered by what it was, and the last set by itself.  What differs from request to request goes into a copy, and into
a kind of that request alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from otel_lifecycle import semconv
from otel_lifecycle._core.labels import RequestLabels
from otel_lifecycle._core.lifecycle import Shape
from otel_lifecycle._core.text import clean
from otel_lifecycle._keywords import plain_names
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


GivenConditions: TypeAlias = "SharedConditions | RequestConditions"
"""What is known of a request when it arrives."""

NameSpan: TypeAlias = Callable[[str, "str | None"], str]
"""Names the span of a request by its operation and its model."""


def own_conditions(known: GivenConditions) -> RequestConditions:
    """Return conditions that a request may change, from those that several share."""
    return RequestConditions(known.labels, {**known.attributes})


class RequestKind:
    """What requests have in common that are opened alike; nothing changes it, but conditions of a request alone.

    ``events``: those of its shape; ``last``: how many complete it.  ``span_name``, ``attributes``: what its span
    starts with.  ``engine``: what it competes for.  ``request_id``: what its engine calls it, if that was given.
    ``whole``: it is no part of another request.  ``in_tokens``: its outputs are tokens.
    """

    # No frozen dataclass, which takes four times as long to make: some requests have a kind of their own.
    __slots__ = (
        "attributes",
        "conditions",
        "engine",
        "events",
        "in_tokens",
        "last",
        "request_id",
        "shape",
        "span_name",
        "whole",
    )

    def __init__(self, shape: Shape, conditions: GivenConditions, span_name: str) -> None:
        labels, attributes = conditions.labels, conditions.attributes
        self.shape, self.events = shape, shape.events
        # One more follows that never comes.
        self.last = len(shape.events) - 1
        self.conditions = conditions
        self.span_name = span_name
        self.attributes = attributes if shape.name == "default" else {**attributes, semconv.SHAPE: shape.name}
        self.engine = conditions.engine
        self.request_id: str | None = attributes.get(semconv.REQUEST_ID)
        self.whole = labels.role == "whole"
        self.in_tokens = labels.unit is None


_Known: TypeAlias = "tuple[Shape | None, Mapping[str, object], RequestKind | None]"
"""A set of conditions as it was given, its shape, and what was read of it."""


class Kinds:
    """The kinds that were read before, by their shape and their conditions as they were given.

    Threads may remember at once: equal sets are read alike, and a race goes beyond the limit by one a thread.
    """

    __slots__ = ("_last", "_sets")

    def __init__(self) -> None:
        self._sets: dict[tuple[object, ...], _Known] = {}
        # The last set that was found, replaced as a whole: most servers ask for the same one each time.
        self._last: _Known = (None, {}, None)

    def find(self, shape: Shape, values: Mapping[str, object]) -> RequestKind | None:
        """Return what was read of these before."""
        # The exact type: the methods of another one may raise, and equal values of it may read differently.
        for value in values.values():
            if type(value) is not str:
                return None
        same_shape, same_values, found = self._last
        try:
            if same_shape is shape and same_values == values:
                return found
            known = self._sets.get((shape.name, *values.items()))
        except Exception:  # noqa: BLE001  # a name may be of a class of text whose `__eq__` raises
            return None
        if known is None:
            return None
        # As it was kept: a name as it was given would be compared with those of other requests.
        self._last = known
        return known[2]

    def read(
        self, shape: Shape, values: Mapping[str, object], name_span: NameSpan
    ) -> tuple[RequestKind, list[InvalidValue]]:
        """Read what is given at arrival; return the kind with what is wrong with it."""
        known = self.find(shape, values)
        if known is not None:
            return known, []
        values = plain_names(values)
        own = values.keys() & _OWN
        shared = {name: value for name, value in values.items() if name not in own} if own else values
        known = self.find(shape, shared) if own else None
        if known is None:
            conditions, wrong = self._read_shared(shape, shared, name_span)
        else:
            conditions, wrong = own_conditions(known.conditions), []
        wrong += conditions.take_each({name: values[name] for name in values if name in own})
        return RequestKind(shape, conditions, _span_name(conditions.labels, name_span)), wrong

    def _read_shared(
        self, shape: Shape, values: Mapping[str, object], name_span: NameSpan
    ) -> tuple[RequestConditions, list[InvalidValue]]:
        conditions = RequestConditions(USUAL_LABELS, {})
        # Unless they name an operation.
        wrong = conditions.take_each({"operation": shape.operation, **values})
        conditions.attributes[semconv.GEN_AI_OPERATION_NAME] = conditions.labels.operation
        if not wrong:
            self._keep(shape, values, conditions, name_span)
        return conditions, wrong

    def _keep(self, shape: Shape, values: Mapping[str, Any], read: RequestConditions, name_span: NameSpan) -> None:
        """Remember a set; only of clean texts, so that what is kept is bounded by their length."""
        if all(type(text) is str and clean(text) == text for text in values.values()):
            # Anew where there is no room, for the first ones may be names that no client sends again.
            if len(self._sets) >= MAX_SETS:
                self._sets.clear()
            known = SharedConditions(read.labels, read.attributes.copy(), engine=read.engine)
            kind = RequestKind(shape, known, _span_name(read.labels, name_span))
            key = (shape.name, *values.items())
            self._sets[key] = shape, {**values}, kind


def _span_name(labels: RequestLabels, name_span: NameSpan) -> str:
    return name_span(labels.operation, labels.model)
