"""The end of a request: judge it, write its span, close its record.  From here on nothing moves it."""

from __future__ import annotations

import logging
import sys
from time import perf_counter_ns
from typing import Any, Final

from otel_lifecycle import _registry
from otel_lifecycle._core.report import Report, build_report, longest_folded
from otel_lifecycle._core.tokens import Log
from otel_lifecycle._core.verdict import Finished, assess
from otel_lifecycle._log import say
from otel_lifecycle._request import emit, late
from otel_lifecycle._request.clock import NOW
from otel_lifecycle._request.endings import Ending
from otel_lifecycle._request.record import Record
from otel_lifecycle.errors import MissingTerminal

FOLD_SLICE: Final = 4096
"""Entries that a fold on a serving thread takes at most; a longer one would be felt."""

FOLD_ABOVE: Final = 16_384
"""Token times a request holds before a sweep folds them."""

ABANDONED: Final = "abandoned"


def end(record: Record, ending: Ending, at_ns: Any = NOW, *, remote: bool = False) -> bool:
    """End a request by a terminal event, if the state allows it; return whether it did.

    ``remote``: at a time that the clock of another process gave.
    """
    try:
        with record.lock:
            if record.status is not None:
                record.after_end(ending.event)
                return False
            record.set_hot(None)
            _take_tokens(record)
            marked = record.mark_remote(ending.event, at_ns) if remote else record.mark(ending.event, at_ns)
            if not marked:
                return False
            record.judge_clocks()
            _close(record, record.timeline.state, ending)
    finally:
        # A signal handler may raise at any line of ours; what is closed by then is finished all the same.
        if record.status is not None and not record.finished:
            _finish(record)
    return True


def end_incomplete(record: Record, reason: str | None = None) -> None:
    """End a request that got no terminal event: it is no success and no failure, and that is a violation."""
    try:
        with record.lock:
            if record.status is not None:
                return
            record.set_hot(None)
            _take_tokens(record)
            missing = _missing(record)
            strict, record.checker.strict = record.checker.strict, False
            record.violate(missing)
            record.judge_clocks()
            _close(record, "incomplete", Ending("", reason))
    finally:
        if record.status is not None and not record.finished:
            _finish(record)
    if strict:
        raise missing


class OpenRecord(Record):
    """A record as the registry holds it: what may end it when no call of its server does."""

    __slots__ = ()

    def abandoned(self) -> None:
        """Its handle is gone."""
        abandon(self)

    def sweep(self, now: int, *, thorough: bool) -> None:
        """Keep its memory bounded."""
        sweep(self, now, thorough=thorough)

    def end_by_shutdown(self) -> None:
        """Its processor shuts down."""
        shut_down(self)


def abandon(record: Record) -> None:
    """End a request whose handle is gone, or record what came after its end."""
    # A dropped handle is nobody's call that could raise.
    record.checker.strict = False
    _settle(record)
    if record.status is None:
        end_incomplete(record, ABANDONED)
    late.flush(record)


def shut_down(record: Record) -> None:
    """End a request because the processor shuts down; what its handle does later is ignored."""
    record.checker.strict = False
    _settle(record)
    if record.status is None:
        end(record, Ending("cancel", "shutdown"))
    late.flush(record)
    record.silenced = True


def _settle(record: Record) -> None:
    """End a request whose answer is out as that answer was."""
    if record.status is None and record.provisional is not None:
        record.provisional()


def _missing(record: Record) -> MissingTerminal:
    allowed = tuple(record.timeline.shape.table[record.state])
    return MissingTerminal(
        f"the request was left while {record.state}, without a terminal event", state=record.state, allowed=allowed
    )


def _take_tokens(record: Record) -> None:
    """Take the token times off the list that the hot path appends to.

    A thread that is in the middle of that append still holds the list: what it appends afterwards came after the end
    and stays in ``record.late``.
    """
    log = record.timeline.tokens.get(0)
    if log:
        taken = log[:]
        del log[: len(taken)]
        record.timeline.tokens[0] = taken
        record.late = log


def _close(record: Record, status: str, ending: Ending) -> None:
    record.ending = ending
    record.ended_at = perf_counter_ns()
    record.status = status
    record.provisional = None


def _finish(record: Record) -> None:
    """Judge and emit, once.  Telemetry never breaks its host: what goes wrong here is logged, and the span ends."""
    mine = False
    try:
        # Whoever holds it finishes: another thread, or this one, interrupted by a signal handler in the middle of it.
        mine = record.finishing.acquire(blocking=False)
        if mine and not record.finished:
            _finish_once(record)
    finally:
        if mine:
            record.finishing.release()
    _registry.housekeep()


def _finish_once(record: Record) -> None:
    try:
        if not record.judged:
            record.judged = True
            _judge(record)
    finally:
        _end_span(record)
        record.finished = True
        _registry.close_request(record.ticket)


