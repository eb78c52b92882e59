"""A plot with two axes, which marks are added to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from otel_lifecycle._draw.scale import Scale
from otel_lifecycle._draw.svg import element, joined, share_of

TOP: Final = 16.0
BOTTOM: Final = 20.0
"""Pixels above the highest value, and below the axis for the ticks."""
UNITS: Final = 1000.0
"""Size of the box that curves are drawn in; it is stretched to the plot, and lines keep their width."""


class Plot:
    """Marks between two scales, ``height`` pixels high.  A ``tip`` explains a mark to pointer and keyboard."""

    def __init__(self, x: Scale, y: Scale, height: float = 170.0) -> None:
        self._x = x
        self._y = y
        self._height = height
        self._marks: list[Markup] = []
        self._over: list[Markup] = []

    def _row(self, value: float) -> float:
        return TOP + (1 - self._y.at(value)) * self._height

    def _column(
        self, left: float, right: float, place: tuple[float, float], kind: str, tip: str | None, least: float = 0.0
    ) -> Markup:
        """Return a rectangle between two values of x; ``place``: its top and height in pixels."""
        start, end = self._x.at(left), self._x.at(right)
        top, height = place
        return element(
            "rect",
            x=share_of(start),
            width=share_of(max(end - start, least)),
            y=f"{top:.1f}",
            height=f"{max(height, 0):.1f}",
            class_=kind,
            data_tip=tip,
        )

    def box(self, left: float, right: float, low: float, high: float, shade: str, tip: str | None = None) -> None:
        """Add a rectangle between two values of each axis."""
        place = (self._row(high), self._row(low) - self._row(high))
        self._marks.append(self._column(left, right, place, f"s-{shade}", tip))

    def target(self, left: float, right: float, tip: str) -> None:
        """Add a column of the whole height that is not seen, only explained."""
        self._over.append(self._column(left, right, (0, TOP + self._height), "target", tip))

    def band(self, left: float, right: float, tip: str | None = None) -> None:
        """Add a band of the whole height."""
        self._marks.append(self._column(left, right, (TOP, self._height), "band", tip, least=0.002))

    def upright(self, at: float, text: str, level: int = 0) -> None:
        """Add a dashed line at a value of x, with its name beside it, ``level`` lines from the top."""
        place, row = self._x.at(at), TOP + 4 + 14 * level
        near_end = place > 0.7
        self._over.append(
            element("line", x1=share_of(place), x2=share_of(place), y1=row - 8, y2=TOP + self._height, class_="upright")
            + element(
                "text",
                f"{text}\N{NO-BREAK SPACE}" if near_end else f"\N{NO-BREAK SPACE}{text}",
                x=share_of(place),
                y=row,
                class_="end" if near_end else None,
            )
        )

    def curve(self, points: Sequence[tuple[float, float]], shade: str, *, steps: bool = False) -> None:
        """Add a line through points; ``steps``: level up to the next point."""
        places = [(self._x.at(x) * UNITS, (1 - self._y.at(y)) * UNITS) for x, y in points]
        if not places:
            return
        path = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
        path += "".join(f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}" for x, y in places[1:])
        drawn = element("path", d=path, class_=f"curve c-{shade}")
        self._marks.append(
            element(
                "svg",
                drawn,
                y=f"{TOP:.1f}",
                width="100%",
                height=f"{self._height:.1f}",
                viewBox=f"0 0 {UNITS:.0f} {UNITS:.0f}",
                preserveAspectRatio="none",
            )
        )

    def dot(self, x: float, y: float, shade: str, tip: str | None = None, size: float = 2.0) -> None:
        """Add a dot."""
        self._marks.append(
            element(
                "circle",
                cx=share_of(self._x.at(x)),
                cy=f"{self._row(y):.1f}",
                r=size,
                class_=f"s-{shade}",
                data_tip=tip,
            )
        )

    def markup(self, label: str, x_title: str = "") -> Markup:
        """Return the chart; ``label`` says what it shows to those who cannot see it."""
        below = TOP + self._height
        axis = element("line", x1="0", x2="100%", y1=f"{below:.1f}", y2=f"{below:.1f}", class_="axis")
        parts = [*self._rows(), *self._marks, axis, *self._columns(below), *self._over]
        return framed(parts, below + BOTTOM, label, x_title)

    def _rows(self) -> list[Markup]:
        drawn = []
        for tick in self._y.ticks:
            row, text = self._row(tick), self._y.label(tick)
            if not text or tick <= self._y.low:
                continue
            drawn.append(element("line", x1="0", x2="100%", y1=f"{row:.1f}", y2=f"{row:.1f}", class_="grid"))
            # Above the marks, or a tall column would hide the value.
            self._over.append(element("text", text, x="0", y=f"{row - 3:.1f}", class_="tick"))
        return drawn

    def _columns(self, below: float) -> list[Markup]:
        return tick_texts(self._x, below + 14)


def tick_texts(scale: Scale, row: float) -> list[Markup]:
    """Return the ticks of an x axis; every other one can be left out on a narrow screen."""
    drawn = []
    for number, tick in enumerate(scale.ticks):
        place = scale.at(tick)
        side = "" if place < 0.03 else " end" if place > 0.97 else " middle"
        narrow = " spare" if number % 2 else ""
        drawn.append(
            element("text", scale.label(tick), x=share_of(place), y=f"{row:.1f}", class_=f"tick{side}{narrow}")
        )
    return drawn


def framed(parts: Sequence[str], height: float, label: str, title: str = "") -> Markup:
    """Return a drawing with its accessible name; its marks are reached with the arrow keys."""
    drawn = element(
        "svg",
        joined(parts),
        width="100%",
        height=f"{height:.0f}",
        role="group",
        aria_roledescription="chart",
        aria_label=label,
        # One stop for the whole chart; the arrow keys move inside it.
        tabindex="0",
    )
    below = element("p", title, class_="axis-title") if title else Markup("")
    return element("div", drawn, below, class_="chart")
