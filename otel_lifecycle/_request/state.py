"""The state of one request while it is open: its boundaries, its clock, its tokens, and what was wrong.

How it works.  Every event is applied to a :class:`Timeline` through a :class:`Checker`: what is illegal or impossible
becomes a violation and the request goes on.  Times are readings of the request's own clock (``clock.py``); a live mark
reads it here, so that the marks of racing threads are in order by themselves.  What the span will show of an event is
kept in :class:`SpanEvents` until the end.

Nothing here is safe to call from two threads, and nothing here calls back: ``TrackedRequest`` lets one call in at a
time, a call that interrupts another one on the same thread included.  The one exception is the token path, a list that
the handle appends to while the request is in decode.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from otel_lifecycle._core.checker import Checker
from otel_lifecycle._core.endings import Terminal
from otel_lifecycle._core.lifecycle import TERMINAL_EVENTS, Shape, Stage
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.tokens import Log
from otel_lifecycle._request.ahead import allowing_ahead
from otel_lifecycle._request.clock import NOW, on_axis
from otel_lifecycle._request.event_kinds import RECEIPT_TOLERANCE_NS, TOKEN_EVENTS, EngineFeed, is_nothing
from otel_lifecycle._request.span_events import BOUNDARY_EVENTS, SpanEvents
from otel_lifecycle._request.state_as_it_is import OpenPart, StateAsItIs
from otel_lifecycle._request.token_path import FIRST, ONE, PathReference
from otel_lifecycle.errors import ForeignClock, IllegalTransition, LifecycleError


class RequestState(StateAsItIs):
    """One open request, and what moves it."""

    __slots__ = ()

    def __init__(self, shape: Shape, opened: int, offset: int, events: SpanEvents, unmarked: bool) -> None:
        self.opened = opened
        self.offset = offset
        self.timeline = Timeline(shape)
        self.events = events
        self.checker = Checker(self.timeline)
        # Both are set when the request arrives.
        self.path: PathReference
        self.arrived: int | None
        self._led_to: Log | None = None
        self.feed: EngineFeed | None = None
        self.status: str | None = None
        self.unmarked = unmarked
        # Whether the server marked a boundary: then it marks all of them, and one that is missing is a violation.
        self._marks_boundaries = False
        self.disconnected = False
        self.delivered: int | None = None
        self.exhausted = False
        self.passed: Terminal | None = None
        self.parts: list[OpenPart] = []
        self.parts_opened = 0
        # The latest time that was given, not read: a live mark before it has no time of its own.
        self._explicit_latest: int | None = None

    # Boundaries.

    def arrive(self, at_ns: Any) -> None:
        """Apply the first event.  An arrival that is given does not move the moment at which the request was opened."""
        if at_ns is NOW:
            self.retrace([self.opened], None)
            return
        self._apply("arrive", self._given_time("arrive", at_ns), given=True)
        self.arrived = self.timeline.applied_at
        self._applied("arrive", explicit=True)

    def retrace(self, times: list[int], log: Log | None) -> None:
        """Go the first part of its course at once; ``log``: the times of its tokens."""
        timeline = self.timeline
        timeline.retrace(times, log)
        self.arrived = times[0]
        for step, time in zip(timeline.shape.course, times, strict=False):
            self.events.show_transition(step.event, time)
        if len(times) > 1:
            self.unmarked, self._marks_boundaries = False, True
        if timeline.ended:
            self.status = timeline.state
        elif log is not None:
            self._led_to = log

    def mark(self, event: str, at_ns: Any = NOW, count: Any = 1, choice: Any = 0) -> bool:
        """Apply one event of the live API; return whether it was legal."""
        live = at_ns is NOW
        # Nearly every mark is one reading of the clock, in order.  By identity: another type takes the long way.
        usual = live and count is ONE and choice is FIRST
        if usual and self.advance(event):
            return True
        event = self._ahead(event)
        # It was marked as a token, or what lies before it has just passed.
        if usual and event == "first_token" and self.advance(event):
            return True
        time = self._live_time(event) if live else self._given_time(event, at_ns)
        legal = self._apply(event, time, count, choice, given=not live)
        if legal:
            self._applied(event, explicit=not live)
        return legal

    def mark_remote(self, event: str, timestamp: Any, count: Any = 1, choice: Any = 0) -> bool:
        """Apply one event that another process recorded by its own clock."""
        if event in TOKEN_EVENTS and is_nothing(count):
            return True
        event = self._ahead(event)
        time = self._given_time(event, timestamp)
        legal = self._apply(event, time, count, choice, remote=True)
        if legal:
            # Not explicit: a time by the engine's clock says nothing about live marks here.
            self._applied(event, explicit=False)
            # An event we received cannot lie in the future.
            self.timeline.witness(perf_counter_ns() + RECEIPT_TOLERANCE_NS)
        return legal

    def _apply(
        self,
        event: str,
        time: int | None,
        count: Any = 1,
        choice: Any = 0,
        *,
        remote: bool = False,
        given: bool = False,
    ) -> bool:
        try:
            checker = self.checker
            apply = checker.apply if checker.amounts is None else checker.apply_output
            return apply(event, time, count, choice, remote=remote, given=given)
        finally:
            self._show_violations()

    def _show_violations(self) -> None:
        for violation in self.checker.take_violations():
            self.events.show_violation(violation)

    def _applied(self, event: str, *, explicit: bool) -> None:
        """Show a legal event, and open or close the token path for the state it led to."""
        timeline = self.timeline
        known = timeline.applied_at
        if explicit and known is not None:
            self._explicit_latest = known
        if event != "token":
            self.events.show_transition(event, known)
            if self.feed is not None:
                self.feed.move(timeline.state, known)
        if event != "arrive" and event not in TERMINAL_EVENTS:
            self.unmarked = False
            self._marks_boundaries = self._marks_boundaries or event in BOUNDARY_EVENTS
        log = timeline.tokens.setdefault(0, []) if timeline.state == "decode" else None
        # Nearly every mark leaves the path as it is, so the weak reference is not even followed.
        if log is not self._led_to:
            self._lead(log)

    def advance(self, event: str) -> bool:
        """Apply an event that happens now the short way, all of it; False where :meth:`mark` has to judge it."""
        timeline, now = self.timeline, perf_counter_ns()
        if self._explicit_latest is not None or not timeline.advance(event, now):
            return False
        state, feed = timeline.state, self.feed
        if not self.events.unseen:
            self.events.show_transition(event, now)
        if feed is not None:
            feed.move(state, now)
        if not self._marks_boundaries and event not in TERMINAL_EVENTS:
            self.unmarked = False
            self._marks_boundaries = True
        if state == "decode":
            self._lead(timeline.tokens[0])
        elif self._led_to is not None:
            self._lead(None)
        return True

    def _lead(self, log: Log | None) -> None:
        self._led_to = log
        path = self.path()
        if path is not None:
            path.lead_to(log)

    def _live_time(self, event: str) -> int | None:
        now = perf_counter_ns()
        explicit = self._explicit_latest
        if explicit is not None and now < explicit:
            if self.is_legal(event):
                what = f"{event!r} happens before a time already given"
                self.violate(ForeignClock(what, state=self.timeline.state, event=event))
            return None
        latest = self.timeline.latest()
        # A token that another thread marked while this one waited for its turn.
        return now if latest is None or latest <= now else latest

    def _given_time(self, event: str, at_ns: Any) -> int | None:
        if not self.is_legal(event):
            return None
        try:
            return on_axis(at_ns, self.offset, event, self.timeline.state)
        except LifecycleError as error:
            self.violate(error)
            return None

    def pass_to(self, state: str) -> None:
        """Pass the stages before ``state`` that nobody marked, their boundaries at unknown times."""
        timeline = self.timeline
        for stage in timeline.shape.stages:
            if timeline.state == state:
                return
            if stage.state == timeline.state and stage.leave is not None:
                self._apply(stage.leave, None)
                if self.feed is not None:
                    self.feed.move(timeline.state, None)
        self.unmarked = False

    def _ahead(self, event: str) -> str:
        """Pass the boundaries before an event that lies ahead, so that it can be applied; return its name there.

        A server that marks no boundaries at all shows none, which is legal.  One that marks some has skipped these.
        """
        timeline = self.timeline
        if event == "token" and timeline.shape.streams and self.awaits_output:
            # The first token, wherever it comes.
            event = "first_token"
        if not self.is_legal(event) and allowing_ahead(self.timeline.shape, self.timeline.state, event) is not None:
            if self._marks_boundaries:
                what, allowed = f"{event!r} while {timeline.state}", timeline.shape.table[timeline.state]
                self.violate(IllegalTransition(what, state=timeline.state, event=event, allowed=allowed))
            self.reach(event)
        return event

    def enter_stage(self, stage: Stage) -> bool:
        """Pass the earlier stages that nobody marked; from a later one count a violation and return False."""
        shape = self.timeline.shape
        order = [one.state for one in shape.stages]
        state = self.timeline.state
        if order.index(self.in_stage) > order.index(stage.state):
            what = f"stage {stage.name!r} while {state}"
            self.violate(IllegalTransition(what, state=state, event=stage.leave, allowed=shape.table[state]))
            return False
        self.pass_to(stage.state)
        return True

    def follow(self, event: str, at: int | None, choice: int) -> bool:
        """Move with a part of the request, unless it has moved there before; return whether that was news."""
        if not self.reach(event):
            return False
        latest = self.timeline.latest()
        # Threads of several parts may call in another order than they read the clock.
        at = at if at is None or latest is None else max(at, latest)
        self._apply(event, at, 0 if event == "output" else 1, choice, given=True)
        self._applied(event, explicit=True)
        return True

    # Tokens.

    def token(self, n: Any, choice: Any, at_ns: Any) -> None:
        """Mark tokens that the path does not take: chunks, further choices, explicit times, other states."""
        if not is_nothing(n):
            self.mark("token", at_ns, n, choice)

    def item(self, n: Any, choice: Any, at_ns: Any = NOW) -> None:
        """Mark what a stream yielded: as :meth:`token`, but boundaries that nobody marked pass with it."""
        if not is_nothing(n):
            self.pass_to("prefill")
            self.mark("token", at_ns, n, choice)

    def whole_answer(self, count: Any, at_ns: Any = NOW) -> None:
        """Mark a result that came at once: ``output`` where the shape has it; in pooling the one pass is done."""
        self.pass_to("prefill")
        if self.is_legal("output"):
            self.mark("output", at_ns, count)

    def assume_sizes(self) -> None:
        """Note that frames count as one token each without saying so: a usage figure may prove them to be chunks."""
        self.timeline.assumed = True

    def end_stream(self, at_ns: Any = NOW) -> None:
        """A stream that ended by itself is all of the answer; without a token it was an empty one."""
        self.exhausted = True
        # An answer that ran to its end after an exception is that of another attempt, which went well.
        self.passed = None
        self.pass_to("prefill")
        if self.is_legal("output"):
            self.mark("output", at_ns, count=0)

    def reach(self, event: str) -> bool:
        """Pass the boundaries before the state that allows an event; False where no state up to prefill does.

        Decode is not passed into: that would need a token that nobody has seen.
        """
        if self.is_legal(event):
            return True
        allowing = allowing_ahead(self.timeline.shape, self.timeline.state, event)
        if allowing is not None:
            self.pass_to(allowing)
        return allowing is not None

    # Notes and violations.

    def note_passed(self, terminal: Terminal) -> None:
        """Keep how the first exception would end it that came out of a stream or a block."""
        self.passed = self.passed or terminal

    def note(self, name: str, at_ns: Any, attributes: dict[str, Any] | None = None) -> None:
        """Keep a note: an event that moves no state.  Of ``delivered`` only the first counts."""
        if name == "delivered" and self.delivered is not None:
            return
        try:
            time = perf_counter_ns() if at_ns is NOW else on_axis(at_ns, self.offset, name, self.timeline.state)
        except LifecycleError as error:
            self.violate(error)
            return
        self.disconnected = self.disconnected or name == "client_disconnected"
        if time is not None:
            self.events.show(name, time, attributes)
            if name == "delivered" and self.arrived is not None:
                self.delivered = max(0, time - self.arrived)

    def violate(self, error: LifecycleError) -> None:
        """Count what is wrong; raised instead where the processor is strict."""
        self.checker.violate(error)
        self._show_violations()

    # The end.

    def release_tokens(self) -> tuple[Log, ...]:
        """Close the token path and take the token times off the lists; return those, to see what comes late.

        A thread that is in the middle of ``token()`` still holds one: what it appends afterwards came after the end.
        """
        self._lead(None)
        tokens = self.timeline.tokens
        released = tuple(tokens.values())
        for choice, log in tokens.items():
            # Only what was copied is taken off: another thread may append between the two lines.
            taken = tokens[choice] = log[:]
            del log[: len(taken)]
        return released

    def judge_clocks(self) -> None:
        """Count, once, each proof that two times of the request cannot both be right."""
        self.checker.judge_clocks()
        self._show_violations()

    def close(self, status: str) -> None:
        """End it; nothing changes any more."""
        self.status = status

    def disown(self) -> None:
        """Forget a request that a forked child inherited: its parent ends it."""
        self._lead(None)
        self.status = "incomplete"
