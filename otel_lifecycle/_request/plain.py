"""A request as nearly all of them are: a list of times, in the order of its shape.

How it works.  A mark that comes in its course appends a reading of the clock, and nothing else happens.  The first call
that needs more makes the request whole: its state, ending, conditions and span writer are made from these times, and
from then on every call goes to them.  Such calls are a mark at a given time or out of order, a condition, a block, a
look at the report, and the end of a request that is recorded.  Both ways give the same of the same marks
(``tests/request/test_short_ways.py``).  A request that no span shows, and that completes in its course, is never made
whole (``plain_end.py``).

Interruptions.  A call of a signal handler finds a busy request and waits (``one_at_a_time.py``).  But a handler may
read, and that makes the request whole between two lines of ours.  So the one step that counts, the append of a time, is
one expression with the check that the request is not whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Span

from otel_lifecycle import semconv
from otel_lifecycle._assessor import Assessor
from otel_lifecycle._core.course_slot import CourseSlot
from otel_lifecycle._core.engine_log import EngineLog
from otel_lifecycle._core.engine_slot import DECODE
from otel_lifecycle._core.interference import Interference
from otel_lifecycle._core.labels import RequestLabels
from otel_lifecycle._core.lifecycle import Shape
from otel_lifecycle._core.tokens import Log
from otel_lifecycle._request.clock import NOW, AtNs
from otel_lifecycle._request.conditions import RequestConditions
from otel_lifecycle._request.ending import RequestEnding
from otel_lifecycle._request.engine_seat import EngineSeat
from otel_lifecycle._request.facts import RequestFacts
from otel_lifecycle._request.folding import FOLD_ABOVE
from otel_lifecycle._request.handle_reference import HandleReference
from otel_lifecycle._request.kinds import RequestKind, own_conditions
from otel_lifecycle._request.one_at_a_time import OneAtATime, new_lock
from otel_lifecycle._request.span_events import UNSEEN, SpanEvents
from otel_lifecycle._request.span_writer import SpanWriter
from otel_lifecycle._request.state import RequestState
from otel_lifecycle._request.tracers import TracerSource
from otel_lifecycle._runtime import Runtime


class WholeRequest:
    """The parts of a request that is not plain any more."""

    __slots__ = ("conditions", "ending", "state")

    def __init__(self, conditions: RequestConditions, ending: RequestEnding, state: RequestState) -> None:
        self.conditions = conditions
        self.ending = ending
        self.state = state


class PlainRequest(OneAtATime):
    """One request.  ``opened``: when, a reading of its clock; ``offset`` turns one into epoch nanoseconds.

    ``span``: its span, of ``source``, started in the context ``parent``.  ``reference``: the weak reference to its
    handle, which contexts hold, too.  ``ticket``: its number in the runtime.  ``conditions``, ``ending`` and ``state``
    are made when they are asked for, and are those of ``whole`` then.
    """

    __slots__ = (
        "_assessor",
        "_copied",
        "_ends_plainly",
        "_entered",
        "_engine",
        "_exhausted",
        "_facts",
        "_finished",
        "_finishing",
        "_judged",
        "_kind",
        "_log",
        "_slot",
        "_taken",
        "_times",
        "_told",
        "_unmarked",
        "_unseen",
        "_writer",
        "offset",
        "opened",
        "parent",
        "reference",
        "source",
        "span",
        "ticket",
        "whole",
    )

    reference: HandleReference
    ticket: int
    _times: list[int]  # of the events of its course
    _engine: EngineLog | None
    _slot: CourseSlot | None

    def __init__(
        self,
        kind: RequestKind,
        opened: int,
        offset: int,
        source: TracerSource,
        parent: Context,
        span: Span,
        assessor: Assessor | None,
        unseen: bool,
        unmarked: bool,
    ) -> None:
        self._lock, self._busy, self._deferred = new_lock(), False, None
        self._kind = kind
        self.opened, self.offset = opened, offset
        self.source, self.parent, self.span = source, parent, span
        self._assessor = assessor
        self._unseen, self._unmarked = unseen, unmarked
        # The names of an engine's own have meanings of their own.
        told = unseen or (assessor is not None and assessor.compat is None)
        self._ends_plainly = told and kind.whole
        # The times of its tokens, from the first one on.  Its end takes them off; what comes later is left there.
        self._log: Log | None = None
        self._taken: Log | None = None
        # How many tokens were copied and are still in the log: one number, removed with them.
        self._copied: list[int] | None = None
        # Whether a block was entered, and whether a stream has run to its end.
        self._entered = self._exhausted = False
        self._engine = self._slot = None
        # What has been done of its end, and whether somebody is at it.
        self._judged = self._finished = False
        self._finishing: object | None = None
        # The attributes of its span, and what held it.
        self._told: tuple[Mapping[str, Any], Interference | None] | None = None
        self.whole: WholeRequest | None = None
        self._writer: SpanWriter | None = None
        self._facts: RequestFacts | None = None

    def open(self, reference: HandleReference, arrived_at_ns: AtNs, here: Runtime) -> None:
        """Let the request arrive, and register it in the runtime."""
        self.reference = reference
        self.ticket = next(here.tickets)
        in_tokens = self._kind.in_tokens
        if arrived_at_ns is NOW and in_tokens:
            self._times = [self.opened]
        else:
            self._times = []
            state = self.state
            if not in_tokens:
                state.checker.count_amounts()
            state.arrive(arrived_at_ns)
        self._enter_engine(here)
        # Last, so that a sweep in another thread never finds it half open.
        here.open_requests[self.ticket] = self  # type: ignore[assignment]  # a TrackedRequest, which has the rest

    def _enter_engine(self, here: Runtime) -> None:
        assessor, kind = self._assessor, self._kind
        if assessor is not None and not assessor.interference:
            return
        engine = here.engines.log(kind.engine)
        if engine is None:
            return
        # Without a sampled span there is nothing to link to.
        who = None if self._unseen else (self.span.get_span_context(), kind.request_id)
        if self.whole is None:
            self._engine = engine
            self._slot = engine.open_in_course(who, kind.shape, self._times)
        else:
            state = self.state
            seat = EngineSeat(kind.engine, engine, engine.open(who, kind.shape.name, state.arrived))
            state.feed = self.ending.seat = seat

    # The whole request.

    # By properties and not by `__getattr__`, which would slow down every other attribute of the class.

    @property
    def state(self) -> RequestState:
        """What it is while it is open."""
        return (self.whole or self._make_whole()).state

    @property
    def ending(self) -> RequestEnding:
        """How it ends."""
        return (self.whole or self._make_whole()).ending

    @property
    def conditions(self) -> RequestConditions:
        """Its conditions."""
        return (self.whole or self._make_whole()).conditions

    @property
    def writer(self) -> SpanWriter:
        """What writes its spans; a block needs it of a plain request, too."""
        if self._writer is None:
            with self._lock:
                made = SpanWriter(self.source, self.parent, self.offset, self.span)
                # In one expression, as in `_build`.
                self._writer = self._writer or made  # type: ignore[redundant-expr]  # see the module
        return self._writer

    def _make_whole(self) -> WholeRequest:
        with self._lock:
            # Calls that interrupt one of ours wait for that; otherwise this is a call of its own.
            if self._busy:
                self._build()
            else:
                self._run(self._build)
        return self.whole  # type: ignore[return-value]  # made by now

    def _build(self) -> None:
        if self.whole is None:
            built = self._built()
            # In one expression: a read that interrupted this one may have built it, and the first is kept.
            self.whole = self.whole or built  # type: ignore[redundant-expr]  # see the module

    def _built(self) -> WholeRequest:
        kind, assessor = self._kind, self._assessor
        given = kind.conditions
        conditions = given if type(given) is RequestConditions else own_conditions(given)
        writer = self.writer
        events = UNSEEN if self._unseen else SpanEvents()
        state = RequestState(kind.shape, self.opened, self.offset, events, self._unmarked)
        state.path = self.reference
        if assessor is not None:
            state.checker.strict = assessor.strict
        state.exhausted = self._exhausted
        ending = RequestEnding(state, conditions, writer, assessor, self.ticket)
        self._retrace(state, ending)
        self._take_seat(state, ending)
        return WholeRequest(conditions, ending, state)

    def _retrace(self, state: RequestState, ending: RequestEnding) -> None:
        times, log = self._times, self._log
        if self._closed():
            self._leave_late()
            state.retrace(times, self._taken)
            done = self._finished or self._finishing is not None
            ending.retrace(times[-1], () if log is None else (log,), judged=self._judged or done, finished=done)
        elif times:
            # The log may be there a line before the first token is.
            state.retrace(times, log if self._kind.shape.course[len(times) - 1].state == DECODE else None)

    def _leave_late(self) -> None:
        """Take the tokens off that came before the end, once: another thread may have appended more."""
        if self._log is not None:
            # In one expression: who interrupts it does all of it, or finds it done.
            del self._log[: self._copied.pop() if self._copied else 0]

    def _take_seat(self, state: RequestState, ending: RequestEnding) -> None:
        if self._slot is not None and self._engine is not None:
            self._slot.leave_course()
            state.feed = ending.seat = EngineSeat(self._kind.engine, self._engine, self._slot)

    # What is known of it.

    @property
    def shape(self) -> Shape:
        """The lifecycle it goes through."""
        return self._kind.shape if self.whole is None else self.state.timeline.shape

    @property
    def labels(self) -> RequestLabels:
        """What its metrics are labelled with."""
        return self._kind.conditions.labels if self.whole is None else self.conditions.labels

    @property
    def assessor(self) -> Assessor | None:
        """The processor it belongs to."""
        return self._assessor if self.whole is None else self.ending.assessor

    @property
    def ended(self) -> bool:
        """Whether it has ended, with or without a terminal event."""
        return self.has_ended()

    def has_ended(self) -> bool:
        """Whether it has ended, for every block that is entered: the call of a property costs more."""
        # As `_closed` says it.
        return len(self._times) == self._kind.last if self.whole is None else self.state.status is not None

    @property
    def expects_more(self) -> bool:
        """Whether it is open, or something came after its end that was not recorded yet."""
        if self.whole is None:
            return not self._finished or bool(self._log)
        return self.state.status is None or bool(self.ending.late)

    def active(self) -> tuple[str, int | None] | None:
        """Return the stage an open request is in, on the wire, and its age; None once it has ended or is answered."""
        if self.whole is None:
            # Once: another thread may append meanwhile.
            passed = len(self._times)
            stage = semconv.WIRE_STAGE.get(self._kind.shape.course[passed - 1].state)
            if stage is None:
                return None
            unmarked = self._unmarked and passed == 1
            return semconv.UNKNOWN_STAGE if unmarked else stage, perf_counter_ns() - self._times[0]
        if self.state.status is not None or self.ending.provisional is not None:
            return None
        return self.state.active_stage()

    def _is_in(self, *states: str) -> bool:
        """Whether it is plain and in one of some states."""
        return self.whole is None and self._kind.shape.course[len(self._times) - 1].state in states

    def _closed(self) -> bool:
        """Whether it has completed in its course; the last of that never comes."""
        return len(self._times) == self._kind.last

    def _rests(self) -> bool:
        """Whether a sweep has nothing to do: it is plain, its log is short, and nothing came after its end."""
        if self.whole is not None:
            return False
        if self._closed():
            return self._finishing is not None or (self._finished and not self._log)
        return self._log is None or len(self._log) <= FOLD_ABOVE
