"""The count of what was read, and of what was not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from otel_lifecycle._table.text import printable

MAX_NOTES: Final = 20
"""Places named one by one for each kind of trouble; beyond it only their number."""

MEANING: Final = {
    "empty_file": "empty files",
    "truncated": "files or messages cut short; what came before was read",
    "unreadable": "messages that are not OTLP; skipped",
    "unreadable_line": "lines without an event; skipped",
    "no_id": "events without a request's id, in a file in which others have one; taken as one request",
    "no_time": "events of a log without a time column; no latency is known",
    "not_a_trace": "files in a folder that hold no telemetry; skipped",
    "broken_span": "spans without usable ids or times; skipped",
    "broken_attribute": "attributes with an impossible value, such as a negative time; left out",
    "broken_point": "metric points with an impossible value, such as infinity; left out",
    "outcome_dropped": "requests that lost their outcome, usually to an attribute limit; judged by their events",
    "unknown_outcome": "requests with an unknown outcome; counted as incomplete",
    "duplicate": "spans received more than once; counted once",
    "duplicates_unchecked": "spans beyond the memory for duplicates; not checked against the oldest",
    "events_dropped": "span events dropped by limits before they were exported",
    "attributes_dropped": "span attributes dropped by limits before they were exported",
    "clock_skew": "spans whose clocks disagree: ends before starts, events outside, or a year from all others",
    "other_spans": "spans of other libraries; not part of any request's lifecycle",
    "logs": "log batches; not read",
    "other_metrics": "metrics that are not about resources or waste; not read",
    "no_end": "requests without an end; outside the success rate",
}
"""Every kind of trouble that is counted, in words."""

TROUBLE: Final = frozenset(MEANING) - {"other_spans", "logs", "other_metrics"}
"""The kinds worth a warning; the rest is only information."""


@dataclass(slots=True)
class ReadingTally:
    """Counts by kind, and the first places of each.

    ``read`` counts what was used: ``files``, ``messages``, ``spans``, ``requests``.
    """

    read: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    notes: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, place: str | None = None, number: int = 1) -> None:
        """Count ``number`` of a kind of :data:`MEANING`, and keep where, for the first few."""
        if number <= 0:
            return
        self.counts[kind] += number
        if place is not None:
            kept = self.notes.setdefault(kind, [])
            if len(kept) < MAX_NOTES:
                # A place holds names from files, which may contain control characters.
                kept.append(printable(place))

    def lines(self) -> list[tuple[str, int, str, list[str]]]:
        """Return (kind, number, meaning, places) of everything that was counted, in the order of the table."""
        return [
            (kind, self.counts[kind], meaning, self.notes.get(kind, []))
            for kind, meaning in MEANING.items()
            if self.counts[kind]
        ]

    def plain(self) -> list[dict[str, Any]]:
        """Return the same as plain data."""
        return [
            {"kind": kind, "count": number, "meaning": meaning, "places": places}
            for kind, number, meaning, places in self.lines()
        ]
