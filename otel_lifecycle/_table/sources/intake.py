"""What a decoder of one message writes to: the items found, and the count of the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from otel_lifecycle import semconv
from otel_lifecycle._table.sources.engine_spans import with_lifecycle
from otel_lifecycle._table.sources.plausibility import doubtful, lost_outcome, sound, without
from otel_lifecycle._table.sources.spans import Item, MetricPoint, Span
from otel_lifecycle._table.sources.tally import ReadingTally


def cleaned(span: Span) -> tuple[Span, list[str]]:
    """Return a span as the layers above take it, and its impossible attributes, which it no longer has.

    A request span of an engine has lifecycle events then.
    """
    names = doubtful(span)
    return with_lifecycle(without(span, names) if names else span), names


@dataclass(slots=True, kw_only=True)
class Intake:
    """One message being decoded: line ``line`` of ``source``, or its message of that number.

    ``everything``: spans of any library are wanted, too.
    """

    source: str
    tally: ReadingTally
    line: int = 0
    everything: bool = False
    items: list[Item] = field(default_factory=list)

    @property
    def place(self) -> str:
        """The name of the message in notes."""
        return f"{self.source}:{self.line}" if self.line else self.source

    def trouble(self, kind: str) -> None:
        """Count something that could not be read here."""
        self.tally.add(kind, self.place)

    def lost_attribute(self, name: str) -> None:
        """Count an attribute whose value is unreadable or impossible."""
        self.tally.add("broken_attribute", f"{self.place}: {name}")

    def take_points(self, points: Iterable[MetricPoint]) -> None:
        """Add the plausible points to the items, and count the rest."""
        for point in points:
            if sound(point):
                self.items.append(point)
            else:
                self.tally.add("broken_point", f"{self.place}: {point.name}")

    def take(self, span: Span) -> None:
        """Add a span to the items without its impossible attributes, which are counted."""
        span.source, span.line = self.source, self.line
        read, names = cleaned(span)
        for name in names:
            self.lost_attribute(name)
        self.items.append(read)
        # Counted and kept: a wrong outcome takes away the verdict, but the times of the span remain true.
        outcome = span.attributes.get(semconv.OUTCOME)
        if outcome is None:
            if lost_outcome(span):
                self.trouble("outcome_dropped")
        elif outcome not in semconv.OUTCOMES:
            self.tally.add("unknown_outcome", f"{self.place}: {outcome!r:.40}")
