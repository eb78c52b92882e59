"""Samples sorted by instrument and attribute set, on their way from the buffer into the instruments.

How it works.  A fold adds each sample of the buffered requests to its column, and then hands every column that got one
to its instrument, once: the SDK's look-ups and locks are paid for a column, not for a sample.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from otel_lifecycle._instruments.moment import Labels, Moment
from otel_lifecycle._instruments.samples import Parts, Samples
from otel_lifecycle._log import say

Take: TypeAlias = Callable[[Labels, Parts], None]


class Column:
    """The samples of one fold for one instrument and one attribute set."""

    __slots__ = ("_attributes", "_filled", "_samples", "_take")

    def __init__(self, attributes: Labels, take: Take, filled: dict[Column, None]) -> None:
        self._attributes = attributes
        self._take = take
        self._samples: list[tuple[Any, Moment] | Samples] = []
        self._filled = filled

    def add(self, samples: tuple[Any, Moment] | Samples) -> None:
        """Add a sample, which is a value or the gaps of a request with its moment, or many samples."""
        # In this order a signal handler that folds in between leaves the sample to the interrupted fold.
        self._samples.append(samples)
        self._filled[self] = None

    def flush(self) -> None:
        """Hand the samples to the instrument, each once: they are gone here before the instrument has them."""
        samples, self._samples = self._samples, []
        if samples:
            self._take(self._attributes, samples)

    def forget(self) -> None:
        """Drop the samples."""
        self._samples = []


class Columns:
    """All columns that got a sample since the last flush.  Callers hold the buffer's lock."""

    __slots__ = ("_filled",)

    def __init__(self) -> None:
        self._filled: dict[Column, None] = {}

    def make(self, attributes: Labels, take: Take) -> Column:
        """Make a column."""
        return Column(attributes, take, self._filled)

    def flush(self) -> None:
        """Hand all samples over; an instrument that fails does not keep the others from theirs."""
        # In the order of the samples: it is the order of the points in every collection that follows.
        for column in list(self._filled):
            # Taken off first: a column whose instrument fails is not tried again for ever.
            self._filled.pop(column, None)
            try:
                column.flush()
            except Exception as error:  # noqa: BLE001  # it is the provider's, or a view's
                say("record", "samples could not be recorded", level=logging.ERROR, error=error)

    def forget(self) -> None:
        """Drop what a forked child inherited in the middle of a fold."""
        while self._filled:
            self._filled.popitem()[0].forget()
