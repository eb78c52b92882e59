"""A presentation as Markdown, for a comment on a change or the summary of a build."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from otel_lifecycle._analysis.diagnosis.diagnosis import Diagnosis
from otel_lifecycle._cli.render.sections import Presentation, Table
from otel_lifecycle._table.text import printable

# "|" would end a cell, and "<" would begin HTML, which many viewers render.
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~])")


def document(found: Presentation) -> str:
    """Return headline, notes and tables; names from a trace are shown as they are and mean nothing to Markdown."""
    parts = [f"## {escaped(found.headline)}", *map(escaped, found.notes), *map(_table, found.tables)]
    return "\n\n".join([*parts, *([] if found.diagnosis is None else [_diagnosis(found.diagnosis)])])


def _diagnosis(found: Diagnosis) -> str:
    """Return a diagnosis as a list."""
    lines = [f"### Where to look next\n\n**{escaped(found.headline)}**\n"]
    for one in found.findings:
        lines.append(f"- **{one.confidence}**: {escaped(one.symptom)}; look at {escaped(one.look_at)}")
        lines += [f"  - {escaped(line)}" for line in one.evidence]
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Return a text in which nothing is markup."""
    return _SPECIAL.sub(r"\\\1", printable(text))


def _table(table: Table) -> str:
    head = [f"### {escaped(table.title)}\n"] if table.title else []
    rule = [":--" if index < table.left else "--:" for index in range(len(table.columns))]
    rows = [_row(map(escaped, cells)) for cells in (table.columns, *table.rows)]
    rows.insert(1, _row(rule))
    note = [f"\n{escaped(table.note)}"] if table.note else []
    return "\n".join([*head, *rows, *note])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
