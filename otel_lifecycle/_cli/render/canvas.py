"""Drawing with matplotlib into SVG that takes on the page's fonts and colours."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from otel_lifecycle._cli.render.theme import colour, themed
from otel_lifecycle._cli.text import seconds

SPACE: Final = "\N{NO-BREAK SPACE}"
"""A blank that SVG keeps; several ordinary ones are one to it, and leading ones none."""

STYLE: Final[Any] = {
    # Text stays text: it takes the page's font, can be found and read aloud.
    "svg.fonttype": "none",
    # A name with two dollars in it is no formula.
    "text.parse_math": False,
    "svg.hashsalt": "otel-lifecycle",
    "font.size": 9,
    "axes.edgecolor": colour("line"),
    "axes.labelcolor": colour("muted"),
    "axes.titlecolor": colour("ink"),
    "text.color": colour("ink"),
    "xtick.color": colour("muted"),
    "ytick.color": colour("muted"),
    "grid.color": colour("line"),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


@dataclass(slots=True)
class Drawing:
    """A figure being drawn, its axes, and the SVG once it is done."""

    figure: Figure
    axes: list[Axes]
    svg: str = field(default="")


@contextmanager
def drawing(width: float, height: float, rows: int = 1, label: str = "", **grid: Any) -> Iterator[Drawing]:
    """Give axes to draw on, ``width`` by ``height`` inches; ``svg`` is there when the block is left.

    ``label`` is what the drawing says to who cannot see it.
    """
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        # The page draws the text, in fonts of its own.
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots(rows, 1, squeeze=False, **grid)
        made = Drawing(figure, list(axes[:, 0]))
        yield made
        figure.patch.set_alpha(0)
        for one in made.axes:
            one.patch.set_alpha(0)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        made.svg = _inline(out.getvalue(), label)


def _inline(document: str, label: str) -> str:
    """Return the ``<svg>`` element alone, scaling with the page, in the page's font and colours."""
    svg = document[document.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font: ([^;\"]*?)(\d[\d.]*px)[^;\"]*", r"font-size: \2", svg)
    svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', "", svg, count=1)
    escaped = label.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escaped}" ', 1)
    return themed(re.sub(r"\n\s*", "\n", svg))


def in_seconds() -> FuncFormatter:
    """Return a formatter of ticks that are durations, without digits that say nothing."""
    return FuncFormatter(lambda value, _position: _round(value) if value > 0 else "0")


def _round(value: float) -> str:
    figure, unit = seconds(value).split()
    return f"{figure.rstrip('0').rstrip('.') if '.' in figure else figure} {unit}"
