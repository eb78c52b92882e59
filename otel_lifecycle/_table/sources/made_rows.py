"""Requests that are read without spans, many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, compress, repeat
from operator import itemgetter
from typing import Any, NamedTuple


class MadeRows(NamedTuple):
    """Rows as the columns of the table, each a list of its cells or the one cell that all of them have.

    Nested cells are text of JSON.  The ids are also by themselves: the columns need not have them.
    """

    trace_ids: list[str]
    span_ids: list[str]
    columns: list[Any]

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.span_ids)

    def chosen(self, flags: Sequence[object]) -> MadeRows:
        """Return the rows whose flag is true."""
        trace_ids, span_ids, *columns = [
            list(compress(one, flags)) if type(one) is list else one for one in (*self[:2], *self.columns)
        ]
        return MadeRows(trace_ids, span_ids, columns)

    def between(self, start: int, stop: int) -> MadeRows:
        """Return the rows from one on, up to another."""
        if (start, stop) == (0, self.size):
            return self
        columns = [one[start:stop] if type(one) is list else one for one in self.columns]
        return MadeRows(self.trace_ids[start:stop], self.span_ids[start:stop], columns)


def in_order(blocks: Sequence[MadeRows], places: Sequence[int]) -> MadeRows:
    """Return the rows of some blocks, ordered by the place of each."""
    if len(blocks) < 2:
        return blocks[0] if blocks else MadeRows([], [], [])
    pick = itemgetter(*sorted(range(len(places)), key=places.__getitem__))
    sizes = [block.size for block in blocks]

    def together(cells: Sequence[Any]) -> list[Any]:
        lists = [one if type(one) is list else repeat(one, size) for one, size in zip(cells, sizes, strict=True)]
        return list(pick(list(chain.from_iterable(lists))))

    cells = zip(*[(block.trace_ids, block.span_ids, *block.columns) for block in blocks], strict=True)
    trace_ids, span_ids, *columns = [
        together(one) if list in map(type, one) or len({*one}) > 1 else one[0] for one in cells
    ]
    return MadeRows(trace_ids, span_ids, columns)
