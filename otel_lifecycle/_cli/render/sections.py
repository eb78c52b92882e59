"""A command's result as a document of sections: the terminal, Markdown, the page, JSON, CSV and JUnit all show this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from otel_lifecycle._analysis.diagnosis.diagnosis import Diagnosis

if TYPE_CHECKING:
    # JSON and CSV need no terminal.
    from rich.console import Console

TableColumns: TypeAlias = Iterable[tuple[str, str, Callable[[Any], str]]]
"""Columns as data: head, key in the item that a row is made from, and how the value is written."""

FIGURES: Final = ("p50", "p95", "p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A title, a head, rows of finished text, and a sentence below.

    ``left``: how many of the columns hold words and stand to the left; the others are figures.  ``wide``: columns that
    a narrow terminal does without, the last first.  ``narrow``: the tables that such a terminal shows instead.
    ``page_only``: a page has room for it, and the other forms have not.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    note: str = ""
    wide: frozenset[str] = frozenset()
    narrow: tuple[Table, ...] = ()
    page_only: bool = False

    def without(self, columns: frozenset[str]) -> Table:
        """Return the table without some of its columns."""
        kept = [index for index, column in enumerate(self.columns) if column not in columns]
        return replace(
            self,
            columns=tuple(self.columns[index] for index in kept),
            rows=tuple(tuple(row[index] for index in kept) for row in self.rows),
            left=sum(index < self.left for index in kept),
        )


def written(write: Callable[[Any], str], *columns: str) -> TableColumns:
    """Return columns that are written alike, each ``head`` or ``head:key`` where the two differ."""
    for column in columns:
        head, _, key = column.partition(":")
        yield head, key or head, write


def table_of(title: str, items: Iterable[Any], *columns: TableColumns, **more: Any) -> Table:
    """Return a table with a row for each item, which is a mapping; ``more`` are fields of :class:`Table`."""
    told = [column for group in columns for column in group]
    rows = tuple(tuple(write(item[key]) for _, key, write in told) for item in items)
    return Table(title=title, columns=tuple(head for head, _, _ in told), rows=rows, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, tables, and what only a page has: charts, and what can be opened as (anchor, title, chart).

    Both are drawn when they are called for, because drawing costs more than all the text.
    """

    title: str
    tables: Sequence[Table] = ()
    charts: Callable[[], Sequence[str]] = tuple
    details: Callable[[], Sequence[tuple[str, str, str]]] = tuple


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCase:
    """A test case for JUnit: what failed it or could not be judged, if anything, and what else there is to say."""

    name: str
    failure: str = ""
    error: str = ""
    told: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Presentation:
    """What a command found.

    ``command`` names the JUnit suite, ``plain`` is the result as data, for JSON and CSV.  ``cases``: what was judged,
    and ``passed`` how many more passed and are only counted.  ``headline`` is the first line of Markdown; a terminal
    shows ``opening``, what ``sketch`` draws, the tables, and ``closing``.  ``notes`` stand in every form, ``warnings``
    and ``tiles`` on the page alone.
    """

    command: str
    headline: str
    plain: Any
    sections: Sequence[Section]
    cases: Sequence[JudgedCase] = ()
    passed: int = 0
    title: str = ""
    subtitle: str = ""
    opening: str = ""
    closing: str = ""
    sketch: Callable[[Console], None] | None = None
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    tiles: Sequence[tuple[str, str]] = ()
    diagnosis: Diagnosis | None = None

    @property
    def tables(self) -> list[Table]:
        """The tables that have rows, for the forms without a page's room."""
        told = (table for section in self.sections for table in section.tables)
        return [table for table in told if table.rows and not table.page_only]
