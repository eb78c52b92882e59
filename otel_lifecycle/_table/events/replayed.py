"""One request of a log through the state machine: its report, metrics, outcome, and its span."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from otel_lifecycle import semconv
from otel_lifecycle._core.judge import Replay, judge_events
from otel_lifecycle._core.metrics import compute_request_metrics
from otel_lifecycle._core.outcome import classify_request_outcome
from otel_lifecycle._core.report import Report, build_report
from otel_lifecycle._core.token_offsets import pack_offsets
from otel_lifecycle._table.events.columns import NANOSECONDS
from otel_lifecycle._table.events.log import Log
from otel_lifecycle._table.requests.foreign import Judged, as_judged
from otel_lifecycle._table.schema import SHORT
from otel_lifecycle._table.sources.plausibility import EARLIEST, MOST
from otel_lifecycle._table.sources.spans import ReadEvent, Span
from otel_lifecycle.errors import InvalidValue

_USAGE: Final = {
    "input_tokens": semconv.GEN_AI_USAGE_INPUT_TOKENS,
    "output_tokens": semconv.GEN_AI_USAGE_OUTPUT_TOKENS,
    "cached_tokens": semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A replayed request: ``report``, ``metrics`` and ``outcome`` in the log's unit, and the same as a span."""

    log: Log
    report: Mapping[str, Any]
    metrics: Mapping[str, Any]
    outcome: Mapping[str, Any]
    span: Span
    judged: Judged

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        violations = [
            {"kind": one.kind, "state": one.state, "event": one.event, "rule": one.rule} for one in self.judged.breaches
        ]
        return {
            "request": self.log.request,
            "report": self.report,
            "metrics": self.metrics,
            "outcome": self.outcome,
            "legal": not violations,
            "violations": violations,
        }


def replayed(log: Log, shape: str, offset_ns: int) -> Replayed:
    """Replay a request; ``offset_ns`` is added to times that are not epoch times, where spans need one."""
    # Twice: the user sees times in the log's own unit, without rounding; spans need epoch nanoseconds.
    report = _report(log, shape)
    metrics = compute_request_metrics(report)
    span = _span(log, offset_ns)
    told = [(event["event"], _known_ns(event["timestamp"], log.unit, offset_ns), event) for event in log.events]
    found = judge_events(told, {semconv.SHAPE: shape, **_beside(log)})
    judged = as_judged(found)
    own = {**span.attributes, **judged.attributes, **_offsets(found.finished.report)}
    return Replayed(
        log=log,
        report=report,
        metrics=metrics,
        outcome=_outcome(report, metrics),
        span=span,
        judged=replace(judged, attributes=own),
    )


def _offsets(report: Report) -> dict[str, Any]:
    """Return the attributes that tell every token's time, in the form the processor gives them."""
    offsets = pack_offsets(report["token_times"] or (), report.get("token_times_dropped", 0))
    if offsets is None:
        return {}
    dropped = {semconv.TOKEN_OFFSETS_DROPPED: offsets.dropped} if offsets.dropped else {}
    return {semconv.TOKEN_OFFSETS: offsets.packed, **dropped}


def _report(log: Log, shape: str) -> Report:
    """Replay the events at their own times."""
    replay = Replay(shape)
    for event in log.events:
        replay.apply(event["event"], event["timestamp"], event)
    return build_report(replay.timeline, replay.close(), usage=_usage(log).get("output_tokens"))


def _usage(log: Log) -> dict[str, int]:
    """Return the token counts that the lines gave beside the events."""
    found = {}
    for name, key in _USAGE.items():
        given = log.attributes.get(key, log.attributes.get(name))
        # CSV gives text.  Anything but a plain count is left out, as it is on a span.
        if given is not None and str(given).isdecimal() and int(given) <= MOST:
            found[name] = int(given)
    return found


def _beside(log: Log) -> dict[str, Any]:
    """Return what the lines gave beside the events, as the attributes of a span."""
    usage = {_USAGE[name]: value for name, value in _usage(log).items()}
    reason = log.attributes.get("reason", log.attributes.get(semconv.END_REASON))
    # The closed list of the wire: free text would make an unbounded number of metric series.
    told = None if reason is None else str(reason) if str(reason) in semconv.REASONS else semconv.OTHER
    return usage if told is None else {**usage, semconv.END_REASON: told, semconv.ERROR_TYPE: told}


def _outcome(report: Mapping[str, Any], metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return classify_request_outcome(report, metrics)
    except InvalidValue:  # Every boundary at one instant: there is nothing to share out.
        return {"outcome": report["status"], "stage": None, "dominant_share": None}


def _span(log: Log, offset_ns: int) -> Span:
    events = [
        ReadEvent(
            event["event"],
            _epoch_ns(event["timestamp"], log.unit, offset_ns),
            {key: event[key] for key in ("count", "choice") if event.get(key) is not None},
        )
        for event in log.events
        # An event at an unknown time has no place on a span.
        if event["timestamp"] is not None
    ]
    # A log without times still gives a span, of no length.
    times = [event.time_ns for event in events] or [offset_ns]
    # Derived from the logged values only, so that the same log gives the same trace at each replay.
    identity = hashlib.sha256(repr((log.request, log.events)).encode("utf-8", "replace")).hexdigest()
    named = {} if log.request is None else {semconv.REQUEST_ID: log.request}
    return Span(
        trace_id=identity[:32],
        span_id=identity[32:48],
        parent_id="",
        name=str(log.attributes.get(semconv.GEN_AI_OPERATION_NAME, "chat")),
        start_ns=min(times),
        end_ns=max(times),
        attributes={**named, **{SHORT.get(key, key): value for key, value in log.attributes.items()}},
        resource={},
        events=tuple(events),
        source=log.source,
        line=log.line,
    )


def _known_ns(time: Any, unit: str, offset_ns: int) -> int | None:
    return None if time is None else _epoch_ns(time, unit, offset_ns)


def _epoch_ns(time: Any, unit: str, offset_ns: int) -> int:
    scale = NANOSECONDS[unit]
    # An integer stays one: epoch nanoseconds do not fit a float.
    found = time * scale if isinstance(time, int) else round(time * scale)
    return found if found > EARLIEST * 10**9 else max(found + offset_ns, 0)
