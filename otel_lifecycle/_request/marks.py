"""Marks of one request: to its state while it is open, to its ending afterwards.

Each method runs alone (``one_at_a_time.py``), so whether the request has ended cannot change under it.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, TypeVar

from otel_lifecycle._core.lifecycle import Stage
from otel_lifecycle._request.clock import NOW
from otel_lifecycle._request.event_kinds import NOTES, RECEIPT_TOLERANCE_NS, TOKEN_EVENTS, is_nothing
from otel_lifecycle._request.plain_end import PlainEnding
from otel_lifecycle._request.recorded_tokens import RecordedTokens
from otel_lifecycle._request.token_path import FIRST, ONE
from otel_lifecycle.errors import EventAfterTerminal, LifecycleError

T = TypeVar("T")


class MarkedRequest(PlainEnding):
    """Where the marks of one request go."""

    __slots__ = ()

    def advance(self, event: str) -> bool:
        """Apply an event that happens now; False, and nothing has changed, where :meth:`mark` has to take it.

        What :meth:`_run` does, without the calls in between: a server comes past here at every boundary.
        """
        plain, applied = self.whole is None, None
        if not plain:
            # A call that interrupts another one is put aside by `mark`.  After a fault it is not tried again.
            return not self._busy and self._run(self._advance, event) is not False
        with self._lock:
            if self._busy:
                return False
            try:
                self._busy = True
                # Only now: until here, a call that interrupts this one may end the request.
                if event != self._kind.events[len(self._times)]:
                    applied = False
                elif event == "first_token":
                    applied = self._step_to_tokens()
                else:
                    now = perf_counter_ns()
                    # False where a read that interrupts this has made the request whole.
                    applied = self.whole is None and not self._times.append(now)  # type: ignore[func-returns-value]  # see `plain.py`
                    slot = self._slot
                    if slot is not None:
                        # Its engine reads the time when another request looks.
                        self._engine.moved[slot] = None  # type: ignore[union-attr]  # the log of the slot
            finally:
                self._busy = False
                # Not where the mark is still to come: the calls that interrupted it run after it.
                if self._deferred and applied is not False:
                    self._run_deferred()
        # One of the calls that interrupted this one may have ended it.
        if self.whole is not None and applied:
            self._after_call()
        return applied

    def _step_to_tokens(self) -> bool:
        now = perf_counter_ns()
        # Before: who finds it in decode finds its tokens.
        self._log = log = [now]
        if self.whole is not None or self._times.append(now):  # type: ignore[func-returns-value]  # see `plain.py`
            return False
        slot, path = self._slot, self.reference()
        if slot is not None:
            self._engine.moved[slot] = None  # type: ignore[union-attr]  # the log of the slot
        if path is not None:
            path.lead_to(log)
        return True

    def _advance(self, event: str) -> bool:
        state = self.state
        return state.status is None and state.advance(event)

    def mark(self, event: str, at_ns: Any = NOW, count: Any = 1, choice: Any = 0) -> bool:
        """Apply one event of the live API; return whether it was legal."""
        # None means that the call was put aside or failed: then nothing is known to have been applied.
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

    def mark_recorded(self, row: RecordedTokens) -> bool:
        """Append tokens in a row that another process recorded; False where they have to be judged one by one."""
        return bool(self._run(self._mark_recorded, row))

    def _mark_recorded(self, row: RecordedTokens) -> bool:
        state = self.state
        timeline = state.timeline
        # Amounts of another unit are added up by the checker.
        if state.status is not None or timeline.state != "decode" or state.checker.amounts is not None:
            return False
        # Read before: an event we received cannot lie in the future.
        received = perf_counter_ns()
        if not timeline.take_recorded(row.times, row.logs):
            return False
        timeline.witness(received + RECEIPT_TOLERANCE_NS)
        return True

    def mark_news(self, event: str, at_ns: Any, count: Any, choice: Any) -> bool:
        """Apply an event unless the request has passed it; what lies before it passes at unknown times."""
        return bool(self._run(self._mark_news, event, at_ns, count, choice))

    def _mark_news(self, event: str, at_ns: Any, count: Any, choice: Any) -> bool:
        state = self.state
        if state.status is not None:
            # Two sources may report one end. Only a token after it is news: it is wasted.
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
        if not self._is_first(n, choice, at_ns):
            self._run(self._tokens, self.state.token, n, choice, at_ns)

    def _is_first(self, n: Any, choice: Any, at_ns: Any) -> bool:
        """Mark one token as the first of a plain request, where that is what comes next."""
        usual = self.whole is None and n is ONE and choice is FIRST and at_ns is NOW
        return usual and self.advance("first_token")

    def item(self, n: Any = 1, choice: Any = 0, at_ns: Any = NOW) -> None:
        """Mark what a stream yielded: boundaries that nobody marked pass with it."""
        if not self._is_first(n, choice, at_ns):
            self._run(self._tokens, self.state.item, n, choice, at_ns)

    def _tokens(self, mark: Callable[[Any, Any, Any], None], n: Any, choice: Any, at_ns: Any) -> None:
        if self.state.status is None:
            mark(n, choice, at_ns)
        else:
            self._late("token", n, at_ns)

    def _late(self, event: str, count: Any, at_ns: Any) -> None:
        if event in TOKEN_EVENTS and is_nothing(count):
            return
        try:
            self.ending.take_late(event, count, at_ns)
        finally:
            # Also where a strict processor raises: the token is wasted all the same.
            if self.ending.late:
                self._stay_open()

    def whole_answer(self, count: Any, at_ns: Any = NOW) -> None:
        """Mark a result that came at once; nothing of a request that has ended."""
        self._while_open(self.state.whole_answer, count, at_ns)

    def assume_sizes(self) -> None:
        """Note that frames count as one token each without saying so."""
        self._while_open(self.state.assume_sizes)

    def begin_stream(self) -> None:
        """Note the first pull of a stream: the model is at work, and what nobody marked before it has passed."""
        if self._is_in("prefill", "decode"):
            return
        self._while_open(self.state.pass_to, "prefill")

    def end_stream(self) -> None:
        """Note that a stream ended by itself."""
        if self._is_in("decode"):
            self._exhausted = True
            if self.whole is None:
                return
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
        if self._is_in(stage.state):
            return True
        return bool(self._run(self._enter_stage, stage))

    def _enter_stage(self, stage: Stage) -> bool:
        status = self.state.status
        if status is None:
            return self.state.enter_stage(stage)
        if not self.ending.silenced:
            what = f"stage {stage.name!r} after the end"
            self.ending.violate(EventAfterTerminal(what, state=status, event=stage.leave))
        return False

    def _stay_open(self) -> None:
        """Stay on the register: something came after the end."""
