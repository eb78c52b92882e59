"""The place of one request in the log of its engine.

A seat is taken at arrival, told of each change of state, and given up when the request is judged.  It is called without
the lock of another request, and what it asks of the log takes no lock of the server.
"""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.trace import SpanContext

from otel_lifecycle import semconv
from otel_lifecycle._core.engine_log import EngineLog
from otel_lifecycle._core.engine_slot import EngineSlot
from otel_lifecycle._core.interference import Interference
from otel_lifecycle._core.lifecycle import Shape
from otel_lifecycle._core.report import Report
from otel_lifecycle._core.stalls import find_stalls
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._request.conditions import RequestConditions
from otel_lifecycle._runtime import runtime


class EngineSeat:
    """One request in the log of its engine."""

    __slots__ = ("_engine", "_log", "_slot")

    def __init__(self, engine: str, log: EngineLog, slot: EngineSlot) -> None:
        self._engine = engine
        self._log = log
        self._slot = slot

    def move(self, state: str, at: int | None) -> None:
        """Note that the request entered a state; None: at an unknown time."""
        self._log.move(self._slot, state, at)

    def rename(self, conditions: RequestConditions, context: SpanContext) -> None:
        """Follow the request to another engine: a middleware learns the model after it has opened the request."""
        self._slot.who = context, conditions.attributes.get(semconv.REQUEST_ID)
        engine = conditions.engine
        if engine == self._engine:
            return
        log = runtime().engines.log(engine)
        if log is not None:
            # In this order it is in no log for a moment; in the other it could be blamed in two.
            self._log.forget(self._slot)
            log.adopt(self._slot)
            self._engine, self._log = engine, log

    def reshape(self, shape: Shape, arrived: int | None) -> None:
        """Follow the request to another shape."""
        # Shapes that begin alike can follow one another later than at arrival, and look the same to the log.
        if shape.queues_first != self._slot.queues_first:
            self._log.forget(self._slot)
            self._slot = self._log.open(self._slot.who, shape.name, arrived)

    def leave(self, timeline: Timeline, ended_at: int) -> None:
        """Note that the request has ended; ``ended_at``: when it was closed, where its terminal time is not known."""
        # A request that is left without a terminal event ends when it is left.
        terminal = timeline.times.get("terminal") if timeline.ended else ended_at
        self._log.end(self._slot, terminal, by=ended_at, apart=not timeline.plain and timeline.clocks_apart())

    def alone(self) -> bool:
        """Return whether no other request of the engine was there from its arrival to its end."""
        return self._log.alone(self._slot)

    def interference(self, report: Report, timeline: Timeline, gaps: Sequence[int], *, full: bool) -> Interference:
        """Return what the others did; ``full``: with what only a span shows.  ``gaps``: of its tokens, sorted."""
        return self._log.interference(self._slot, report, find_stalls(timeline, gaps), full=full)


def engine_is_shared(engine: str) -> None:
    """Say that other processes feed an engine, too, such as further API servers: ``engine`` as its requests give it.

    Whether it was idle, and who was ahead, is then left out of what is told of its requests.
    """
    runtime().engines.share(engine)


def engines_are_mixed(engine: str) -> None:
    """Say that several engines answer under one name and nobody knows which has a request, such as replicas of a model.

    Nobody is then blamed for the waits and stalls of its requests.
    """
    runtime().engines.mix(engine)
