"""What a server says about a request: conditions, its response, and attributes of its own.

How it works.  A fact is read by the rules of its row and written to the span at once, so that samplers and other
processors see it.  A fact that cannot be read is one violation and changes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final

from otel_lifecycle import semconv
from otel_lifecycle._core.lifecycle import EVENTS, STAGE_ORDER, get_shape
from otel_lifecycle._core.text import clean, is_a, shown
from otel_lifecycle._core.values import seconds
from otel_lifecycle._request.conditions import RequestConditions, read_finish_reasons, read_text
from otel_lifecycle._request.event_kinds import NOTES
from otel_lifecycle._request.span_writer import SpanWriter
from otel_lifecycle._request.state import RequestState
from otel_lifecycle.errors import ConfigurationError, InvalidValue

MAX_ATTRIBUTES: Final = 32
"""Attributes of the server's own a request: the SDK keeps 128 a span, and the lifecycle has about 60."""

# Under such a name the server's value would pass for one that was measured here.
RESERVED: Final = ("inference.", "gen_ai.", "error.")

LONGEST_S: Final = 1e9
"""A duration of more than 30 years is the error of a unit."""


class RequestFacts:
    """The facts of one request; what cannot be is an ``invalid_value`` violation and not set."""

    __slots__ = ("_conditions", "_own", "_state", "_writer", "finish_reasons")

    def __init__(self, state: RequestState, conditions: RequestConditions, writer: SpanWriter) -> None:
        self._state = state
        self._conditions = conditions
        self._writer = writer
        self._own: set[str] = set()
        self.finish_reasons = False

    def set(self, values: Mapping[str, object]) -> None:
        """Set conditions; ``attributes`` is a mapping of the server's own, ``shape`` goes to the timeline."""
        for name, value in values.items():
            try:
                if name == "attributes":
                    self._set_own(value)
                    continue
                if name == "shape":
                    self._reshape(value)
                    continue
                changed = self._take(name, value)
            except InvalidValue as error:
                self._state.violate(error)
                continue
            self._writer.set(changed)
            if name in ("model", "operation"):
                self._writer.rename(self._conditions.labels)

    def _take(self, name: str, value: object) -> dict[str, Any]:
        if name == "unit" and not self._state.awaits_output:
            raise InvalidValue("the unit of outputs is set before the first of them", event=name)
        changed = self._conditions.take(name, value)
        if name == "unit":
            self._state.checker.count_amounts()
        return changed

    def _reshape(self, name: object) -> None:
        try:
            shape = get_shape(name)
        except ConfigurationError as error:
            raise InvalidValue(str(error), event="shape") from error
        if shape is not self._state.timeline.shape:
            if not self._state.timeline.reshape(shape):
                what = f"shape {shape.name!r} while {self._state.name}: set it before a boundary that differs"
                raise InvalidValue(what, state=self._state.name, event="shape")
            self._writer.set({semconv.SHAPE: shape.name})

    def _set_own(self, given: object) -> None:
        for name, value in read_attributes(given).items():
            if name.startswith(RESERVED):
                error = f"the attribute {shown(name)} belongs to a convention; choose a name of your own"
            elif name not in self._own and len(self._own) >= MAX_ATTRIBUTES:
                error = f"a request takes {MAX_ATTRIBUTES} attributes of the server's own"
            else:
                self._own.add(name)
                self._writer.set({name: value})
                continue
            self._state.violate(InvalidValue(error, event="attributes"))

    def respond(self, response_id: object, model: object, finish_reasons: object) -> None:
        """Set what the response says of itself."""
        rows: tuple[tuple[str, object, Callable[[object], Any]], ...] = (
            (semconv.GEN_AI_RESPONSE_ID, response_id, lambda value: read_text("id", value)),
            (semconv.GEN_AI_RESPONSE_MODEL, model, lambda value: read_text("model", value)),
            (semconv.GEN_AI_RESPONSE_FINISH_REASONS, finish_reasons, read_finish_reasons),
        )
        for attribute, value, read in rows:
            try:
                if value is not None:
                    self._writer.set({attribute: read(value)})
                    self.finish_reasons = self.finish_reasons or read is read_finish_reasons
            except InvalidValue as error:
                self._state.violate(error)

    def show(self, name: object, attributes: object, at_ns: Any) -> None:
        """Keep an event of the server's own."""
        try:
            text = read_text("event", name)
            given = {} if attributes is None else read_attributes(attributes)
        except InvalidValue as error:
            self._state.violate(error)
        else:
            self._state.note(text if text not in EVENTS | NOTES else f"event.{text}", at_ns, given)


def read_durations(given: object) -> dict[str, int]:
    """Return how long stages took, in nanoseconds; InvalidValue unless it maps stages to seconds, none below 0."""
    try:
        items = dict(given.items()) if is_a(given, Mapping) else None  # type: ignore[attr-defined]  # a mapping
    except Exception as error:
        raise InvalidValue(f"durations raised {type(error).__name__}", event="durations") from error
    if items is None:
        raise InvalidValue(f"durations is {shown(given)}; it must be a mapping", event="durations")
    read = {}
    for name, value in items.items():
        length = seconds(value)
        stage = str.__str__(name) if is_a(name, str) else ""
        if stage not in STAGE_ORDER or length is None or not 0 <= length <= LONGEST_S:
            what = f"durations has {shown(value)} for {shown(name)}; it maps {', '.join(STAGE_ORDER)} to seconds"
            raise InvalidValue(what, event="durations")
        read[stage] = round(length * 1e9)
    return read


def read_attributes(given: object) -> dict[str, str | bool | int | float]:
    """Return attributes of the server's own: strings, numbers and flags under cleaned names; InvalidValue otherwise."""
    try:
        if not is_a(given, Mapping):
            raise InvalidValue(f"attributes is {shown(given)}; it must be a mapping", event="attributes")
        # One more than is taken: a surplus is noticed, and an endless mapping ends.
        items = itertools.islice(given.items(), MAX_ATTRIBUTES + 1)  # type: ignore[attr-defined]  # a mapping, see above
        named = ((clean(name), value) for name, value in items if is_a(name, str))
        return {name: _plain(value) for name, value in named if name}
    except InvalidValue:
        raise
    except Exception as error:
        raise InvalidValue(f"attributes raised {type(error).__name__}", event="attributes") from error


def _plain(value: object) -> str | bool | int | float:
    """Return a value as OTLP has room for it; anything else as its text."""
    kind = type(value)
    if kind is bool or kind is float or (kind is int and -(2**63) <= value < 2**63):  # type: ignore[operator]
        return value  # type: ignore[return-value]  # of one of these types by the line above
    return clean(value) if is_a(value, str) else shown(value)  # type: ignore[arg-type]  # text by this line
