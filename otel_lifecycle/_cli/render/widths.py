"""Which columns of a table a terminal or a pipe has room for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from otel_lifecycle._cli.render.sections import Table

UNBROKEN: Final = frozenset({"request", "trace", "outcome", "stage", "class", "latency", "metric", "figure"})
"""Columns whose words are not broken: half a trace id is of no use."""
PAIR: Final = "p50 / p95"
"""In the head of a column whose cells are two figures, and the number of samples in brackets."""
GAP: Final = 2
"""Blanks between two columns."""
SHORT: Final = 16
"""Cells up to this length are not broken, so that a figure stays beside its unit."""
NARROWEST: Final = 120
"""Columns used for a pipe: its default of 80 would cut trace ids."""


def fitted(table: Table, width: int, size: Callable[[str], int]) -> Table:
    """Return a table without the columns it has no room for; ``size``: the columns that a text takes."""
    # Columns leave before words break: a broken id cannot be looked up.
    while (excess := _last_wide(table)) and _least_width(table, size) > width:
        table = table.without(frozenset({excess}))
    return table


def is_unbroken(column: str) -> bool:
    """Whether the cells of a column are not broken: half a pair of figures would read as a single figure."""
    return column in UNBROKEN or PAIR in column


def _last_wide(table: Table) -> str | None:
    return next((column for column in reversed(table.columns) if column in table.wide), None)


def _least_width(table: Table, size: Callable[[str], int]) -> int:
    """Return the width below which words or figures would break."""
    widths = []
    for index, column in enumerate(table.columns):
        cells = [column, *(row[index] for row in table.rows)]
        whole = is_unbroken(column)
        parts = [cell.splitlines() if whole or len(cell) <= SHORT else cell.split() for cell in cells]
        widths.append(max((size(part) for found in parts for part in found), default=0))
    return sum(widths) + GAP * (len(widths) - 1)
