"""What a decoder of one message writes to: the items found, and the count of the rest."""

from __future__ import annotations

from dataclasses import dataclass, field

from otel_lifecycle._cli.sources.spans import Item
from otel_lifecycle._cli.sources.tally import Tally


@dataclass(slots=True, kw_only=True)
class Intake:
    """One message being decoded.

    ``place`` names it in notes.  ``everything``: spans of any library are wanted, too.
    """

    place: str
    tally: Tally
    everything: bool = False
    items: list[Item] = field(default_factory=list)

    def trouble(self, kind: str) -> None:
        """Count something that could not be read here."""
        self.tally.add(kind, self.place)
