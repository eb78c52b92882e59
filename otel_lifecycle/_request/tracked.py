"""One request, from its arrival to the last token that comes after its end: the one place that calls go through.

How it works.  A handle, a stream, a block and the driver all call :class:`TrackedRequest`.  While the request is open
it passes a call to the :class:`RequestState`, afterwards to the :class:`RequestEnding`.  Calls run one at a time
(``one_at_a_time.py``), so nothing below this module has to think of two calls at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any, Final, TypeVar

from opentelemetry.trace import Span

from otel_lifecycle import _propagation
from otel_lifecycle._core.endings import COMPLETE, Terminal, of_finish_reason, past
from otel_lifecycle._core.lifecycle import Stage
from otel_lifecycle._core.text import is_a
from otel_lifecycle._request.clock import NOW
from otel_lifecycle._request.conditions import USAGE, RequestConditions, read_condition
from otel_lifecycle._request.facts import RequestFacts, read_durations
from otel_lifecycle._request.folding import fold_logs
from otel_lifecycle._request.kinds import RequestKind, own_conditions
from otel_lifecycle._request.marks import MarkedRequest
from otel_lifecycle._runtime import runtime
from otel_lifecycle.errors import InvalidValue

T = TypeVar("T")

SHUTDOWN: Final = Terminal("cancel", reason="shutdown")
CUT_OFF: Final = Terminal("cancel")
ABANDONED: Final = "abandoned"


class TrackedRequest(MarkedRequest):
    """One request.  ``parts``: those that are open."""

    __slots__ = ()

    def _after_call(self) -> None:
        # Outside of the call: ending a span calls other people's processors, which may wait for another thread of ours.
        if self.whole is not None and self.state.status is not None and not self.ending.finished:
            self.ending.finish()

    def _stay_open(self) -> None:
        # Until the lag of what comes after the end is recorded.
        runtime().open_requests[self.ticket] = self

    # What is known of it.

    @property
    def facts(self) -> RequestFacts:
        """What the server says of it after its arrival; few requests have any.

        Only for a call that runs alone: two at once would make one each.
        """
        if self._facts is None:
            self._facts = RequestFacts(self.state, self.conditions, self.writer)
        return self._facts

    def carrier(self) -> dict[str, str]:
        """Return the trace context of this request as headers."""
        return _propagation.inject(self.span.get_span_context(), self.parent)

    # Blocks.

    def stage_span(self, stage: Stage) -> Span | None:
        """Return the live span of a stage that a block is spent in; None where no span shows the request, or its end.

        It is started outside of :meth:`_run`: other people's processors see it start.
        """
        if self.ended:
            return None
        self._entered = True
        if self._unseen:
            return None
        if self._is_in(stage.state):
            start: int | None = self._times[-1]
        else:
            timeline = self.state.timeline
            start = timeline.times.get(stage.entered) if stage.entered not in timeline.remote else None
        return self.writer.open_stage(stage, perf_counter_ns() if start is None else start)

    def leave_stage(self, stage: Stage) -> None:
        """Emit the event that leaves the stage, unless the body has."""
        if self._is_in(stage.state) and self._leave_plainly(stage.leave):
            return
        if self.state.status is not None or self.state.in_stage != stage.state or stage.leave is None:
            return
        if stage.leave == "complete":
            self.end(COMPLETE)
        else:
            self.mark(stage.leave)

    def _leave_plainly(self, event: str | None) -> bool:
        return event is not None and (self.complete() if event == "complete" else self.advance(event))

    def left_stage(self, stage: Stage) -> None:
        """Note that a block of the stage was left."""
        if not self._unseen:
            self.writer.left_stage(stage)

    # Conditions.

    def set(self, values: Mapping[str, object]) -> None:
        """Set conditions; what cannot be is an ``invalid_value`` violation and not set."""
        if self.whole is not None or not values.keys() <= USAGE or not self._run(self._count, values):
            self._run(self._set, values)

    def _count(self, values: Mapping[str, object]) -> bool:
        """Set token counts of a plain request, which only its end tells; False where the whole request has to."""
        kind = self._kind
        given = kind.conditions
        try:
            read = {name: read_condition(name, value)[1] for name, value in values.items()}
        except InvalidValue:
            return False
        if self._closed():
            return False
        if type(given) is not RequestConditions:
            given = own_conditions(given)
            self._kind = RequestKind(kind.shape, given, kind.span_name)
        given.usage.update(read)
        # A read that interrupted this has made it whole, with the conditions of before.
        return self.whole is None

    def follow_shape(self, shape: str) -> None:
        """Go on in another shape, unless somebody has marked a stage, or is in a block of one."""
        state = self.state
        if state.name == state.timeline.shape.stages[0].state and not self._entered:
            self.set({"shape": shape})

    def _set(self, values: Mapping[str, object]) -> None:
        if self.state.status is None:
            self.facts.set(values)
            if self.ending.seat is not None:
                self.ending.seat.rename(self.conditions, self.writer.span.get_span_context())
                self.ending.seat.reshape(self.state.timeline.shape, self.state.arrived)
        else:
            self.ending.told_after_end("set")

    def response(self, response_id: object, model: object, finish_reasons: object) -> None:
        """Set what the response says of itself."""
        self._run(self._response, response_id, model, finish_reasons)

    def _response(self, response_id: object, model: object, finish_reasons: object) -> None:
        if self.state.status is None:
            self.facts.respond(response_id, model, finish_reasons)
        else:
            self.ending.told_after_end("response")

    def take_durations(self, given: object) -> None:
        """Take how long the engine says its stages took; what cannot be is an ``invalid_value`` violation."""
        self._while_open(self._take_durations, given)

    def _take_durations(self, given: object) -> None:
        try:
            self.ending.durations = read_durations(given)
        except InvalidValue as error:
            self.state.violate(error)

    def show(self, name: object, attributes: object, at_ns: Any) -> None:
        """Keep an event of the server's own."""
        self._while_open(self._show, name, attributes, at_ns)

    def _show(self, name: object, attributes: object, at_ns: Any) -> None:
        self.facts.show(name, attributes, at_ns)

    # Parts.

    def next_part(self) -> int:
        """Return the number of the next part; threads may ask at once."""
        return self._run(self._next_part) or 0

    def _next_part(self) -> int:
        state = self.state
        state.parts_opened += 1
        return state.parts_opened - 1

    def follow(self, event: str, at: int | None, choice: int) -> bool:
        """Move with a part, at a reading of the monotonic clock; return whether that was news."""
        return bool(self._while_open(self.state.follow, event, at, choice))

    def take_part(self, part: TrackedRequest, choice: int, *, led: bool) -> None:
        """Take over the tokens of a part that has ended; ``led``: its first one is here already."""
        if part in self.state.parts:
            self.state.parts.remove(part)
        self._while_open(self.state.timeline.absorb, part.state.timeline, choice, led)

    def _end_parts(self, terminal: Terminal | None) -> None:
        """End the parts that are still open: how the request ends says why, unless it went well."""
        cut_off = terminal is None or terminal.event == "complete"
        for part in self.state.parts[:]:
            part.end(CUT_OFF if cut_off or terminal is None else terminal, if_open=True)

    # The end.

    def end(self, terminal: Terminal, at_ns: Any = NOW, *, remote: bool = False, if_open: bool = False) -> bool:
        """End it by a terminal event, if the state allows it; return whether it did.

        ``remote``: at a time that the clock of another process gave.  ``if_open``: a second end is not a violation.
        """
        # By identity: it comes from outside, and so does its __bool__.
        quiet = if_open is True
        if quiet and self.state.status is not None:
            return False
        if self.state.parts and self.state.is_legal(terminal.event):
            self._end_parts(terminal)
        return bool(self._run(self._end, terminal, at_ns, remote, quiet))

    def _end(self, terminal: Terminal, at_ns: Any, remote: bool, if_open: bool) -> bool:
        state, event = self.state, terminal.event
        if state.status is not None:
            if not if_open:
                self.ending.after_end(event)
            return False
        # Before the event: what another thread appends from here on came after the end.
        late = state.release_tokens() if state.is_legal(event) else ()
        if not (state.mark_remote(event, at_ns) if remote else state.mark(event, at_ns)):
            return False
        if not state.timeline.plain:
            state.judge_clocks()
        self.ending.close(state.timeline.state, late, terminal.reason, terminal.error_type)
        return True

    def end_incomplete(self, reason: str | None = None) -> None:
        """End a request that got no terminal event: it is neither a success nor a failure, but a violation."""
        self._end_parts(None)
        # Raised out here: inside, the request would be left half closed.
        if self._run(self._end_incomplete, reason) and self.state.checker.strict:
            raise self.state.checker.missing_terminal()

    def _end_incomplete(self, reason: str | None) -> bool:
        if self.state.status is not None:
            return False
        late = self.state.release_tokens()
        self.state.checker.count(self.state.checker.missing_terminal())
        self.state.judge_clocks()
        self.ending.close("incomplete", late, reason)
        return True

    def leave(self, error: BaseException | None) -> None:
        """End a request whose block is left by ``error`` or normally, unless it has ended."""
        if error is None and self.complete():
            return
        if self.state.status is not None:
            return
        if error is not None:
            # A strict mark raises at the call; the exception that leaves the block is the server's and goes on.
            self.state.checker.strict = False
            terminal = self._first_cause(self.terminal_of(error))
            if terminal.event == "fail":
                self.show_exception(error)
            self.end_as(terminal)
        else:
            self.end_as(self.state.passed)

    def _first_cause(self, terminal: Terminal) -> Terminal:
        """Return what came out of the engine first; a framework may have wrapped it since.

        Not after a cancellation, which a timeout turns into the error that leaves the block; nor where what leaves the
        block is the decision to try again.
        """
        first = self.state.passed
        return terminal if first is None or first.event == "cancel" or terminal.decided else first

    def passed(self, error: BaseException) -> None:
        """Note that an exception came out of a stream or a block: the first is the end, unless another is marked.

        Only what it means is kept.  GeneratorExit says that a consumer has had enough, which is not a fault.
        """
        if type(error) is not GeneratorExit:
            self._while_open(self.state.note_passed, self.terminal_of(error, inside=True))

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

    def finish_by_word(self, word: object, at_ns: Any, error: object) -> None:
        """End it by an engine's finish reason, which is that of its response, too, if none was given."""
        if not self.ended:
            if is_a(word, str) and (self._facts is None or not self._facts.finish_reasons):
                self.response(None, None, [word])
            self.show_exception(error)
            self.finish(of_finish_reason(word, error, runtime().endings), at_ns)

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
        # Last: this end itself is still counted.
        self.ending.silenced = True

    def _settle(self) -> None:
        """End a request whose answer is out as that answer was."""
        provisional = self.ending.provisional
        if self.state.status is None and provisional is not None:
            self.end_as(*provisional)

    def sweep(self, now: int, *, thorough: bool) -> None:
        """Fold token logs that have grown long; record what came after the end, and its lag once it has settled."""
        if self._rests():
            return
        if self.state.status is None:
            self.ending.record_gaps(self._while_open(fold_logs, self.state.timeline, thorough) or [])
            return
        # An exception out of a signal handler may have broken its end off.
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
        self.free()
        self.ending.disown()
        self.state.disown()
