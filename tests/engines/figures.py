"""What a lane compares: figures of the engine beside ours, printed as a table, and a verdict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

MINIMUM_REQUESTS: Final = 200
MINIMUM_DISCONNECTS: Final = 2
MINIMUM_PREEMPTIONS: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure, as the engine or its clients have it and as we have it.

    ``within``: the largest absolute difference that passes.  ``at_least``: the engine's side must be at least ours,
    less ``within``: times that clients saw.  None on either side means that it was not told, and such a figure fails.
    """

    name: str
    engine: float | None
    ours: float | None
    within: float = 0.0
    unit: str = ""
    at_least: bool = False
    samples: int | None = None

    @property
    def difference(self) -> float | None:
        """Ours less the engine's."""
        return None if self.engine is None or self.ours is None else self.ours - self.engine

    @property
    def holds(self) -> bool:
        """Whether the two agree."""
        difference = self.difference
        if difference is None:
            return False
        return difference <= self.within if self.at_least else abs(difference) <= self.within


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a lane found.  ``floors``: the load's own counts, with the least each must reach."""

    engine: str
    version: str
    figures: list[Figure] = field(default_factory=list)
    floors: list[tuple[str, int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def floor(self, name: str, count: int, least: int) -> None:
        """Require that the load had at least so many of something."""
        self.floors.append((name, count, least))

    @property
    def failures(self) -> list[str]:
        """One line for each figure that does not hold and each floor that was not reached."""
        short = [f"{name}: {count}, at least {least} are needed" for name, count, least in self.floors if count < least]
        return short + [
            f"{figure.name}: engine {figure.engine}, ours {figure.ours}" for figure in self.figures if not figure.holds
        ]

    def table(self) -> str:
        """Return the table, one line for each figure."""
        head = [f"{self.engine} {self.version}", "engine", "ours", "difference", "allowed", ""]
        rows = [head, *(_cells(figure) for figure in self.figures)]
        rows += [
            [name, "", str(count), "", f">= {least}", "ok" if count >= least else "FAIL"]
            for name, count, least in self.floors
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        return "\n".join(line.rstrip() for line in [*lines, *(f"note: {note}" for note in self.notes)])

    def save(self, path: Path) -> None:
        """Keep the figures as JSON, for the documentation's table."""
        document = {
            "engine": self.engine,
            "version": self.version,
            "figures": [{**asdict(figure), "holds": figure.holds} for figure in self.figures],
            "floors": [{"name": name, "count": count, "least": least} for name, count, least in self.floors],
            "notes": self.notes,
        }
        path.write_text(json.dumps(document, indent=1) + "\n")


def _cells(figure: Figure) -> list[str]:
    name = figure.name if figure.samples is None else f"{figure.name} (n = {figure.samples})"
    limit = f"{'<= +' if figure.at_least else '+- '}{_number(figure.within)}"
    verdict = "ok" if figure.holds else "FAIL"
    numbers = [_number(value) for value in (figure.engine, figure.ours, figure.difference)]
    unit = f" {figure.unit}" if figure.unit else ""
    return [name + unit.replace(" ", ", "), *numbers, limit, verdict]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else f"{value:.6f}"


def worst(pairs: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return the pair (engine, ours) that differs most; None without pairs."""
    return max(pairs, key=lambda pair: abs(pair[0] - pair[1]), default=None)
