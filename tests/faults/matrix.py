"""The matrix of faults: what was served, what was kept of it, and how a loss shows. Printed at the end of the run."""

from __future__ import annotations

from dataclasses import dataclass

HEADS = ("fault", "served", "counted", "spans", "what is lost, and where that shows")


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

    def add(self, fault: str, served: float, counted: float, spans: int, loss: str) -> None:
        """Add a row."""
        self.rows.append(Row(fault=fault, served=int(served), counted=int(counted), spans=spans, loss=loss))

    def lines(self) -> list[str]:
        """Return the table as lines of text."""
        cells = [
            HEADS,
            *((row.fault, str(row.served), str(row.counted), str(row.spans), row.loss) for row in self.rows),
        ]
        widths = [max(len(line[column]) for line in cells) for column in range(len(HEADS))]
        return [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
        ]
