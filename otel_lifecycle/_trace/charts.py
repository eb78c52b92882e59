"""The charts of one request: waterfall, shares, token timeline and gaps."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from markupsafe import Markup

from otel_lifecycle._draw.bars import BarRow, Piece, bar_rows, durations, legend
from otel_lifecycle._draw.plot import Plot
from otel_lifecycle._draw.scale import Scale, linear, short_seconds, whole
from otel_lifecycle._table.requests.model import STAGES
from otel_lifecycle._table.text import plural, seconds, share, shorten, text
from otel_lifecycle._trace.anatomy import Anatomy, Bar
from otel_lifecycle._trace.neighbours import ExplainedStall, NeighbourTrack

# Each explained mark is an element of its own with a text; thousands make the page slow.
POINTS: Final = 600
"""Up to this number, each token or gap gets a tip; beyond it they are only drawn."""


def waterfall(found: Anatomy) -> Markup:
    """Return the spans of the trace, each a bar; a band is a stall."""
    rows = [_row(bar) for bar in found.bars]
    bands = [
        Piece(start=one.start, end=one.start + one.length, shade="preempted", tip=stall_told(one))
        for one in found.stalls
    ]
    title = "since arrival; a red band is a stall" if bands else "since arrival"
    used = {bar.colour for bar in found.bars}
    entries = [(name, name) for name in (*STAGES, "preempted", "other") if name in used]
    return legend(entries) + durations(rows, f"waterfall of {plural(len(rows), 'span')}", bands, title)


def _row(bar: Bar) -> BarRow:
    length = seconds(bar.end - bar.start)
    name = shorten(text(bar.name), 34)
    tip = f"{name}\n{length}, from {seconds(bar.start)} to {seconds(bar.end)}"
    piece = Piece(start=bar.start, end=bar.end, shade=bar.colour, tip=tip)
    return BarRow(name=name, figure=length, pieces=[piece], depth=bar.depth)


def stages_waterfall(name: str, lengths: Mapping[str, float | None], e2e: float | None) -> Markup:
    """Return the waterfall of a request without its spans: its stages, one after the other, up to an unknown one."""
    at, rows = 0.0, []
    for stage, length in lengths.items():
        if length is None:
            break
        rows.append(_row(Bar(name=stage, start=at, end=at + length, depth=1, colour=stage)))
        at += length
    whole = Bar(name=name, start=0.0, end=at if e2e is None else e2e, depth=0, colour="muted")
    return durations([_row(whole), *rows], f"waterfall of {text(name)}")


def shares(parts: Mapping[str, float]) -> Markup:
    """Return one bar with the share of each stage."""
    at, pieces = 0.0, []
    for stage, part in parts.items():
        pieces.append(Piece(start=at, end=at + part, shade=stage, tip=f"{stage} {share(part)}"))
        at += part
    told = ", ".join(f"{stage} {share(part)}" for stage, part in parts.items())
    row = BarRow(name="share of its time", pieces=pieces)
    entries = [(stage, f"{stage} {share(part)}") for stage, part in parts.items()]
    return bar_rows([row], Scale(low=0.0, high=1.0), f"share of each stage: {told}") + legend(entries)


def timeline(found: Anatomy) -> Markup:
    """Return output tokens over time: a flat part is a stall."""
    times = found.tokens
    plot = Plot(linear(0, times[-1], short_seconds), linear(0, len(times), whole), height=140)
    for one in found.stalls:
        plot.band(one.start, one.start + one.length, f"{stall_told(one)}, after token {one.token}")
    # As steps: between two tokens the count does not grow.
    plot.curve([(time, number) for number, time in enumerate(times, 1)], "decode", steps=True)
    if len(times) <= POINTS:
        for number, time in enumerate(times, 1):
            plot.dot(time, number, "decode", f"token {number} at {seconds(time)}")
    return plot.markup(f"{plural(len(times), 'token')} over time", "output tokens; seconds since arrival")


def stall_told(stall: ExplainedStall) -> str:
    """Say how long a stall was, and what it fell beside."""
    told = f"stall of {seconds(stall.length)}"
    return told if stall.cause is None else f"{told}, {cause_told(stall)}"


def cause_told(stall: ExplainedStall) -> str:
    """Say what a stall fell beside."""
    if stall.beside is not None:
        return f"beside the prefill of {shorten(text(stall.beside), 34)}"
    return "the request itself was preempted" if stall.cause == "preemption" else "unexplained"


def neighbours(found: Anatomy) -> Markup:
    """Return the stages of the requests beside this one, below its own; a band is a stall of this one."""
    own = [
        Piece(start=bar.start, end=bar.end, shade=bar.colour, tip=f"{bar.name} {seconds(bar.end - bar.start)}")
        for bar in found.bars
        if bar.colour in (*STAGES, "preempted")
    ]
    rows = [BarRow(name="this request", pieces=own), *map(_neighbour_row, found.neighbours)]
    bands = [
        Piece(start=one.start, end=one.start + one.length, shade="preempted", tip=stall_told(one))
        for one in found.stalls
    ]
    title = "since arrival; a red band is a stall of this request" if bands else "since arrival"
    used = {piece.shade for row in rows for piece in row.pieces}
    entries = [(name, name) for name in (*STAGES, "preempted") if name in used]
    return legend(entries) + durations(rows, f"stages of {plural(len(rows) - 1, 'neighbour')}", bands, title)


def _neighbour_row(other: NeighbourTrack) -> BarRow:
    name = shorten(text(other.name), 34)
    pieces = [
        Piece(start=one.start, end=one.end, shade=one.stage, tip=f"{name}\n{one.stage} {seconds(one.end - one.start)}")
        for one in other.stages
    ]
    return BarRow(name=name, figure=blame(other), pieces=pieces)


def blame(other: NeighbourTrack) -> str:
    """Say for how long a neighbour held the request, by the links of its span; empty without a link."""
    held = [("waited", other.queue), ("stalled", other.stall)]
    return ", ".join(f"{what} {seconds(time)} beside it" for what, time in held if time is not None)


def gaps(found: Anatomy) -> Markup:
    """Return the gap before each token; what is red is a stall."""
    values = [later - earlier for earlier, later in pairwise(found.tokens)]
    stalled = {one.token for one in found.stalls}
    plot = Plot(
        linear(1.5, len(values) + 1.5, whole), linear(0, max(values) * 1.08 or 1.0, short_seconds, 4), height=140
    )
    for number, value in enumerate(values, 2):
        shade = "preempted" if number - 1 in stalled else "accent"
        tip = f"{seconds(value)} before token {number}" if len(values) <= POINTS else None
        plot.box(number - 0.4, number + 0.4, 0, value, shade, tip)
    return plot.markup("gap before each token", "gap before each token; red is a stall")