def _judge(record: Record) -> None:
    try:
        finished = _finished(record)
        assessor = record.assessor
        if assessor is None and record.span.is_recording():
            assessor = record.assessor = _registry.assessor_for(record.source.provider())
        if assessor is None:
            verdict, token_times, compat = assess(finished), False, None
        else:
            verdict = assessor.assess(finished, late.exemplar_context(record))
            token_times, compat = assessor.token_times, assessor.compat
        emit.write(record, finished, verdict, token_times=token_times, compat=compat)
    except Exception as error:  # noqa: BLE001  # the server's request must not fail for our sake
        say("finish", "a request could not be assessed", level=logging.ERROR, error=error)


def _end_span(record: Record) -> None:
    try:
        emit.end_span(record)
    except Exception as error:  # noqa: BLE001  # what another span processor raises comes out of span.end()
        say("end_span", "a request span could not be ended", level=logging.ERROR, error=error)


def _finished(record: Record) -> Finished:
    timeline, labels, ending = record.timeline, record.labels, record.ending
    usage = record.usage
    status, output = record.status or "incomplete", usage.get("output_tokens")
    report = build_report(timeline, status, token_times=False, usage=output, unmarked=record.unmarked)
    record.report = report
    return Finished(
        report=report,
        reason=ending.reason,
        error_type=ending.error_type,
        usage=dict(usage),
        violations={str(kind): count for kind, count in record.checker.counts.items()},
        preemptions=dict(timeline.preemptions),
        longest_folded=longest_folded(timeline, report),
        gaps_held=not timeline.folded and not timeline.folded_remote,
        events_dropped=record.events_dropped,
        client_disconnected=record.disconnected,
        delivered=record.delivered,
        role=labels.role,
        traffic=labels.traffic,
        operation=labels.operation,
        provider=labels.provider,
        model=labels.model,
    )


def sweep(record: Record, now: int, *, thorough: bool) -> None:
    """Fold token logs that have grown long; record what came after the end, and its lag once it has settled.

    A collection is ``thorough``.  On a serving thread a fold waits for four times the length and is a slice: long
    streams are folded by whoever collects, and stay bounded where nobody does.
    """
    if record.status is not None:
        _sweep_ended(record, now)
        return
    timeline = record.timeline
    above, most = (FOLD_ABOVE, sys.maxsize) if thorough else (4 * FOLD_ABOVE, FOLD_SLICE)
    gaps: list[int] = []
    for logs, remote in ((timeline.tokens, False), (timeline.remote_tokens, True)):
        # Its choices share what a request may hold.
        if sum(map(len, list(logs.values()))) > above:
            gaps += _fold(record, logs, most, remote=remote)
    if gaps:
        _record_gaps(record, gaps)


def _fold(record: Record, logs: dict[int, Log], most: int, *, remote: bool) -> list[int]:
    """Fold the logs of all choices by up to ``most`` entries in all; return their gaps."""
    gaps: list[int] = []
    with record.lock:
        if record.status is not None:
            return gaps
        for choice, log in list(logs.items()):
            if len(log) > 1 and most > 0:
                most -= len(log) - 1
                gaps += record.timeline.fold(choice, len(log) - 1 + min(0, most), remote=remote)
    return gaps


def _record_gaps(record: Record, gaps: list[int]) -> None:
    # The parts of a disaggregated request feed no token metrics, and one with a chunk of unknown size has no ITL.
    if record.assessor is not None and record.labels.role == "whole" and record.timeline.gaps_are_certain:
        record.assessor.record_gaps(gaps, record.labels, late.exemplar_context(record))


def _sweep_ended(record: Record, now: int) -> None:
    if not record.finished and not record.finishing.locked():
        # Whoever closed it was interrupted before it was finished.
        _finish(record)
    if record.late_at and now - record.late_at < late.SETTLED_NS:
        late.count_wasted(record)
    else:
        late.flush(record)


def report_of(record: Record) -> Report | None:
    """Return the report of an ended request with its times in epoch nanoseconds; None while it is open."""
    report = record.report
    if report is None:
        return None
    output = record.usage.get("output_tokens")
    full = build_report(record.timeline, report["status"], usage=output, unmarked=record.unmarked)
    return to_epoch(full, record.offset)


def to_epoch(report: Report, offset: int) -> Report:
    """Return a report whose instants are moved by ``offset``; durations stay."""

    def moved(time: int | None) -> int | None:
        return None if time is None else time + offset

    return {
        **report,
        "timestamps": {key: time + offset for key, time in report["timestamps"].items()},
        "token_times": [moved(time) for time in report["token_times"] or ()],
        "choices": {
            number: {**choice, "first": moved(choice["first"]), "last": moved(choice["last"])}
            for number, choice in report["choices"].items()
        },
    }
