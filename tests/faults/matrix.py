"""The matrix of faults, printed at the end of the run.

What was served, what was kept of it, and how a loss shows; and how long a fault holds the thread that ends a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.faults.holding import ILL, UP, Turns

HEADS = ("fault", "served", "counted", "spans", "what is lost, and where that shows")
HELD_HEADS = (
    "fault",
    "spans by",
    "CPU µs, up",
    "CPU µs, fault",
    "wall µs, up",
    "wall µs, fault",
    "fault/up (95 %)",
    "of the whole request",
    "waited",
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One fault: requests served, those in the metrics that arrived, request spans that arrived, and the loss."""

    fault: str
    served: int
    counted: int
    spans: int
    loss: str


class Matrix:
    """Collects the rows of one run."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.held: list[tuple[str, ...]] = []

    def add(self, fault: str, served: float, counted: float, spans: int, loss: str) -> None:
        """Add a row."""
        self.rows.append(Row(fault=fault, served=int(served), counted=int(counted), spans=spans, loss=loss))

    def hold(self, fault: str, turns: Turns, alone: Turns) -> None:
        """Add how long the serving thread was held, by ours and by plain spans."""
        for kind in ("ours", "plain"):
            times = [spread(turns.samples(kind, state, f"end_{of}")) for of in ("cpu", "wall") for state in (UP, ILL)]
            end, whole = (turns.by_fault(kind, f"{part}_wall") for part in ("end", "whole"))
            ratios = [f"{ratio.figure:.2f} ({ratio.low:.2f} to {ratio.high:.2f})" for ratio in (end, whole)]
            self.held.append((fault, kind, *times, *ratios, f"{alone.waited(kind, ILL):.0%}"))

    def lines(self) -> list[str]:
        """Return the table of what faults cost as lines of text."""
        cells = [(row.fault, str(row.served), str(row.counted), str(row.spans), row.loss) for row in self.rows]
        return table([HEADS, *cells])

    def held_lines(self) -> list[str]:
        """Return the table of how long faults hold the serving thread as lines of text."""
        return table([HELD_HEADS, *self.held])


def spread(times: Sequence[int]) -> str:
    """Write the median and the 99th percentile of sorted nanoseconds in microseconds."""
    return f"{times[len(times) // 2] / 1000:.0f} ({times[len(times) * 99 // 100] / 1000:.0f})"


def table(cells: Sequence[Sequence[str]]) -> list[str]:
    """Return cells as lines, in columns."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
