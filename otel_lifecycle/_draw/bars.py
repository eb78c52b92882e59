"""Horizontal bars, one below the other: waterfalls, stages of single requests, and mixes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from otel_lifecycle._draw.plot import framed, tick_texts
from otel_lifecycle._draw.scale import Scale, linear, short_seconds
from otel_lifecycle._draw.svg import element, share_of
from otel_lifecycle._draw.theme import shade_of
from otel_lifecycle._table.text import share

ROW: Final = 32.0
"""Pixels of a row: its name, and the bar below it, so that the bar has the whole width of a telephone."""
BAR: Final = 11.0
INDENT: Final = 14.0
# Deeper nesting would push the name out of a narrow screen.
MAX_INDENT: Final = 6
LEAST: Final = 0.003
"""Least share of the width of a bar, so that it stays visible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a row from ``start`` to ``end``, in its colour."""

    start: float
    end: float
    shade: str
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BarRow:
    """A row: its name, what is written behind the name, its parts, how deep it is nested, and where it leads."""

    name: str
    figure: str = ""
    pieces: Sequence[Piece]
    depth: int = 0
    href: str | None = None


def bar_rows(rows: Sequence[BarRow], scale: Scale, label: str, bands: Sequence[Piece] = (), title: str = "") -> Markup:
    """Return rows below one another; ``bands`` run through all of them."""
    height = ROW * len(rows)
    parts = [_band(band, scale, height) for band in bands]
    for number, row in enumerate(rows):
        parts.append(_row(row, scale, number * ROW))
    axis = [element("line", x1="0", x2="100%", y1=f"{height:.1f}", y2=f"{height:.1f}", class_="axis")]
    ticks = tick_texts(scale, height + 14) if scale.ticks else []
    return framed([*parts, *(axis if ticks else []), *ticks], height + (20 if ticks else 2), label, title)


def _band(band: Piece, scale: Scale, height: float) -> Markup:
    left, right = scale.at(band.start), scale.at(band.end)
    width = share_of(max(right - left, LEAST))
    return element("rect", x=share_of(left), width=width, y="0", height=f"{height}", class_="band", data_tip=band.tip)


def _row(row: BarRow, scale: Scale, top: float) -> Markup:
    figure = element("tspan", f"\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}{row.figure}", class_="figure")
    text = element("text", row.name, figure, x=INDENT * min(row.depth, MAX_INDENT), y=f"{top + 13:.1f}", class_="name")
    if row.href is not None:
        text = element("a", text, href=row.href)
    return text + Markup("").join(_piece(piece, scale, top + 18) for piece in row.pieces)


def _piece(piece: Piece, scale: Scale, top: float) -> Markup:
    left, right = scale.at(piece.start), scale.at(piece.end)
    return element(
        "rect",
        # A bar at the right edge keeps its least width inside the picture.
        x=share_of(min(left, 1 - LEAST)),
        width=share_of(max(right - left, LEAST)),
        y=f"{top:.1f}",
        height=f"{BAR:.0f}",
        class_=f"s-{piece.shade}",
        data_tip=piece.tip,
    )


def durations(rows: Sequence[BarRow], label: str, bands: Sequence[Piece] = (), title: str = "since arrival") -> Markup:
    """Return rows whose pieces are seconds after an arrival."""
    ends = [piece.end for row in rows for piece in row.pieces]
    starts = [piece.start for row in rows for piece in row.pieces]
    # Something that begins a few microseconds before the arrival needs no room of its own.
    high = max(ends, default=1.0)
    low = min(starts, default=0.0)
    low = 0.0 if low > -0.005 * high else low
    return bar_rows(rows, linear(low, high or 1.0, _signed), label, bands, title)


def _signed(value: float) -> str:
    return f"-{short_seconds(-value)}" if value < 0 else short_seconds(value)


def mix(rows: Iterable[tuple[str, dict[str, int]]], label: str) -> Markup:
    """Return a bar a row, divided by counts; each part is named in the legend of its row."""
    return Markup("").join(_mix(name, counts, label) for name, counts in rows if sum(counts.values()))


def _mix(name: str, counts: dict[str, int], label: str) -> Markup:
    total, at, pieces = sum(counts.values()), 0.0, []
    parts = sorted(counts.items(), key=lambda item: -item[1])
    for key, count in parts:
        tip = f"{key}: {count:,} of {total:,} ({share(count / total)})"
        pieces.append(Piece(start=at, end=at + count / total, shade=shade_of(key), tip=tip))
        at += count / total
    row = BarRow(name=name, figure=f"{total:,}", pieces=pieces)
    scale = Scale(low=0.0, high=1.0)
    named = ", ".join(f"{key} {share(count / total)}" for key, count in parts)
    return bar_rows([row], scale, f"{label}, {name}: {named}") + legend(
        [(key, f"{key} {share(count / total)}") for key, count in parts]
    )


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """Return a legend: (stage, outcome or colour, text) of each entry."""
    items = [
        element("li", element("i", class_=f"s-{shade_of(key)}", aria_hidden="true"), text) for key, text in entries
    ]
    return element("ul", *items, class_="legend")
