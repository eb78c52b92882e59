"""Events that an engine in another process marked by its own clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from otel_lifecycle._core.lifecycle import EVENTS, TERMINAL_EVENTS
from otel_lifecycle._request import endings, finish
from otel_lifecycle._request.record import Record
from otel_lifecycle.errors import InvalidValue

NOTES = frozenset({"client_disconnected", "delivered", "prefill_chunk"})


def record_events(record: Record, events: Iterable[Mapping[str, Any]]) -> None:
    """Apply recorded events in order; each that cannot be read is an ``invalid_value`` violation."""
    try:
        items = list(events)
    except Exception as error:  # noqa: BLE001  # no iterable, or one that raises
        what = f"record() takes an iterable of events; reading it raised {type(error).__name__}"
        record.violate(InvalidValue(what, state=record.state, event="record"))
        return
    for item in items:
        _record_one(record, item)


def _record_one(record: Record, item: Any) -> None:
    event = item.get("event") if isinstance(item, Mapping) else None
    if not isinstance(event, str) or event not in EVENTS | NOTES or "timestamp" not in item:
        record.violate(
            InvalidValue("a recorded event is a mapping with a known 'event' and a 'timestamp'", state=record.state)
        )
    elif event in NOTES:
        record.note(event, item["timestamp"])
    elif event in TERMINAL_EVENTS:
        finish.end(record, _ending(event, item), item["timestamp"], remote=True)
    else:
        default = None if event == "output" else 1
        record.mark_remote(event, item["timestamp"], item.get("count", default), item.get("choice", 0))


def _ending(event: str, item: Mapping[str, Any]) -> endings.Ending:
    if event == "fail":
        return endings.failure(item.get("error", item.get("reason")))
    if event == "timeout":
        return endings.timeout(item.get("reason"))
    return endings.cancellation(item.get("reason")) if event == "cancel" else endings.Ending(event)
