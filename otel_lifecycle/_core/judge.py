"""One judge for requests that nobody judged while they ran: spans of other libraries, and event logs.

How it works.  The events are replayed through the same checker as live marks.  The processor, and the command line for
files and logs, both judge here, so that one request has one verdict wherever it is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from otel_lifecycle import semconv
from otel_lifecycle._core.checker import Checker, Violation
from otel_lifecycle._core.labels import RequestLabels
from otel_lifecycle._core.lifecycle import SHAPES, TERMINAL_EVENTS, TERMINAL_STATES
from otel_lifecycle._core.outputs import as_outputs
from otel_lifecycle._core.report import build_report
from otel_lifecycle._core.text import clean, is_identifier
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.verdict import Finished
from otel_lifecycle.errors import LifecycleError, MissingTerminal

_TOKENS: Final = frozenset({"token", "first_token"})

Told = tuple[str, Any, Mapping[str, Any]]
"""An event: its name, its time (None is unknown), and its attributes, of which ``count`` and ``choice`` are read."""


class Truncated(LifecycleError):
    """Events of a span were dropped: what is missing cannot be called illegal."""

    kind = "truncated"


class PlacedViolation(NamedTuple):
    """A violation, the time of the event that broke the rule (None is unknown), and the time of the first event."""

    violation: Violation
    time: Any
    first: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedEvents:
    """What the events of a request amount to.  ``wasted``: tokens that came after its end."""

    finished: Finished
    violations: list[PlacedViolation]
    wasted: int


class Replay:
    """The checker over one request's events.  Times in any one unit; ``wasted``: tokens that came after the end."""

    __slots__ = ("_first", "checker", "timeline", "violations", "wasted")

    def __init__(self, shape: object = "default") -> None:
        self.timeline = Timeline(SHAPES.get(shape if isinstance(shape, str) else "default", SHAPES["default"]))
        self.checker = Checker(self.timeline)
        self.violations: list[PlacedViolation] = []
        self.wasted = 0
        self._first: Any = None

    def apply(self, name: str, time: Any, told: Mapping[str, Any]) -> None:
        """Apply an event; an illegal one becomes a violation."""
        # The first known time is the origin of every offset, also where the first event is not an arrival.
        if self._first is None and isinstance(time, int):
            self._first = time
        # A whole answer has an unknown number of tokens unless its event states it; a token event is one token.
        count = told.get("count", None if name == "output" else 1)
        if self.timeline.ended and name in _TOKENS:
            self.wasted += count if isinstance(count, int) else 1
        apply = self.checker.apply if self.checker.amounts is None else self.checker.apply_output
        apply(name, time, count, told.get("choice", 0))
        self._place(time)

    def violate(self, error: LifecycleError) -> None:
        """Count a violation that is at no event."""
        self.checker.violate(error)
        self._place(None)

    def close(self) -> str:
        """Return the status, after the last event."""
        state = self.timeline.state
        if state in TERMINAL_STATES:
            return state
        allowed = tuple(self.timeline.shape.table[state])
        self.violate(MissingTerminal("the events stop without a terminal one", state=state, allowed=allowed))
        return "incomplete"

    def _place(self, time: Any) -> None:
        for violation in self.checker.take_violations():
            self.violations.append(PlacedViolation(violation, time, self._first))


def judge_events(events: Iterable[Told], attributes: Mapping[str, Any], *, dropped: int = 0) -> JudgedEvents:
    """Return what the events of a request amount to, with ``attributes`` that say its shape, usage and labels.

    An event that is not of the lifecycle is illegal.  ``dropped``: how many events are missing; then nothing is judged.
    """
    told = list(events)
    attributes = {**_of_terminal(told), **attributes}
    replay = Replay(attributes.get(semconv.SHAPE))
    if text_of(attributes, semconv.OUTPUT_UNIT) is not None:
        replay.checker.count_amounts()
    # The SDK drops the oldest events, so what is left begins in the middle. Replayed, it would look illegal.
    if dropped:
        replay.violate(Truncated("events of this span were dropped"))
        status = _truncated_status(told)
    else:
        for name, time, given in told:
            replay.apply(name, time, given)
        status = replay.close()
    finished = _finished(replay, status, attributes, truncated=bool(dropped))
    return JudgedEvents(finished=finished, violations=replay.violations, wasted=replay.wasted)


def _of_terminal(told: Iterable[Told]) -> Mapping[str, Any]:
    """What the terminal event says of the end, in the form that our own spans have; the span's attributes beat it."""
    given: Mapping[str, Any] = next((given for name, _, given in told if name in TERMINAL_EVENTS), {})
    return {key: given[key] for key in (semconv.ERROR_TYPE, semconv.END_REASON) if key in given}


def _truncated_status(told: Iterable[Told]) -> str:
    """How a truncated span ended; that is all its events still prove."""
    return next((TERMINAL_EVENTS[name] for name, _, _ in told if name in TERMINAL_EVENTS), "incomplete")


def _finished(replay: Replay, status: str, attributes: Mapping[str, Any], *, truncated: bool) -> Finished:
    usage = {
        name: value
        for name, key in (
            ("input_tokens", semconv.GEN_AI_USAGE_INPUT_TOKENS),
            ("output_tokens", semconv.GEN_AI_USAGE_OUTPUT_TOKENS),
            ("cached_tokens", semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS),
        )
        if isinstance(value := attributes.get(key), int) and not isinstance(value, bool) and value >= 0
    }
    # With every time: a span holds 128 events at most, and the log of its engine needs them.
    unit, amounts = text_of(attributes, semconv.OUTPUT_UNIT), replay.checker.amounts
    output = usage.get("output_tokens") if unit is None else None
    report = build_report(replay.timeline, status, usage=output, unmarked=truncated)
    if unit is not None and amounts is not None:
        report = as_outputs(report, unit, amounts)
    return Finished(
        report=report,
        reason=_reason(attributes),
        error_type=_error_type(status, attributes),
        usage=usage,
        violations={str(kind): count for kind, count in replay.checker.counts.items()},
        preemptions=dict(replay.timeline.preemptions),
        truncated=truncated,
        labels=RequestLabels(
            role=text_of(attributes, semconv.ROLE) or "whole",
            traffic=text_of(attributes, semconv.TRAFFIC) or "live",
            operation=text_of(attributes, semconv.GEN_AI_OPERATION_NAME) or "chat",
            provider=text_of(attributes, semconv.GEN_AI_PROVIDER_NAME),
            model=text_of(attributes, semconv.GEN_AI_REQUEST_MODEL),
            tenant=text_of(attributes, semconv.TENANT),
            unit=unit,
        ),
    )


def text_of(attributes: Mapping[str, Any], key: str) -> str | None:
    """Return an attribute that is a text, made safe; None if it is absent, empty or of another type."""
    value = attributes.get(key)
    return clean(value) or None if isinstance(value, str) else None


def _reason(attributes: Mapping[str, Any]) -> str | None:
    reason = text_of(attributes, semconv.END_REASON)
    return None if reason is None else reason if reason in semconv.REASONS else semconv.OTHER


def _error_type(status: str, attributes: Mapping[str, Any]) -> str | None:
    if status == "timed_out":
        return "timeout"
    given = text_of(attributes, semconv.ERROR_TYPE)
    if status != "failed":
        return None
    return given if given is not None and is_identifier(given) else semconv.OTHER
