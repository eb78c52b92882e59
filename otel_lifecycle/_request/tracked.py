"""One request, from its arrival to the last token that comes after its end: the one place that calls go through.

How it works.  A handle, a stream, a block and the driver all call :class:`TrackedRequest`.  While the request is open
it passes a call to the :class:`RequestState`, afterwards to the :class:`RequestEnding`.

One call at a time.  A lock keeps other threads out.  It cannot keep out a call on the same thread, which a signal
handler may make at any line of ours: such a call finds the request busy, is put aside, and runs when the call that it
interrupted is done.  So nothing below this module has to think of two calls at once.  Rejected: to let the inner call
run at once, which must then leave every half-done step of the outer one as it found it.

One guard.  What a caller does wrong is a violation by the time it gets here; any other exception is a fault of ours and
goes to the guard, never to the server.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from threading import RLock
from typing import Any, Final, TypeVar

from otel_lifecycle import _propagation, semconv
from otel_lifecycle._core.endings import COMPLETE, Terminal, past
from otel_lifecycle._core.labels import RequestLabels
from otel_lifecycle._core.lifecycle import Stage
from otel_lifecycle._guard import guard
from otel_lifecycle._request.clock import NOW, AtNs
from otel_lifecycle._request.conditions import RequestConditions, read_finish_reasons, read_text
from otel_lifecycle._request.ending import RequestEnding
from otel_lifecycle._request.handle_reference import HandleReference
from otel_lifecycle._request.span_writer import SpanWriter
from otel_lifecycle._request.state import NOTES, TOKEN_EVENTS, RequestState, is_nothing
from otel_lifecycle._runtime import Assessor, runtime
from otel_lifecycle.errors import EventAfterTerminal, InvalidValue, LifecycleError

T = TypeVar("T")

FOLD_SLICE: Final = 4096
"""Entries that a fold on a serving thread takes at most; a longer one would be felt."""

FOLD_ABOVE: Final = 16_384
"""Token times a request holds before a sweep folds them."""

SHUTDOWN: Final = Terminal("cancel", reason="shutdown")
ABANDONED: Final = "abandoned"


class TrackedRequest:
    """One request.  ``reference`` is the weak reference to its handle, which contexts hold, too."""

    __slots__ = ("_busy", "_deferred", "_lock", "conditions", "ending", "reference", "state", "writer")

    def __init__(self, state: RequestState, conditions: RequestConditions, writer: SpanWriter) -> None:
        self.state = state
        self.conditions = conditions
        self.writer = writer
        self.ending = RequestEnding(state, conditions, writer)
        self.reference: HandleReference
        self._lock = RLock()
        self._busy = False
        self._deferred: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()

    def open(self, reference: HandleReference, assessor: Assessor | None, arrived_at_ns: AtNs) -> None:
        """Let the request arrive, and register it."""
        self.reference = reference
        self.state.path = reference
        self.ending.assessor = assessor
        self.state.checker.strict = assessor is not None and assessor.strict
        self.state.arrive(arrived_at_ns)
        self.ending.ticket = runtime().open_request(self)

    # One call at a time.

    def _run(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """Run a call alone; None if it waits for the call that it interrupted, or came upon a fault of ours."""
        nested = False
        try:
            with self._lock:
                # The lock lets its own thread in again: busy means that this call interrupted another one.
                nested = self._busy
                if nested:
                    self._deferred.append((call, arguments))
                    return None
                try:
                    self._busy = True
                    return call(*arguments)
                finally:
                    self._busy = False
                    if self._deferred:
                        self._run_deferred()
        except LifecycleError:
            raise
        except Exception as error:  # noqa: BLE001  # the guard decides
            guard.fault("request", error)
            return None
        finally:
            if not nested and self.state.status is not None and not self.ending.finished:
                self.ending.finish()

    def _run_deferred(self) -> None:
        while self._deferred:
            call, arguments = self._deferred.popleft()
            try:
                self._busy = True
                call(*arguments)
            except LifecycleError:
                # Of a strict processor: the call that would have raised it has returned long since.
                continue
            finally:
                self._busy = False

    # What is known of it.

    @property
    def labels(self) -> RequestLabels:
        """What its metrics are labelled with."""
        return self.conditions.labels

    @property
    def assessor(self) -> Assessor | None:
        """The processor it belongs to."""
        return self.ending.assessor

    @property
    def ended(self) -> bool:
        """Whether it has ended, with or without a terminal event."""
        return self.state.status is not None

    @property
    def expects_more(self) -> bool:
        """Whether it is open, or something came after its end that was not recorded yet."""
        return self.state.status is None or bool(self.ending.late)

    def active(self) -> tuple[str, int | None] | None:
        """Return the stage an open request is in, on the wire, and its age; None once it has ended or is answered."""
        if self.state.status is not None or self.ending.provisional is not None:
            return None
        return self.state.active_stage()

    def carrier(self) -> dict[str, str]:
        """Return the trace context of this request as headers."""
        return _propagation.inject(self.writer.span.get_span_context(), self.writer.parent)

    # Marks.

    def mark(self, event: str, at_ns: Any = NOW, count: Any = 1, choice: Any = 0) -> bool:
        """Apply one event of the live API; return whether it was legal."""
        return bool(self._run(self._mark, event, at_ns, count, choice))

    def _mark(self, event: str, at_ns: Any, count: Any, choice: Any) -> bool:
        if self.state.status is not None:
            self._late(event, count, at_ns)
            return False
        return self.state.mark(event, at_ns, count, choice)

    def mark_remote(self, event: str, timestamp: Any, count: Any = 1, choice: Any = 0) -> bool:
        """Apply one event that another process recorded by its own clock."""
        return bool(self._run(self._mark_remote, event, timestamp, count, choice))

    def _mark_remote(self, event: str, timestamp: Any, count: Any, choice: Any) -> bool:
        if self.state.status is not None:
            self._late(event, count, timestamp)
            return False
        return self.state.mark_remote(event, timestamp, count, choice)

    def mark_news(self, event: str, at_ns: Any, count: Any, choice: Any) -> bool:
        """Apply an event unless the request has passed it; what lies before it passes at unknown times."""
        return bool(self._run(self._mark_news, event, at_ns, count, choice))

    def _mark_news(self, event: str, at_ns: Any, count: Any, choice: Any) -> bool:
        state = self.state
        if state.status is not None:
            if event in TOKEN_EVENTS:
                self._late(event, count, at_ns)
            return False
        if event in NOTES:
            state.note(event, at_ns)
            return True
        if event in TOKEN_EVENTS:
            state.item(count, choice, at_ns)
            return True
        return state.reach(event) and state.mark(event, at_ns, count, choice)

    def token(self, n: Any, choice: Any, at_ns: Any) -> None:
        """Mark tokens that the path does not take."""
        self._run(self._tokens, self.state.token, n, choice, at_ns)

    def item(self, n: Any = 1, choice: Any = 0, at_ns: Any = NOW) -> None:
        """Mark what a stream yielded: boundaries that nobody marked pass with it."""
        self._run(self._tokens, self.state.item, n, choice, at_ns)

    def _tokens(self, mark: Callable[[Any, Any, Any], None], n: Any, choice: Any, at_ns: Any) -> None:
        if self.state.status is None:
            mark(n, choice, at_ns)
        else:
            self._late("token", n, at_ns)

    def _late(self, event: str, count: Any, at_ns: Any) -> None:
        if event in TOKEN_EVENTS and is_nothing(count):
            return
        self.ending.take_late(event, count, at_ns)
        if self.ending.late:
            # It stays on the register until its lag is recorded.
            runtime().open_requests[self.ending.ticket] = self

    def whole_answer(self, count: Any, at_ns: Any = NOW) -> None:
        """Mark a result that came at once; nothing of a request that has ended."""
        self._while_open(self.state.whole_answer, count, at_ns)

    def assume_sizes(self) -> None:
        """Note that frames count as one token each without saying so."""
        self._while_open(self.state.assume_sizes)

    def begin_stream(self) -> None:
        """Note the first pull of a stream."""
        self._while_open(self.state.begin_stream)

    def end_stream(self) -> None:
        """Note that a stream ended by itself."""
        self._while_open(self.state.end_stream)

    def pass_to(self, state: str) -> None:
        """Pass the stages before ``state`` that nobody marked."""
        self._while_open(self.state.pass_to, state)

    def note(self, name: str, at_ns: Any) -> None:
        """Keep a note: an event that moves no state."""
        self._while_open(self.state.note, name, at_ns)

    def _while_open(self, call: Callable[..., T], *arguments: Any) -> T | None:
        return self._run(self._if_open, call, *arguments)

    def _if_open(self, call: Callable[..., T], *arguments: Any) -> T | None:
        return call(*arguments) if self.state.status is None else None

    def violate(self, error: LifecycleError) -> None:
        """Count what is wrong; raised instead where the processor is strict."""
        self._run(self._violate, error)

    def _violate(self, error: LifecycleError) -> None:
        if self.state.status is None:
            self.state.violate(error)
        else:
            self.ending.violate(error)

    def enter_stage(self, stage: Stage) -> bool:
        """Pass the earlier stages that nobody marked; False, and a violation, where that cannot be."""
        return bool(self._run(self._enter_stage, stage))

    def _enter_stage(self, stage: Stage) -> bool:
        status = self.state.status
        if status is None:
            return self.state.enter_stage(stage)
        if not self.ending.silenced:
            what = f"stage {stage.name!r} after the end"
            self.ending.violate(EventAfterTerminal(what, state=status, event=stage.leave))
        return False

    def leave_stage(self, stage: Stage) -> None:
        """Emit the event that leaves the stage, unless the body has."""
        if self.state.status is not None or self.state.in_stage != stage.state or stage.leave is None:
            return
        if stage.leave == "complete":
            self.end(COMPLETE)
        else:
            self.mark(stage.leave)

    # Conditions.

    def set(self, values: Mapping[str, object]) -> None:
        """Set conditions; what cannot be is an ``invalid_value`` violation and not set."""
        self._run(self._set, values)

    def _set(self, values: Mapping[str, object]) -> None:
        if self.state.status is not None:
            self.ending.told_after_end("set")
            return
        for name, value in values.items():
            try:
                changed = self.conditions.take(name, value)
            except InvalidValue as error:
                self.state.violate(error)
                continue
            self.writer.set(changed)
            if name in ("model", "operation"):
                self.writer.rename(self.conditions.labels)

    def response(self, response_id: object, model: object, finish_reasons: object) -> None:
        """Set what the response says of itself."""
        self._run(self._response, response_id, model, finish_reasons)

    def _response(self, response_id: object, model: object, finish_reasons: object) -> None:
        if self.state.status is not None:
            self.ending.told_after_end("response")
            return
        for attribute, value, read in (
            (semconv.GEN_AI_RESPONSE_ID, response_id, lambda value: read_text("id", value)),
            (semconv.GEN_AI_RESPONSE_MODEL, model, lambda value: read_text("model", value)),
            (semconv.GEN_AI_RESPONSE_FINISH_REASONS, finish_reasons, read_finish_reasons),
        ):
            try:
                if value is not None:
                    self.writer.set({attribute: read(value)})
            except InvalidValue as error:
                self.state.violate(error)

    # The end.

    def end(self, terminal: Terminal, at_ns: Any = NOW, *, remote: bool = False, if_open: bool = False) -> bool:
        """End it by a terminal event, if the state allows it; return whether it did.

        ``remote``: at a time that the clock of another process gave.  ``if_open``: a second end is no violation.
        """
        if if_open and self.state.status is not None:
            return False
        return bool(self._run(self._end, terminal, at_ns, remote, if_open))

    def _end(self, terminal: Terminal, at_ns: Any, remote: bool, if_open: bool) -> bool:
        state, event = self.state, terminal.event
        if state.status is not None:
            if not if_open:
                self.ending.after_end(event)
            return False
        late = state.release_tokens() if state.is_legal(event) else []
        if not (state.mark_remote(event, at_ns) if remote else state.mark(event, at_ns)):
            return False
        state.judge_clocks()
        self.ending.close(state.timeline.state, late, reason=terminal.reason, error_type=terminal.error_type)
        return True

    def end_incomplete(self, reason: str | None = None) -> None:
        """End a request that got no terminal event: it is no success and no failure, and that is a violation."""
        if self._run(self._end_incomplete, reason) and self.state.checker.strict:
            raise self.state.missing_terminal()

    def _end_incomplete(self, reason: str | None) -> bool:
        if self.state.status is not None:
            return False
        late = self.state.release_tokens()
        self.state.violate_quietly(self.state.missing_terminal())
        self.state.judge_clocks()
        self.ending.close("incomplete", late, reason=reason)
        return True

    def leave(self, error: BaseException | None) -> None:
        """End a request whose block is left by ``error`` or normally, unless it has ended."""
        if self.state.status is not None:
            return
        if error is not None:
            # A strict mark raises at the call; the exception that leaves the block is the server's and goes on.
            self.state.checker.strict = False
            terminal = self.terminal_of(error)
            if terminal.event == "fail":
                self.show_exception(error)
            self.end_as(terminal)
        else:
            self.end_as(None)

    def show_exception(self, error: object) -> None:
        """Put an exception's message and stack on the span, where a switch says so; nothing here keeps it."""
        if self.state.status is None and runtime().record_exceptions and issubclass(type(error), BaseException):
            self.writer.record_exception(error)  # type: ignore[arg-type]  # an exception by the line above

    def terminal_of(self, error: BaseException, *, inside: bool = False) -> Terminal:
        """Return how an exception ends it; ``inside``: it came out of the engine's side, not the client's."""
        return runtime().endings.of_exception(
            error,
            past_deadline=past(self.state.elapsed(), self.conditions.deadline),
            client_left=self.state.disconnected,
            inside=inside,
        )

    def finish(self, terminal: Terminal, at_ns: Any) -> None:
        """End it as an engine says; a request that is completed without output had an empty one."""
        if terminal.event == "complete":
            self._while_open(self.state.end_stream, at_ns)
        self.end_as(terminal, at_ns)

    def end_as(self, terminal: Terminal | None, at_ns: Any = NOW) -> None:
        """End it by ``terminal``; None: it is complete if the state allows that, else incomplete."""
        if terminal is None or terminal.event == "complete":
            terminal = COMPLETE if self.state.is_legal("complete") else None
        if terminal is None:
            self.end_incomplete()
        else:
            self.end(terminal, at_ns, if_open=True)

    def end_unless(self, terminal: Terminal | None, at_ns: Any) -> None:
        """Let it end as ``terminal`` when its handle is dropped or at shutdown, unless it ends before."""
        self.ending.provisional = terminal, at_ns

    # What the runtime calls.

    def abandoned(self) -> None:
        """Its handle is gone: end it, or record what came after its end."""
        # A dropped handle is nobody's call that could raise.
        self.state.checker.strict = False
        self._settle()
        self.end_incomplete(ABANDONED)
        self._flush()

    def end_by_shutdown(self) -> None:
        """End it as cancelled, reason ``shutdown``; what its handle does later is ignored."""
        self.state.checker.strict = False
        self._settle()
        self.end(SHUTDOWN, if_open=True)
        self._flush()
        self.ending.silenced = True

    def _settle(self) -> None:
        """End a request whose answer is out as that answer was."""
        provisional = self.ending.provisional
        if self.state.status is None and provisional is not None:
            self.end_as(*provisional)

    def sweep(self, now: int, *, thorough: bool) -> None:
        """Fold token logs that have grown long; record what came after the end, and its lag once it has settled.

        A collection is ``thorough``.  On a serving thread a fold waits for four times the length and is a slice: long
        streams are folded by whoever collects, and stay bounded where nobody does.
        """
        if self.state.status is None:
            above, most = (FOLD_ABOVE, sys.maxsize) if thorough else (4 * FOLD_ABOVE, FOLD_SLICE)
            self.ending.record_gaps(self._while_open(self.state.fold, above, most) or [])
            return
        if self.ending.interrupted:
            self.ending.finish()
        if self.ending.late.settled(now):
            self._flush()
        else:
            self._count_wasted()

    def _count_wasted(self) -> None:
        self.ending.record_wasted(self._run(self.ending.take_wasted) or 0)

    def _flush(self) -> None:
        self._count_wasted()
        self.ending.record_lag(self._run(self.ending.take_lag))

    def disown(self) -> None:
        """Forget a request that a forked child inherited: its parent ends it.  A thread of it may hold the lock."""
        self._lock, self._busy = RLock(), False
        self._deferred.clear()
        self.ending.disown()
        self.state.disown()
