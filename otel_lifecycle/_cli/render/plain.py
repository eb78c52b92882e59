"""A result as text for a pipe, as `terminal` prints it there, without rich: its import takes a third of a short report.

Whatever rich would have to squeeze, fold or measure is left to it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from otel_lifecycle._analysis.diagnosis.diagnosis import Diagnosis
from otel_lifecycle._cli.render.sections import Presentation, Table
from otel_lifecycle._cli.render.widths import GAP, NARROWEST, fitted
from otel_lifecycle._table.text import printable

_TERMINALS: Final = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "JUPYTER_COLUMNS", "JUPYTER_LINES")
"""Variables by which rich takes a pipe for something else."""
_ONE_COLUMN: Final = frozenset("…\N{EN DASH}\N{EM DASH}")
"""Characters of one column, beside those of the Latin alphabets."""


class _NotPlain(Exception):
    """Something that only rich lays out."""


def written(found: Presentation) -> str | None:
    """Return the text; None where standard output is no pipe, or where something has to be laid out by rich."""
    width = _width()
    if width is None or found.sketch is not None:
        return None
    try:
        return "".join([f"{line}\n" for line in _lines(found, width)])
    except _NotPlain:
        return None


def _width() -> int | None:
    streams = [stream for stream in (sys.stdin, sys.stdout, sys.stderr) if stream is not None]
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower()
    if (
        os.name != "posix"
        or not encoding.startswith("utf")
        or any(os.environ.get(name) is not None for name in _TERMINALS)
        or any(stream.isatty() for stream in streams)
    ):
        return None
    told = os.environ.get("COLUMNS", "")
    return max(int(told), NARROWEST) if told.isdigit() else NARROWEST


def _lines(found: Presentation, width: int) -> Iterator[str]:
    for text in (*filter(None, [found.opening]), *found.notes):
        yield from _bare(text, width)
    for table in found.tables:
        yield ""
        yield from _table(table, width)
        if table.note:
            yield from [f"  {line:{width - 2}}" for line in _wrapped(table.note, width - 2)]
    if found.diagnosis is not None:
        yield from _framed(_diagnosis(found.diagnosis, width - 4), "Where to look next", width)
    if found.closing:
        yield ""
        yield from _bare(found.closing, width)


def _bare(text: str, width: int) -> Iterator[str]:
    """Yield the lines of a text that nothing frames: rich leaves a blank at the end of a line that has room for it."""
    *broken, last = _wrapped(text, width)
    yield from [f"{line} "[:width] for line in broken]
    yield last


def _table(table: Table, width: int) -> Iterator[str]:
    for cell in (*table.columns, *chain(*table.rows)):
        _whole(cell, len(cell))
    table = fitted(table, width, len)
    rows = [table.columns, *table.rows]
    if not table.columns or any("[" in text for text in (table.title, *table.columns)):
        # Rich reads markup in them.
        raise _NotPlain
    sizes = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    total = sum(sizes) + GAP * (len(sizes) - 1)
    if total > width or 0 in sizes:
        raise _NotPlain
    if table.title:
        yield f"{_whole(table.title, total):{total}}"
    for row in rows:
        cells = zip(row, sizes, strict=True)
        sides = [cell.ljust(size) if at < table.left else cell.rjust(size) for at, (cell, size) in enumerate(cells)]
        yield (" " * GAP).join(sides)


def _diagnosis(diagnosis: Diagnosis, width: int) -> Iterator[str]:
    yield from _wrapped(printable(diagnosis.headline), width)
    first = max([len(finding.confidence) for finding in diagnosis.findings], default=0)
    rest = width - first - 2
    for finding in diagnosis.findings:
        yield ""
        told = [
            *_wrapped(printable(finding.symptom), rest),
            *_wrapped(f"look at {printable(finding.look_at)}", rest),
            *_dotted(finding.evidence, rest),
        ]
        for at, line in enumerate(told):
            yield f"{'' if at else finding.confidence:>{first}}  {line}"


def _dotted(lines: Sequence[str], width: int) -> Iterator[str]:
    for line in lines:
        for at, part in enumerate(_wrapped(printable(line), width - 2)):
            yield f"{' ' if at else '·'} {part}"


def _framed(lines: Iterable[str], title: str, width: int) -> Iterator[str]:
    yield ""
    yield f"╭─ {title} {'─' * (width - len(title) - 5)}╮"
    for line in lines:
        yield f"│ {line:{width - 4}} │"
    yield f"╰{'─' * (width - 2)}╯"


def _whole(text: str, width: int) -> str:
    """Return a text that takes one line, a column a character."""
    plain = all(character < "\u0300" or character in _ONE_COLUMN for character in text)
    if not plain or not text.isprintable() or len(text) > width or text != text.strip():
        raise _NotPlain
    return text


def _wrapped(text: str, width: int) -> list[str]:
    """Return a text in lines, broken between words."""
    lines = [""]
    for word in _whole(text, len(text)).split(" "):
        if not word or len(word) > width:
            raise _NotPlain
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines
