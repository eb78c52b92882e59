"""Everything that is known of one open request.

A handle is what the server holds; its record is what the library holds.  The record never holds the handle: a dropped
handle is noticed by a weak reference whose callback does nothing but append the record to a deque, because it can run
inside a garbage collection inside anybody's lock.

Boundaries pass through :meth:`Record.mark` under the record's lock, where the clock is read, so that racing threads are
in order by themselves.  Single tokens do not pass here: the handle appends them to ``timeline.tokens[0]`` directly, and
``handle._ts`` is that list exactly while the request is in decode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import Lock, RLock
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.context import Context
from opentelemetry.trace import Span

from otel_lifecycle import _registry, semconv
from otel_lifecycle._core.checker import Checker, Violation
from otel_lifecycle._core.lifecycle import PREEMPTED, TERMINAL_EVENTS, Shape
from otel_lifecycle._core.report import Report
from otel_lifecycle._core.text import clean
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.tokens import Log
from otel_lifecycle._core.values import whole
from otel_lifecycle._request.clock import NOW, Anchor, on_axis
from otel_lifecycle._request.conditions import RequestLabels
from otel_lifecycle._request.late import TOKEN_EVENTS, late_token, take_late
from otel_lifecycle._request.tracing import Source
from otel_lifecycle.errors import DuplicateTerminal, EventAfterTerminal, ForeignClock, LifecycleError

if TYPE_CHECKING:
    from otel_lifecycle._request.references import HandleRef

MAX_OTHER_EVENTS: Final = 64
"""Span events kept of all that are no boundary."""

BOUNDARY_EVENTS: Final = frozenset({"arrive", "admit", "input_ready", "first_token", "output", *TERMINAL_EVENTS})
RECEIPT_TOLERANCE_NS: Final = 1_000_000
UNSHOWN_EVENTS: Final = frozenset({"token"})


def is_nothing(count: object) -> bool:
    """Whether a mark of so many tokens is no mark at all."""
    return whole(count) == 0


class Record(ABC):
    """One request: its timeline, its span, its conditions, and how it ended.

    What ends it when no call of its server does (:class:`otel_lifecycle._registry.OpenRequest`) is added by the module
    that ends requests.
    """

    __slots__ = (
        "anchor",
        "arrived",
        "assessor",
        "attributes",
        "checker",
        "deadline",
        "delivered",
        "disconnected",
        "ended_at",
        "ending",
        "events",
        "events_dropped",
        "exhausted",
        "explicit_latest",
        "finished",
        "finishing",
        "judged",
        "labels",
        "late",
        "late_at",
        "late_count",
        "late_last",
        "late_told",
        "lock",
        "offset",
        "other_events",
        "parent_context",
        "passes",
        "provisional",
        "reference",
        "report",
        "silenced",
        "source",
        "span",
        "span_context",
        "status",
        "ticket",
        "timeline",
        "told_late",
        "unmarked",
        "usage",
    )

    def __init__(self, shape: Shape, anchor: Anchor, source: Source, labels: RequestLabels) -> None:
        self.anchor = anchor
        self.offset = anchor.offset
        self.source = source
        self.labels = labels
        self.lock = RLock()
        self.timeline = Timeline(shape)
        self.checker = Checker(self.timeline)
        self.assessor: _registry.Assessor | None = None
        self.span: Span
        self.span_context: Context | None = None
        self.parent_context: Context
        self.reference: HandleRef
        self.ticket = 0
        self.attributes: dict[str, Any] = {}
        self.usage: dict[str, int] = {}
        self.deadline: float | None = None
        self.events: list[tuple[str, int, dict[str, Any] | None]] = []
        self.other_events = 0
        self.events_dropped = 0
        self.arrived: int | None = None
        self.explicit_latest: int | None = None
        # Nobody has marked anything yet, and the first output may pass the boundaries that nobody marks.
        self.unmarked = self.passes = False
        self.disconnected = False
        self.delivered: int | None = None
        # How it ended: status is None as long as it has not.
        self.status: str | None = None
        self.ending: Any = None
        self.ended_at = 0
        # Ends it as it stands: its answer is out, and only an exception that may still come could tell otherwise.
        self.provisional: Callable[[], None] | None = None
        self.exhausted = False
        self.silenced = False
        self.finishing = Lock()
        self.judged = False
        self.finished = False
        self.report: Report | None = None
        # Tokens that came after the end.
        self.late: Log = []
        self.late_count = 0
        self.late_at = 0
        self.late_last = 0
        self.late_told = False
        self.told_late = False

    # ---------------------------------------------------------------------------------------- marks

    @property
    def ended(self) -> bool:
        """Whether it has ended, with or without a terminal event."""
        return self.status is not None

    @property
    def state(self) -> str:
        """The state of the table the request is in."""
        return self.timeline.state

    def arrival_of(self, at_ns: Any) -> int | None:
        """Read the time of arrival; None where it is unknown or impossible."""
        if at_ns is NOW:
            return self.anchor.monotonic
        try:
            return on_axis(at_ns, self.offset, "arrive", self.state)
        except LifecycleError:
            return None

    def arrive(self, at_ns: Any) -> None:
        """Apply the first event.  An arrival given at its time does not move the anchor."""
        time: Any = self.anchor.monotonic if at_ns is NOW else self._given_time("arrive", at_ns)
        self.checker.apply("arrive", time, given=at_ns is not NOW)
        self._show_violations()
        self.arrived = self.timeline.applied_at
        self._applied("arrive", at_ns is not NOW)

    def mark(self, event: str, at_ns: Any = NOW, count: Any = 1, choice: Any = 0) -> bool:
        """Apply one event of the live API; return whether it was legal."""
        with self.lock:
            if self.status is not None:
                take_late(self, event, at_ns, count)
                return False
            time = self._time_of(event, at_ns)
            legal = self.checker.apply(event, time, count, choice, given=at_ns is not NOW)
            self._show_violations()
            if legal:
                self._applied(event, at_ns is not NOW)
            return legal

    def mark_remote(self, event: str, timestamp: Any, count: Any = 1, choice: Any = 0) -> bool:
        """Apply one event that another process recorded by its own clock."""
        with self.lock:
            if event in TOKEN_EVENTS and is_nothing(count):
                return True
            if self.status is not None:
                take_late(self, event, timestamp, count)
                return False
            time = self._given_time(event, timestamp)
            legal = self.checker.apply(event, time, count, choice, remote=True)
            self._show_violations()
            if legal:
                self._applied(event, explicit=False)
                # What has reached us has happened, give or take what two readings of one clock may differ.
                self.timeline.witness(perf_counter_ns() + RECEIPT_TOLERANCE_NS)
            return legal

    def _applied(self, event: str, explicit: bool) -> None:
        """Show a legal event, and open or close the hot path for the state it led to."""
        known = self.timeline.applied_at
        if explicit and known is not None:
            self.explicit_latest = known
        if event not in UNSHOWN_EVENTS:
            unknown = {semconv.TIME_KNOWN: False} if known is None else None
            self.show(event, perf_counter_ns() if known is None else known, unknown)
        if event != "arrive" and event not in TERMINAL_EVENTS:
            self.unmarked = False
        self.set_hot(self.timeline.tokens.setdefault(0, []) if self.state == "decode" else None)

    def _time_of(self, event: str, at_ns: Any) -> int | None:
        return self._live_time(event) if at_ns is NOW else self._given_time(event, at_ns)

    def _live_time(self, event: str) -> int | None:
        now = perf_counter_ns()
        explicit = self.explicit_latest
        if explicit is not None and now < explicit:
            if self.is_legal(event):
                what = f"{event!r} happens before a time already given"
                self.violate(ForeignClock(what, state=self.state, event=event))
            return None
        latest = self.timeline.latest()
        # A token that another thread marked while this one waited for the lock.
        return now if latest is None or latest <= now else latest

    def _given_time(self, event: str, at_ns: Any) -> Any:
        if not self.is_legal(event):
            return None
        try:
            return on_axis(at_ns, self.offset, event, self.state)
        except LifecycleError as error:
            self.violate(error)
            return None

    def is_legal(self, event: str) -> bool:
        """Whether the state allows the event."""
        return event in self.timeline.shape.table[self.state]

    def set_hot(self, log: Log | None) -> None:
        """Let the handle append tokens to ``log`` by itself, or no longer."""
        handle = self.reference()
        if handle is not None:
            handle._ts = log

    # ---------------------------------------------------------------------------------------- tokens

    def token(self, n: Any, choice: Any, at_ns: Any) -> None:
        """Mark tokens that the hot path does not take: chunks, further choices, explicit times, other states."""
        with self.lock:
            if is_nothing(n):
                return
            if self.status is not None:
                late_token(self, n, at_ns)
            else:
                self.mark(self._token_event(), at_ns, n, choice)

    def item(self, n: Any = 1, choice: Any = 0) -> None:
        """Mark what a stream yielded: as :meth:`token`, but boundaries that nobody marked pass with it."""
        with self.lock:
            if self.passes and self.status is None and not is_nothing(n):
                self.pass_to("prefill")
            self.token(n, choice, NOW)

    @property
    def awaits_output(self) -> bool:
        """Whether it is open and nothing has come out of it yet."""
        return self.status is None and any(stage.state == self.state for stage in self.timeline.shape.stages[:3])

    def whole_answer(self, count: Any) -> None:
        """Mark a result that came at once: ``output`` where the shape has it; in pooling the one pass is done."""
        with self.lock:
            if self.status is None:
                self.pass_to("prefill")
                if self.is_legal("output"):
                    self.mark("output", count=count)

    def _token_event(self) -> str:
        return "first_token" if "first_token" in self.timeline.shape.table[self.state] else "token"

    def pass_to(self, state: str) -> None:
        """Pass the stages before ``state`` that nobody marked, their boundaries at unknown times."""
        for stage in self.timeline.shape.stages:
            if self.state == state:
                return
            if stage.state == self.state and stage.leave is not None:
                self.checker.apply(stage.leave, None)
                self._show_violations()
        self.unmarked = False

    # ---------------------------------------------------------------------------------------- violations

    def violate(self, error: LifecycleError) -> None:
        """Count what is wrong; raised instead where the processor is strict."""
        with self.lock:
            self.checker.violate(error)
            self._show_violations()

    def judge_clocks(self) -> None:
        """Count, once, each proof that two times of the ended request cannot both be right."""
        self.checker.judge_clocks()
        self._show_violations()

    def _show_violations(self) -> None:
        for violation in self.checker.take_violations():
            self._show_violation(violation)

    def _show_violation(self, violation: Violation) -> None:
        if self.status is not None:
            if self.assessor is not None:
                self.assessor.record_violation(violation.kind, self.labels)
            return
        attributes: dict[str, Any] = {semconv.VIOLATION_KIND: violation.kind}
        if violation.state is not None:
            attributes[semconv.VIOLATION_STATE] = violation.state
        if violation.event is not None:
            attributes[semconv.VIOLATION_EVENT] = clean(violation.event)
        self.show(semconv.VIOLATION_SPAN_EVENT, perf_counter_ns(), attributes)

    def after_end(self, event: str) -> None:
        """Count an event that came after the end; none of them is counted after a shutdown."""
        if self.silenced:
            return
        kind = DuplicateTerminal if event in TERMINAL_EVENTS else EventAfterTerminal
        self.violate(kind(f"{event!r} after the end, the request is {self.status}", state=self.status, event=event))

    def told_after_end(self, what: str) -> None:
        """Count that something was told of an ended request, once: a usage frame after ``[DONE]`` is common."""
        if not self.told_late:
            self.told_late = True
            self.after_end(what)

    def show(self, name: str, time: int, attributes: dict[str, Any] | None = None) -> None:
        """Keep a span event: every boundary, and a bounded number of all others."""
        if name not in BOUNDARY_EVENTS:
            if self.other_events >= MAX_OTHER_EVENTS:
                self.events_dropped += 1
                return
            self.other_events += 1
        self.events.append((name, time, attributes))

    def note(self, name: str, at_ns: Any) -> int | None:
        """Keep a note: an event that moves no state.  Returns its time; None where it is unknown or impossible."""
        with self.lock:
            if self.status is not None:
                return None
            try:
                time = perf_counter_ns() if at_ns is NOW else on_axis(at_ns, self.offset, name, self.state)
            except LifecycleError as error:
                self.violate(error)
                return None
            self.disconnected = self.disconnected or name == "client_disconnected"
            if time is not None:
                self.show(name, time)
                if name == "delivered" and self.delivered is None and self.arrived is not None:
                    self.delivered = max(0, time - self.arrived)
            return time

    # ---------------------------------------------------------------------------------------- while open

    def elapsed(self) -> int:
        """Nanoseconds since arrival, or since the handle was made where arrival is unknown."""
        return perf_counter_ns() - (self.anchor.monotonic if self.arrived is None else self.arrived)

    def active(self) -> tuple[str, int | None] | None:
        """The stage an open request is in, on the wire, and its age; None of one that has ended or is answered."""
        if self.status is not None or self.provisional is not None:
            return None
        stage = semconv.UNKNOWN_STAGE if self.unmarked else semconv.WIRE_STAGE.get(self.state, semconv.UNKNOWN_STAGE)
        return stage, None if self.arrived is None else perf_counter_ns() - self.arrived

    @abstractmethod
    def abandoned(self) -> None:
        """Its handle is gone: end it, or record what came after its end."""

    @abstractmethod
    def sweep(self, now: int, *, thorough: bool) -> None:
        """Fold what has grown long; record what came after the end and has settled."""

    @abstractmethod
    def end_by_shutdown(self) -> None:
        """End it as cancelled, reason ``shutdown``."""

    def reopen(self) -> None:
        """Stay on the register: tokens still come after the end."""
        _registry.open_requests[self.ticket] = self

    def disown(self) -> None:
        """Forget a request that a forked child inherited: its parent ends it.  Nobody alive may hold the locks."""
        self.lock, self.finishing = RLock(), Lock()
        self.silenced = self.judged = self.finished = True
        self.status = "incomplete"
        self.provisional = None
        self.set_hot(None)

    @property
    def in_stage(self) -> str:
        """The state whose stage the request is in: while it is preempted, the one that was interrupted."""
        return self.timeline.interrupted or self.state if self.state == PREEMPTED else self.state
