"""Events that an engine in another process marked by its own clock.

Each is a mapping with ``event`` and, except for ``usage`` and ``response``, ``timestamp`` in epoch nanoseconds (None:
unknown).  Further keys are those of the method of that name: ``count`` and ``choice`` of tokens and output, ``reason``
of cancel and timeout, ``error`` of fail, the token counts of usage, ``id``, ``model`` and ``finish_reasons`` of
response.  Every event means what the method means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from otel_lifecycle._core import endings
from otel_lifecycle._core.lifecycle import EVENTS, TERMINAL_EVENTS
from otel_lifecycle._core.text import is_a
from otel_lifecycle._request.conditions import USAGE
from otel_lifecycle._request.event_kinds import NOTES
from otel_lifecycle._request.recorded_tokens import NO_TOKENS, read_tokens
from otel_lifecycle._request.tracked import TrackedRequest
from otel_lifecycle._runtime import runtime
from otel_lifecycle.errors import InvalidValue

FACTS: Final = frozenset({"usage", "response"})


def record_events(tracked: TrackedRequest, events: Iterable[Mapping[str, Any]]) -> None:
    """Apply recorded events in order; each that cannot be read is an ``invalid_value`` violation."""
    try:
        # Read as a whole first: an iterator that fails half-way has applied nothing.
        items = list(events)
    except Exception as error:  # noqa: BLE001  # no iterable, or one that raises
        what = f"record() takes an iterable of events; reading it raised {type(error).__name__}"
        tracked.violate(InvalidValue(what, state=tracked.state.name, event="record"))
        return
    position = 0
    while position < len(items):
        # Only in decode is a token nothing but one more entry; elsewhere it may be the first one, or come too late.
        in_decode = tracked.state.timeline.state == "decode"
        row = read_tokens(items, position, tracked.state.offset) if in_decode else NO_TOKENS
        passed = max(1, len(row.times))
        if not row.times or not tracked.mark_recorded(row):
            # All of the row, not its first event alone: the rest would be read as a row again and again.
            for item in items[position : position + passed]:
                _record_one(tracked, item)
        position += passed


def _record_one(tracked: TrackedRequest, item: Any) -> None:
    try:
        given = _read(item)
    except Exception:  # noqa: BLE001  # a mapping whose own methods raise
        given = None
    if given is None:
        what = "a recorded event is a mapping with a known 'event' and a 'timestamp'"
        tracked.violate(InvalidValue(what, state=tracked.state.name))
    else:
        _apply(tracked, *given)


def _read(item: Any) -> tuple[str, dict[str, Any]] | None:
    """Return the event's name and its fields; None for anything else."""
    fields = dict(item) if is_a(item, Mapping) else {}
    given = fields.get("event")
    if not is_a(given, str):
        return None
    event = str.__str__(given)
    timed = event in EVENTS or event in NOTES
    return (event, fields) if event in FACTS or (timed and "timestamp" in fields) else None


def _apply(tracked: TrackedRequest, event: str, fields: Mapping[str, Any]) -> None:
    timestamp = fields.get("timestamp")
    if event == "usage":
        tracked.set({name: fields[name] for name in USAGE if fields.get(name) is not None})
    elif event == "response":
        tracked.response(fields.get("id"), fields.get("model"), fields.get("finish_reasons"))
    elif event in NOTES:
        tracked.note(event, timestamp)
    elif event in TERMINAL_EVENTS:
        tracked.end(_terminal(event, fields), timestamp, remote=True)
    else:
        default = None if event == "output" else 1
        tracked.mark_remote(event, timestamp, fields.get("count", default), fields.get("choice", 0))


def _terminal(event: str, fields: Mapping[str, Any]) -> endings.Terminal:
    if event == "fail":
        return endings.failure(fields.get("error", fields.get("reason")), runtime().endings)
    if event == "timeout":
        return endings.timeout(fields.get("reason"))
    return endings.cancellation(fields.get("reason")) if event == "cancel" else endings.COMPLETE
