"""Every illegal transition of a request: where it happened, and the rule it broke."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from otel_lifecycle import semconv
from otel_lifecycle._core.lifecycle import EVENTS, SHAPES, transition_error
from otel_lifecycle._table.requests.model import Breach
from otel_lifecycle._table.text import instant

RULES: Final = {
    "non_monotonic_time": "time never goes back",
    "event_after_terminal": "nothing comes after the end",
    "duplicate_terminal": "a request ends once",
    "missing_terminal": "every request ends: in complete, cancel, timeout or fail",
    "terminated_before_arrival": "a request arrives before it ends",
    "invalid_timestamp": "a time is None or a finite number",
    "invalid_value": "a count is a whole number from 0",
    "foreign_clock": "one clock a request: these times cannot be of this machine's",
    "illegal_transition": "only the events of the table for that state",
}
"""Violation -> the rule it breaks, where no row of the table says more."""

SCHEMA_VERSION: Final = 1
"""Version of a violation's JSON; it grows when a key is removed or changes its meaning."""

COLUMNS: Final = ("request", "trace_id", "span_id", "kind", "state", "event", "at", "offset", "rule", "count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Violated:
    """One violation; ``offset`` of the first, in seconds after arrival; ``count``: how many alike."""

    request: str | None
    trace_id: str
    span_id: str
    kind: str
    state: str | None
    event: str | None
    at: str | None
    offset: float | None
    rule: str
    count: int = 1

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {name: getattr(self, name) for name in COLUMNS}


def findings(row: Mapping[str, Any]) -> Iterator[Violated]:
    """Yield the violations of a request, by its row of the table, equal ones as one."""
    alike: dict[tuple[str, str | None, str | None], list[Mapping[str, Any]]] = {}
    for one in row.get("violations") or ():
        # A stream that breaks one rule does so at every token; one line with a count says the same.
        alike.setdefault((one["kind"], one["state"], one["event"]), []).append(one)
    for found in alike.values():
        yield _finding(row, found[0], len(found))


def _finding(row: Mapping[str, Any], first: Mapping[str, Any], count: int) -> Violated:
    # Without a kind, the span only counts the violation.
    told: Mapping[str, Any] = first if first["kind"] != semconv.OTHER else {"rule": _NOT_TOLD}
    offset = told.get("at")
    return Violated(
        request=row.get("request_id"),
        trace_id=row["trace_id"],
        span_id=row["span_id"],
        kind=told.get("kind", "(not told)"),
        state=told.get("state"),
        event=told.get("event"),
        at=None if offset is None else instant(row["arrival_ns"] + round(offset * 1e9)),
        offset=offset,
        rule=told["rule"],
        count=count,
    )


_NOT_TOLD: Final = "the span counts it, and its event was dropped"


def rule_of(breach: Breach) -> str:
    """Return what was legal there, where the table has the state, or else the rule in words."""
    if breach.rule is not None:
        return breach.rule
    unknown = breach.event is not None and breach.event not in EVENTS
    if unknown or breach.kind in {"illegal_transition", "event_after_terminal", "duplicate_terminal"}:
        state, event = breach.state or "", breach.event or ""
        for shape in SHAPES.values():
            # The span need not name its shape: any shape in which the event is illegal there gives the right row.
            if event not in shape.table.get(state, {event: ""}):
                return str(transition_error(shape, state, event))
    return RULES.get(breach.kind, _NOT_TOLD)
