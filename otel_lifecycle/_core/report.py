"""From a timeline to the report of one request, and the replay of recorded events into one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from otel_lifecycle._core.lifecycle import TERMINAL_EVENTS, TERMINAL_STATES, get_shape
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.tokens import Choice, Time, merged_times, total
from otel_lifecycle.errors import InvalidValue, MissingTerminal

Report = dict[str, Any]


def build_report(timeline: Timeline, status: str, *, token_times: bool = True, usage: int | None = None) -> Report:
    """Return the report of a request that ended with ``status``.

    ``usage`` is the output count that the server gave; it stands where a mark of unknown size left the count unknown.
    ``token_times=False`` leaves that list out, for callers that hold a thousand tokens and need their summary only.
    """
    apart = timeline.clocks_apart()
    choices = dict(timeline.choices(apart))
    report: Report = {
        "status": status,
        "failure_stage": None if status in ("completed", "incomplete") else timeline.ended_in,
        "timestamps": dict(timeline.times),
        "token_times": merged_times([*timeline.tokens.values(), *timeline.remote_tokens.values()])
        if token_times
        else None,
        "shape": timeline.shape.name,
        "preempted": _preempted(timeline, apart),
        "output_tokens": _output_tokens(timeline, choices, usage),
        "choices": _choices(timeline, choices),
        "itl": _gaps(choices),
    }
    if apart:
        report["foreign"] = sorted(timeline.remote)
    return report


def _gaps(choices: Mapping[int, Choice]) -> list[Time]:
    """Return the ITL samples; none of a request with a chunk of unknown size, whose singles may be chunks too."""
    if any(choice.tokens is None for choice in choices.values()):
        return []
    return [gap for choice in choices.values() for gap in choice.gaps]


def longest_folded(timeline: Timeline, report: Report) -> Time | None:
    """Return the longest ITL sample of the beginnings that are no longer held; None where nothing was folded."""
    if any(choice["tokens"] is None for choice in report["choices"].values()):
        return None
    folded = [*timeline.folded.values(), *timeline.folded_remote.values()]
    longest = [choice.longest_folded for choice in folded if choice.longest_folded is not None]
    return max(longest, default=None)


def _preempted(timeline: Timeline, apart: bool) -> dict[str, Time | None]:
    preempted = dict(timeline.preempted)
    if apart:
        preempted.update(dict.fromkeys(timeline.preempted_across))
    return preempted


def _output_tokens(timeline: Timeline, choices: Mapping[int, Choice], usage: int | None) -> int | None:
    """Return how many tokens came out; None where a count is unknown, and where there is no such thing as a token."""
    counts = [choice.tokens for choice in choices.values()]
    if timeline.output_seen:
        counts.append(timeline.whole_output)
    if not timeline.shape.streams:
        return None
    counted = total(counts)
    return usage if counted is None else counted


def _choices(timeline: Timeline, choices: Mapping[int, Choice]) -> dict[int, dict[str, Any]]:
    told: dict[int, dict[str, Any]] = {
        number: {"first": choice.first, "last": choice.last, "tokens": choice.tokens}
        for number, choice in choices.items()
    }
    if timeline.output_seen:
        # Its tokens came together with the rest of the answer: how many is known, when the first did is not.
        whole = told.setdefault(0, {"first": None, "last": None, "tokens": 0})
        whole["tokens"] = total((whole["tokens"], timeline.whole_output))
        for choice in told.values():
            choice["first"] = None
    return told


def replay_request_events(events: Iterable[Mapping[str, Any]], shape: str = "default") -> Report:
    """Replay one request's recorded events through the lifecycle.

    ``events``: mappings with ``event`` and ``timestamp`` (a finite number in any unit, or None for unknown), and for
    tokens ``count`` (default 1; None for unknown; for ``output`` default None) and ``choice`` (default 0).

    Returns ``status``, ``failure_stage`` (the state an abnormal end came in, else None), ``timestamps`` (arrival,
    admitted, input_ready, first_token, terminal, as far as known), ``token_times``, ``shape``, ``preempted``
    ``{state: time or None}``, ``output_tokens`` (None if unknown), ``choices`` ``{choice: {first, last, tokens}}`` and
    ``itl`` (the gaps between neighbouring single tokens of one choice), all in the unit of the input.

    Raises a :class:`~otel_lifecycle.errors.LifecycleError` for no events, an unknown event, an illegal transition, a
    decreasing or impossible time, anything after the end or an end before arrival, and a trace without an end.
    """
    timeline = Timeline(get_shape(shape))
    for item in events:
        apply_event(timeline, item)
    if timeline.state not in TERMINAL_STATES:
        legal = tuple(timeline.shape.table[timeline.state])
        allowed = tuple(event for event in legal if event in TERMINAL_EVENTS) or legal
        what = "no events" if timeline.state == "not_arrived" else f"the trace stops while {timeline.state}"
        raise MissingTerminal(
            f"{what}; it must close with a terminal event; legal here: {' or '.join(allowed)}",
            state=timeline.state,
            allowed=allowed,
        )
    return build_report(timeline, timeline.state)


def apply_event(timeline: Timeline, item: Mapping[str, Any]) -> None:
    """Apply one recorded event."""
    try:
        event, timestamp = item["event"], item["timestamp"]
    except (KeyError, TypeError, IndexError) as error:
        raise InvalidValue(
            f"an event is a mapping with 'event' and 'timestamp', not {item!r:.80}", state=timeline.state
        ) from error
    if not isinstance(event, str):
        raise InvalidValue(f"the name of an event is a string, not {event!r:.80}", state=timeline.state)
    default = None if event == "output" else 1
    timeline.apply(event, timestamp, item.get("count", default), item.get("choice", 0))
