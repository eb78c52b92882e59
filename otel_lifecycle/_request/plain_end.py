"""The end of a request that stayed in its course and that no span shows.

How it works.  Nothing is computed here: its times and those of its tokens go to the processor, which judges them when
metrics are collected.  All of it runs as one call of the request.  That is safe because nothing in it is somebody
else's: a span that is not recorded has no processors, and the log of the engine and the buffer of the metrics take no
lock of the server.  Whatever is not as expected leaves the end to the whole request (``ending.py``).
"""

from __future__ import annotations

import logging
from time import perf_counter_ns

from otel_lifecycle._core.interference import Interference
from otel_lifecycle._core.stalls import find_stalls_in
from otel_lifecycle._core.tokens import Log
from otel_lifecycle._core.usual import UsualEnd, UsualGaps, usual_gaps, usual_report
from otel_lifecycle._guard import guard
from otel_lifecycle._log import say
from otel_lifecycle._request.plain import PlainRequest
from otel_lifecycle._runtime import runtime


class PlainEnding(PlainRequest):
    """A request that may complete while it is plain."""

    __slots__ = ()

    def complete(self) -> bool:
        """Complete it now; False, and nothing has changed, where the whole request has to."""
        completed = False
        try:
            with self._lock:
                if (
                    self._busy
                    or self.whole is not None
                    or not self._ends_plainly
                    or self._course[len(self._times)].event != "complete"
                ):
                    return False
                try:
                    self._busy = True
                    completed = self._complete()
                finally:
                    self._busy = False
                    if self._deferred and completed:
                        self._run_deferred()
        except Exception as error:  # noqa: BLE001  # the guard decides
            guard.fault("request", error)
        if completed:
            here = runtime()
            # The calls in between would cost more than the look.
            if here.dropped or self._times[-1] >= here.sweep_due:
                here.housekeep()
        return completed

    def _complete(self) -> bool:
        path, log = self.reference(), self._log
        # What another thread appends from here on came after the end.
        if path is not None:
            path.lead_to(None)
        taken = self._taken = None if log is None else log[:]
        now = perf_counter_ns()
        if self.whole is not None or self._times.append(now):  # type: ignore[func-returns-value]  # see `plain.py`
            return False
        register = runtime().open_requests
        try:
            # Before: what a signal handler breaks off may have recorded metrics, which must not happen twice.
            self._judged = True
            self._hand_over(now, taken)
        except Exception as error:  # noqa: BLE001  # the server's request must not fail for our sake
            say("finish", "a request could not be assessed", level=logging.ERROR, error=error)
        finally:
            self._finished = True
        register.pop(self.ticket, None)
        # With tokens still coming it stays on the register, so that a sweep finds them.
        if taken is not None and len(self._log or ()) > len(taken):
            register[self.ticket] = self  # type: ignore[assignment]  # a TrackedRequest, which has the rest
        return True

    def _hand_over(self, now: int, tokens: Log | None) -> None:
        given, engine, slot = self._given, self._engine, self._slot
        log = tokens if tokens is not None and len(tokens) > 1 else None
        alone, held, gaps = False, None, None
        if engine is not None and slot is not None:
            alone = engine.leave(slot, now)
            if not alone:
                gaps = usual_gaps(log)
                # Now: the log forgets what others did.
                held = self._held(log, gaps)
        if self._assessor is not None:
            times, usage = tuple(self._times), given.usage or None
            end = UsualEnd(self._shape.name, times, log, given.labels, usage, alone, held, gaps)
            self._assessor.take_usual(end, self.span.get_span_context())

    def _held(self, log: Log | None, gaps: UsualGaps) -> Interference | None:
        if self._engine is None or self._slot is None:
            return None
        times = {step.key: time for step, time in zip(self._course, self._times, strict=False)}
        stalls = None if log is None else find_stalls_in(log, gaps.gaps)
        try:
            return self._engine.interference(self._slot, usual_report(self._shape.name, times), stalls, full=False)
        except Exception as error:  # noqa: BLE001  # a fault of the log must not cost the request its metrics
            guard.fault("interference", error)
            return None
