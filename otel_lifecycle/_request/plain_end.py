"""The end of a request that stayed in its course.

How it works.  One call closes the request.  After it, its times go to the processor, and its span is written and
ended: both may call what is other people's, which may wait for a thread that calls into this request.  Where no span
shows it, the processor judges the times when metrics are collected, and nothing is computed now.  Whatever is not as
expected leaves the end to the whole request (``ending.py``).
"""

from __future__ import annotations

import logging
from time import perf_counter_ns
from typing import Final

from otel_lifecycle._assessor import RegisteredRequest
from otel_lifecycle._core.interference import Interference
from otel_lifecycle._core.stalls import find_stalls_in
from otel_lifecycle._core.tokens import Log
from otel_lifecycle._core.usual import UsualEnd, UsualGaps, usual_gaps, usual_report
from otel_lifecycle._core.usual_attributes import UsualNotes
from otel_lifecycle._guard import guard
from otel_lifecycle._log import say
from otel_lifecycle._request.handle_reference import NOBODY
from otel_lifecycle._request.plain import PlainRequest
from otel_lifecycle._runtime import runtime

_NOTHING_NOTED: Final = UsualNotes(0, False, None)


class PlainEnding(PlainRequest):
    """A request that may complete while it is plain."""

    __slots__ = ()

    def complete(self) -> bool:
        """Complete it now; False, and nothing has changed, where the whole request has to."""
        plain = self.whole is None
        if not plain or not self._ends_plainly:
            return False
        # A new object that nobody else has.
        mine: list[object] = []
        here, closed = runtime(), False
        try:
            closed = self._close(mine)
            if closed:
                # Outside of the call: it calls other people's processors, which may wait for another thread of ours.
                self._finish(here.open_requests)
        except Exception as error:  # noqa: BLE001  # the guard decides
            guard.fault("request", error)
        finally:
            # What a signal handler broke off is finished by the next sweep.
            if self._finishing is mine:
                self._finishing = None
                if self.whole is not None and self._closed():
                    self.ending.take_over(judged=self._judged, finished=self._finished)
        if not closed or not self._finished:
            return False
        # The calls in between would cost more than the look.
        if here.dropped or self._times[-1] >= here.sweep_due:
            here.housekeep()
        return True

    def _close(self, mine: object) -> bool:
        """Close it; return whether it was still open and plain."""
        with self._lock:
            if self._busy:
                return False
            try:
                self._busy = True
                # Only now: until here, a call that interrupts this one may end the request.
                plain = self.whole is None
                if not plain or self._kind.events[len(self._times)] != "complete":
                    return False
                log = self._log
                if log is not None:
                    # What another thread appends from here on came after the end.
                    path = self.reference()
                    if path is not None:
                        path.lead_to(None)
                    self._taken = log[:]
                    self._copied = [len(self._taken)]
                # After the append this call owns the end: a request that is made whole then is finished already.
                self._finishing = mine
                now = perf_counter_ns()
                if self.whole is not None or self._times.append(now):  # type: ignore[func-returns-value]  # see `plain.py`
                    return False
                if log is not None:
                    self._leave_late()
                return True
            finally:
                self._busy = False
                if self._deferred and self._closed():
                    self._run_deferred()

    def _hand_over(self) -> None:
        kind, slot, tokens = self._kind, self._slot, self._taken
        log = tokens if tokens is not None and len(tokens) > 1 else None
        alone, held, gaps = False, None, None
        if slot is not None:
            alone = self._engine.leave(slot, self._times[-1])  # type: ignore[union-attr]  # the log of the slot
        if not self._unseen or (slot is not None and not alone):
            gaps = usual_gaps(log)
            # Now: the log forgets what others did.
            held = self._held(log, gaps)
        assessor = self._assessor
        if assessor is not None:
            given = kind.conditions
            end = (
                kind.shape.name,
                self._times,
                log,
                given.labels,
                given.usage or None,
                alone,
                held,
                gaps,
                self.span.get_span_context(),
                self.offset,
                assessor.rules,
                None,
            )
            if self._unseen:
                # Read first: as a method it would be looked up in the class each time, where it is not.
                take = assessor.take_usual
                take(end, 0 if log is None else len(log))
            else:
                self._told = assessor.judge_usual(UsualEnd(*end), _NOTHING_NOTED), held

    def _finish(self, register: dict[int, RegisteredRequest]) -> None:
        """Hand its times over, end the span, and leave the register."""
        try:
            # Before: what a signal handler breaks off may have recorded metrics, which must not happen twice.
            self._judged = True
            self._hand_over()
        except Exception as error:  # noqa: BLE001  # the server's request must not fail for our sake
            say("finish", "a request could not be assessed", level=logging.ERROR, error=error)
        finally:
            if not self._unseen:
                self._end_span()
        register.pop(self.ticket, None)
        # In this order: one that is interrupted here is finished when its handle is dropped.
        self._finished = True
        if self._log is None:
            # Nothing can come late without a mark, so nobody has to be told when the handle is dropped.
            self.reference = NOBODY
        # With tokens still coming it stays there, so that a sweep finds them; another thread may just have marked some.
        if (self._log or self.whole is not None) and self.expects_more:
            register[self.ticket] = self  # type: ignore[assignment]  # a TrackedRequest, which has the rest

    def _end_span(self) -> None:
        times, assessor = self._times, self._assessor
        try:
            if self._told is not None and assessor is not None:
                attributes, held = self._told
                tokens = self._taken if assessor.token_times else None
                self.writer.write_plain(self._kind.shape, times, attributes, held, tokens)
        except Exception as error:  # noqa: BLE001  # the server's request must not fail for our sake
            say("finish", "a request could not be assessed", level=logging.ERROR, error=error)
        finally:
            self._told = None
            try:
                self.writer.end_at(times[-1] + self.offset, times[-1])
            except Exception as error:  # noqa: BLE001  # what another processor raises comes out of span.end()
                say("end_span", "a request span could not be ended", level=logging.ERROR, error=error)

    def _held(self, log: Log | None, gaps: UsualGaps) -> Interference | None:
        if self._engine is None or self._slot is None:
            return None
        times = {step.key: time for step, time in zip(self._kind.shape.course, self._times, strict=False)}
        stalls = None if log is None else find_stalls_in(log, gaps.gaps)
        try:
            report = usual_report(self._kind.shape.name, times)
            return self._engine.interference(self._slot, report, stalls, full=not self._unseen)
        except Exception as error:  # noqa: BLE001  # a fault of the log must not cost the request its metrics
            guard.fault("interference", error)
            return None
