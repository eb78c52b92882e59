"""When samples are taken, and one of them as an aggregation reads it."""

from __future__ import annotations

from collections.abc import Container, Mapping
from time import time_ns
from typing import Any

from opentelemetry.context import Context, get_current

Labels = Mapping[str, "str | bool"]
"""Attributes of a metric: strings and booleans under non-empty names."""


class Occasion:
    """When and in what context samples are taken.  ``context``: None is the current one.

    A request leaves ten samples at its end.  What the SDK's own exemplar filters say depends on the context alone, so
    they are asked once for all of them; a filter of somebody else's is asked for each.
    """

    __slots__ = ("_answer", "_asked", "context", "time_unix_nano")

    def __init__(self, context: Context | None = None) -> None:
        self.context = context or get_current()
        self.time_unix_nano = time_ns()
        self._asked: Any = None
        self._answer = False

    def wanted(self, ask: Any, by_context: Container[type[Any]], value: float, attributes: Labels) -> bool:
        """Ask a provider's filter whether a sample may become an exemplar; those ``by_context`` are asked once."""
        if ask is self._asked:
            return self._answer
        answer = bool(ask.should_sample(value, self.time_unix_nano, attributes, self.context))
        if type(ask) in by_context:
            self._asked, self._answer = ask, answer
        return answer


class Sample:
    """What an aggregation reads of a measurement, with a value that can be set again."""

    __slots__ = ("attributes", "context", "time_unix_nano", "value")

    def __init__(self, value: float, attributes: Labels, occasion: Occasion) -> None:
        self.value = value
        self.attributes = attributes
        self.context = occasion.context
        self.time_unix_nano = occasion.time_unix_nano
