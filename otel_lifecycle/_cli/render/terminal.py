"""Tables and diagnosis on a terminal, by rich."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from rich.cells import cell_len
from rich.console import Console, Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table as RichTable
from rich.text import Text

from otel_lifecycle._analysis.diagnosis.diagnosis import Diagnosis
from otel_lifecycle._cli.render.sections import Presentation, Table
from otel_lifecycle._cli.render.widths import NARROWEST, PAIR, fitted, is_unbroken
from otel_lifecycle._table.text import printable

GRADE_STYLE: Final = {"strong": "bold red", "moderate": "yellow", "weak": "dim"}
VERDICT_STYLE: Final = {"better": "bold green", "worse": "bold red", "no evidence": "dim", "FAILED": "bold red"}
SHORT_ID: Final = 16


def console(stderr: bool = False) -> Console:
    """Return a console as wide as the terminal; wide enough for trace ids where there is none."""
    # Rich would colour parts of ids as numbers, and draw a name such as ":key:" as a picture.
    made = Console(stderr=stderr, highlight=False, emoji=False)
    if not made.is_terminal and made.width < NARROWEST:
        return Console(stderr=stderr, highlight=False, emoji=False, width=NARROWEST)
    return made


def show_presentation(out: Console, found: Presentation) -> None:
    """Print a result."""
    if found.opening:
        out.print(found.opening, style="bold", markup=False)
    for note in found.notes:
        out.print(note, style="yellow", markup=False)
    if found.sketch is not None:
        found.sketch(out)
    narrow = out.width < NARROWEST
    show_tables(out, (part for table in found.tables for part in (narrow and table.narrow) or (table,)))
    if found.diagnosis is not None:
        show_diagnosis(out, found.diagnosis)
    if found.closing:
        out.print(f"\n{found.closing}", style="bold", markup=False)


def show_tables(out: Console, tables: Iterable[Table]) -> None:
    """Print tables, one below the other."""
    for table in tables:
        out.print()
        out.print(_rich(table, narrow=out.width < NARROWEST, width=out.width))
        if table.note:
            out.print(Padding(Text(table.note, style="dim"), (0, 0, 0, 2)))


def _rich(table: Table, *, narrow: bool, width: int) -> RichTable:
    if narrow:
        table = _folded(table)
    table = fitted(table, width, cell_len)
    made = RichTable(
        title=table.title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1)
    )
    for index, column in enumerate(table.columns):
        made.add_column(
            column,
            justify="left" if index < table.left else "right",
            header_style="dim",
            no_wrap=is_unbroken(column),
            overflow="fold",
        )
    for row in table.rows:
        # Text and not a plain string, in which rich reads "[...]" as markup; cells hold foreign names.
        made.add_row(*(Text(cell, style=VERDICT_STYLE.get(cell, "")) for cell in row))
    return made


def _folded(table: Table) -> Table:
    """Return the table for a narrow terminal: the number of samples below its figures, and ids cut short.

    The beginning of a trace id stands for the whole: `view` looks it up by that, too.
    """

    def cell(column: str, text: str) -> str:
        if column == "trace":
            return text[:SHORT_ID]
        return text.replace(" (", "\n(") if PAIR in column else text

    return replace(
        table,
        columns=tuple(column.replace(f" {PAIR}", f"\n{PAIR}") for column in table.columns),
        rows=tuple(
            tuple(cell(column, text) for column, text in zip(table.columns, row, strict=True)) for row in table.rows
        ),
    )


def show_diagnosis(out: Console, diagnosis: Diagnosis) -> None:
    """Print the headline in a frame, then each finding with what led to it."""
    findings = RichTable.grid(padding=(0, 2, 0, 0))
    findings.add_column(justify="right", no_wrap=True)
    findings.add_column(overflow="fold")
    for finding in diagnosis.findings:
        findings.add_row()
        findings.add_row(
            Text(finding.confidence, style=GRADE_STYLE[finding.confidence]), Text(printable(finding.symptom))
        )
        findings.add_row("", Text(f"look at {printable(finding.look_at)}", style="italic"))
        for line in finding.evidence:
            # A grid of its own, so that the rest of a long line stays behind its dot.
            dotted = RichTable.grid(padding=(0, 1, 0, 0))
            dotted.add_row(Text("·", style="dim"), Text(printable(line), style="dim"))
            findings.add_row("", dotted)
    body = Group(Text(printable(diagnosis.headline), style="bold"), *([findings] if diagnosis.findings else []))
    out.print()
    out.print(Panel(body, title="Where to look next", title_align="left", padding=(0, 1)))
