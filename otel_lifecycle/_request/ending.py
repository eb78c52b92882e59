"""The end of one request: it is closed, judged and written once; tokens that come later are wasted.

How it works.  :meth:`RequestEnding.close` fixes how the request ended; from then on its state does not change.
:meth:`RequestEnding.finish` judges it, which records its metrics, writes its span and ends it.  The two are apart
because ``close`` runs while every other call of the request waits, and ``finish`` must not: ``span.end()`` calls other
people's processors, which may wait for a thread that calls into this request.

A signal handler may raise at any line of ours, so ``finish`` may be interrupted at any point and is called again by the
next call or sweep: each of its steps is done once, and the span ends whatever becomes of the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from threading import Lock
from time import perf_counter_ns
from typing import Any, Final

from otel_lifecycle import semconv
from otel_lifecycle._assessor import Assessor
from otel_lifecycle._core.derived import with_derived
from otel_lifecycle._core.endings import Terminal
from otel_lifecycle._core.interference import Interference
from otel_lifecycle._core.lifecycle import TERMINAL_EVENTS
from otel_lifecycle._core.outputs import as_outputs
from otel_lifecycle._core.report import Report, build_report, longest_folded, moved
from otel_lifecycle._core.tokens import Log
from otel_lifecycle._core.usual import UsualEnd, is_usual, usual_gaps, usual_log, usual_report
from otel_lifecycle._core.usual_attributes import UsualNotes
from otel_lifecycle._core.verdict import Finished, Verdict, assess
from otel_lifecycle._guard import guard
from otel_lifecycle._log import say
from otel_lifecycle._request.clock import NOW, on_axis
from otel_lifecycle._request.conditions import RequestConditions
from otel_lifecycle._request.engine_seat import EngineSeat
from otel_lifecycle._request.span_writer import SpanWriter
from otel_lifecycle._request.state import RequestState
from otel_lifecycle._request.tokens_after_end import TokensAfterEnd
from otel_lifecycle._runtime import runtime
from otel_lifecycle.errors import DuplicateTerminal, EventAfterTerminal, LifecycleError

# While a request is open nothing comes after its end, so one serves all of them.
_NOTHING_LATE: Final = TokensAfterEnd(())


class RequestEnding:
    """How one request ends.

    ``assessor``: the processor it belongs to.  ``ticket``: its number in the runtime.  ``provisional``: its answer is
    out, and only an exception that may still come could say otherwise; how it ends if none does, and when.
    ``silenced``: its processor was shut down, so what its handle does now is ignored.  ``seat``: its place in the log
    of its engine.  ``durations``: how long the engine says its stages took, nanoseconds by stage.
    """

    __slots__ = (
        "_conditions",
        "_ended_at",
        "_error_type",
        "_finishing",
        "_judged",
        "_reason",
        "_reported",
        "_state",
        "_told",
        "_writer",
        "assessor",
        "durations",
        "finished",
        "late",
        "provisional",
        "seat",
        "silenced",
        "ticket",
    )

    def __init__(
        self,
        state: RequestState,
        conditions: RequestConditions,
        writer: SpanWriter,
        assessor: Assessor | None,
        ticket: int,
    ) -> None:
        self._state, self._conditions, self._writer = state, conditions, writer
        self.assessor, self.ticket = assessor, ticket
        self.seat: EngineSeat | None = None
        self.provisional: tuple[Terminal | None, Any] | None = None
        self.durations: Mapping[str, int] = {}
        self.silenced = self.finished = False
        self.late = _NOTHING_LATE
        # Set by `close`, before anything reads it.
        self._ended_at: int
        self._reason: str | None = None
        self._error_type: str | None = None
        self._reported: str | None = None
        # Its holder finishes the request: another thread, or this one, interrupted by a signal handler meanwhile.
        self._finishing = Lock()
        self._judged = self._told = False

    # Closing.

    def close(self, status: str, late: tuple[Log, ...], reason: str | None, error_type: str | None = None) -> None:
        """Fix how it ended; ``late`` are the lists that threads in the middle of ``token()`` still append to."""
        self._reason, self._error_type, self.provisional = reason, error_type, None
        self._ended_at = perf_counter_ns()
        self.late = TokensAfterEnd(late)
        # Last: a thread that sees a status finds everything above in place.
        self._state.close(status)

    def retrace(self, ended_at: int, late: tuple[Log, ...], *, judged: bool, finished: bool) -> None:
        """Take over the end of a request that completed while it was plain."""
        self._ended_at = ended_at
        self.late = TokensAfterEnd(late)
        self.take_over(judged=judged, finished=finished)

    def take_over(self, *, judged: bool, finished: bool) -> None:
        """Go on from what was done of the end of a plain request."""
        self._judged, self.finished = judged, finished
        self._reported = "completed" if judged else None

    # Finishing.

    def finish(self) -> None:
        """Judge it, write its span and end that, once.  What goes wrong in it is logged, and the span ends."""
        mine = False
        try:
            # It never waits: the holder of the lock finishes the request, and that may be this very thread.
            mine = not self.finished and self._finishing.acquire(blocking=False)
            if mine and not self.finished:
                self._finish_once()
        finally:
            if mine:
                self._finishing.release()
        if mine:
            # Outside of the lock: it ends other requests, and so runs other people's processors.
            runtime().housekeep()

    @property
    def interrupted(self) -> bool:
        """Whether it was closed and nobody is finishing it."""
        return not self.finished and not self._finishing.locked()

    def _finish_once(self) -> None:
        try:
            if not self._judged:
                # Before, not after: a judgement that a signal handler broke off may have recorded metrics, which must
                # not happen twice.
                self._judged = True
                self._judge()
        finally:
            self._end_span()
            self.finished = True
            # With tokens still coming it stays on the register, so that a sweep finds them.
            if not self.late:
                self._leave_register()

    def _leave_register(self) -> None:
        register = runtime()
        request = register.close_request(self.ticket)
        # Another thread may have marked a token between the look at what is late and this.
        if request is not None and self.late:
            register.open_requests[self.ticket] = request

    def _judge(self) -> None:
        try:
            if self.seat is not None:
                # Before anything that may fail: a seat that is not left would count as a running neighbour for ever.
                self.seat.leave(self._state.timeline, self._ended_at)
            if self.assessor is not None and self._is_usual(self.assessor):
                self._end_usual(self.assessor)
                return
            finished = self._finished()
            if self.assessor is None and self._writer.span.is_recording():
                # A recording request that was opened before any processor is adopted at its end.
                self.assessor = runtime().assessor_for(self._writer.provider)
            verdict = self._assess(finished)
            assessor, compat = self.assessor, None
            if assessor is None:
                self._writer.write(self._state, finished, verdict, ended_at=self._ended_at)
            else:
                compat = assessor.compat
                self._writer.write(
                    self._state,
                    finished,
                    verdict,
                    ended_at=self._ended_at,
                    token_times=assessor.token_times,
                    compat=compat,
                    usage=assessor.gen_ai_usage,
                )
            if compat == "vllm" and (request_id := self._conditions.attributes.get(semconv.REQUEST_ID)) is not None:
                self._writer.set({semconv.GEN_AI_REQUEST_ID: request_id})
        except Exception as error:  # noqa: BLE001  # the server's request must not fail for our sake
            say("finish", "a request could not be assessed", level=logging.ERROR, error=error)

    def _is_usual(self, assessor: Assessor) -> bool:
        """Whether all that is told of it follows from its times."""
        state = self._state
        return (
            not state.checker.counts
            and is_usual(state.timeline)
            and self._conditions.labels.role == "whole"
            and self._conditions.labels.unit is None
            and self._reason is None
            and not self.durations
            # The names of an engine's own have meanings of their own.
            and (state.events.unseen or assessor.compat is None)
        )

    def _end_usual(self, assessor: Assessor) -> None:
        state, seat = self._state, self.seat
        timeline, unseen = state.timeline, state.events.unseen
        # Nothing is computed now for a request that no span shows, if its neighbours need not be asked.
        alone = unseen and seat is not None and seat.alone()
        held, gaps, log = None, None, usual_log(timeline)
        if not unseen or (seat is not None and not alone):
            gaps = usual_gaps(log)
            # Now: the log forgets what others did.
            held = self._interference(usual_report(timeline.shape.name, timeline.times), gaps.gaps)
        times, usage = [*timeline.times.values()], self._conditions.usage or None
        labels, span = self._conditions.labels, self._writer.span.get_span_context()
        end = UsualEnd(
            timeline.shape.name, times, log, labels, usage, alone, held, gaps, span, state.offset, assessor.rules
        )
        self._reported = "completed"
        if unseen:
            assessor.take_usual(tuple(end), 0 if log is None else len(log))
            return
        notes = UsualNotes(state.events.dropped, state.disconnected, state.delivered)
        attributes = assessor.judge_usual(end, notes)
        self._writer.write_usual(state, attributes, held, ended_at=self._ended_at, token_times=assessor.token_times)

    def _assess(self, finished: Finished) -> Verdict:
        assessor = self.assessor
        if assessor is None:
            return assess(finished)
        return assessor.assess(finished, self._writer.exemplar_context())

    def _end_span(self) -> None:
        try:
            self._writer.end(self._state, self._ended_at)
        except Exception as error:  # noqa: BLE001  # what another span processor raises comes out of span.end()
            say("end_span", "a request span could not be ended", level=logging.ERROR, error=error)

    def _finished(self) -> Finished:
        state, usage = self._state, self._conditions.usage
        timeline = state.timeline
        # A usage figure counts tokens; it says nothing about other outputs.
        output = usage.get("output_tokens") if state.checker.amounts is None else None
        status = state.status or "incomplete"
        report = build_report(timeline, status, token_times=False, usage=output, unmarked=state.unmarked)
        self._reported = status
        # Once: the stalls and the quantiles both need them sorted.
        gaps = sorted(report["itl"])
        report = self._in_unit(report)
        return Finished(
            # Only here: the log of the engine holds no derived times, so nobody is compared with them.
            report=with_derived(report, self.durations, timeline.output_at),
            reason=self._reason,
            error_type=self._error_type,
            usage=dict(usage),
            violations={str(kind): count for kind, count in state.checker.counts.items()},
            preemptions=dict(timeline.preemptions),
            longest_folded=longest_folded(timeline, report),
            gaps_held=not timeline.folded and not timeline.folded_remote,
            events_dropped=state.events.dropped,
            client_disconnected=state.disconnected,
            delivered=state.delivered,
            labels=self._conditions.labels,
            gaps=gaps,
            # What is unusual for a token says nothing about other outputs: they have no stalls.
            interference=self._interference(report, gaps if state.checker.amounts is None else []),
        )

    def _interference(self, report: Report, gaps: Sequence[int]) -> Interference | None:
        """Return what the other requests of the engine did to it; without culprits where no span shows them."""
        recorded = self._writer.span.is_recording()
        if self.seat is None or (self.assessor is None and not recorded):
            return None
        try:
            return self.seat.interference(report, self._state.timeline, gaps, full=recorded)
        except Exception as error:  # noqa: BLE001  # a fault of the log must not cost the request its metrics
            guard.fault("interference", error)
            return None

    def _in_unit(self, report: Report) -> Report:
        unit, amounts = self._conditions.labels.unit, self._state.checker.amounts
        return report if unit is None or amounts is None else as_outputs(report, unit, amounts)

    def report(self) -> Report | None:
        """Return the report of an ended request with its times in epoch nanoseconds; None while it is open."""
        status = self._reported
        if status is None:
            return None
        unit = self._conditions.labels.unit
        usage = self._conditions.usage.get("output_tokens") if unit is None else None
        # Built anew, with the token times that the end left out: few requests are ever asked for them.
        full = build_report(self._state.timeline, status, usage=usage, unmarked=self._state.unmarked)
        told = with_derived(self._in_unit(full), self.durations, self._state.timeline.output_at)
        return moved(told, self._state.offset)

    # After the end.

    def take_late(self, event: str, count: Any, at_ns: Any) -> None:
        """Take a mark that came after the end: a token is wasted, anything else a violation."""
        if event not in ("token", "first_token"):
            self.after_end(event)
        elif not self.silenced:
            now = perf_counter_ns()
            self.late.add(count, self._late_time(at_ns, now), now)
            self._tell_late(event)

    def _late_time(self, at_ns: Any, now: int) -> int:
        if at_ns is NOW:
            return now
        try:
            # The lag needs a time: a token at an unknown one counts as produced now.
            return on_axis(at_ns, self._state.offset, "token", self._state.timeline.state) or now
        except LifecycleError as error:
            self.violate(error)
            return now

    def _tell_late(self, event: str) -> None:
        if not self.late.told or self._state.checker.strict:
            self.late.told = True
            self.after_end(event)

    def take_wasted(self) -> int:
        """Return how many tokens came after the end since the last call."""
        if self.late.take_from_path(perf_counter_ns()):
            # Not strict here: the thread that made the mark has gone on, so there is no caller to raise to.
            with_strict, self._state.checker.strict = self._state.checker.strict, False
            try:
                self._tell_late("token")
            finally:
                self._state.checker.strict = with_strict
        return self.late.take_count()

    def take_lag(self) -> int | None:
        """Return the time from the end to the last token after it, once; the request leaves the register."""
        last = self.late.take_last()
        self._leave_register()
        if last is None:
            return None
        end: int = self._state.timeline.times.get("terminal", self._ended_at)
        # Readings of racing threads may cross by a little.
        return max(0, last - end)

    def record_wasted(self, count: int) -> None:
        """Count wasted tokens in the metrics."""
        if count and self.assessor is not None:
            self.assessor.record_wasted(count, self._conditions.labels, self._writer.exemplar_context())

    def record_lag(self, lag: int | None) -> None:
        """Record the lag of the last wasted token."""
        if lag is not None and self.assessor is not None:
            self.assessor.record_lag(lag, self._conditions.labels, self._writer.exemplar_context())

    def record_gaps(self, gaps: list[int]) -> None:
        """Record the gaps of a stream that goes on.

        The halves of a disaggregated request feed no token metrics, and one with a chunk of unknown size has no ITL.
        """
        labels = self._conditions.labels
        if (
            gaps
            and self.assessor is not None
            and labels.role in ("whole", "part")
            and self._state.timeline.gaps_are_certain
        ):
            self.assessor.record_gaps(gaps, labels, self._writer.exemplar_context())

    def after_end(self, event: str) -> None:
        """Count an event that came after the end; after a shutdown none is counted."""
        if self.silenced:
            return
        status = self._state.status
        kind = DuplicateTerminal if event in TERMINAL_EVENTS else EventAfterTerminal
        self.violate(kind(f"{event!r} after the end, the request is {status}", state=status, event=event))

    def told_after_end(self, what: str) -> None:
        """Count that a condition of an ended request was given, once: a usage frame after ``[DONE]`` is common."""
        if not self._told:
            self._told = True
            self.after_end(what)

    def violate(self, error: LifecycleError) -> None:
        """Count what is wrong after the end: the counts of the request itself are closed, and on its span."""
        if self._state.checker.strict:
            raise error
        if self.assessor is not None:
            self.assessor.record_violation(error.kind, self._conditions.labels)

    def disown(self) -> None:
        """Forget a request that a forked child inherited; a thread of the parent may have held the lock."""
        self._finishing = Lock()
        self.silenced = self._judged = self.finished = True
        self.provisional = None
