"""Tables and diagnosis on a terminal, by rich."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table as RichTable
from rich.text import Text

from otel_lifecycle._cli.diagnosis import Diagnosis
from otel_lifecycle._cli.render.tables import Table

GRADE_STYLE: Final = {"strong": "bold red", "moderate": "yellow", "weak": "dim"}
VERDICT_STYLE: Final = {"better": "bold green", "worse": "bold red", "no evidence": "dim", "FAILED": "bold red"}
UNBROKEN: Final = frozenset({"request", "trace", "outcome", "stage", "class", "latency", "metric", "figure"})
"""Columns whose words are not broken: half a trace id can be looked up nowhere."""
SHORT_ID: Final = 16
NARROWEST: Final = 120
"""A table of traces is wider than a pipe's 80 columns, and a cut trace id is none."""


def console(stderr: bool = False) -> Console:
    """Return a console as wide as the terminal; wide enough for trace ids where there is none."""
    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal and made.width < NARROWEST:
        return Console(stderr=stderr, highlight=False, width=NARROWEST)
    return made


def show_tables(out: Console, tables: Iterable[Table]) -> None:
    """Print tables, one below the other."""
    for table in tables:
        out.print()
        out.print(_rich(table, narrow=out.width < NARROWEST))
        if table.note:
            out.print(Padding(Text(table.note, style="dim"), (0, 0, 0, 2)))


def _rich(table: Table, *, narrow: bool) -> RichTable:
    if narrow:
        table = table.without(table.wide)
    made = RichTable(
        title=table.title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1)
    )
    for index, column in enumerate(table.columns):
        made.add_column(
            column,
            justify="left" if index < table.left else "right",
            header_style="dim",
            no_wrap=column in UNBROKEN,
            overflow="fold",
        )
    for row in table.rows:
        cells = zip(table.columns, row, strict=True)
        # The beginning of a trace id stands for the whole: `view` looks it up by that, too.
        short = [cell[:SHORT_ID] if narrow and column == "trace" else cell for column, cell in cells]
        made.add_row(*(Text(cell, style=VERDICT_STYLE.get(cell, "")) for cell in short))
    return made


def show_diagnosis(out: Console, diagnosis: Diagnosis) -> None:
    """Print the headline in a frame, then each finding with what led to it."""
    body = Text()
    body.append(diagnosis.headline, style="bold")
    for finding in diagnosis.findings:
        body.append("\n\n")
        body.append(f"{finding.confidence:>8}  ", style=GRADE_STYLE[finding.confidence])
        body.append(finding.symptom)
        body.append(f"\n          look at {finding.look_at}", style="italic")
        for line in finding.evidence:
            body.append(f"\n          · {line}", style="dim")
    out.print()
    out.print(Panel(body, title="Where to look next", title_align="left", padding=(0, 1)))
