"""Colours of plots and pages, for light and dark.

Plots are drawn once, with stand-in colours; in the finished SVG each stand-in becomes a CSS variable, so that the
reader's own theme decides.  ``{stand-in: (variable, light, dark)}``.
"""

from __future__ import annotations

from typing import Final

COLOURS: Final = {
    "#010101": ("--ink", "#1c2330", "#e4e8ef"),
    "#020202": ("--muted", "#667085", "#98a2b3"),
    "#030303": ("--line", "#d8dde6", "#343c4a"),
    "#040404": ("--paper", "#ffffff", "#151a22"),
    "#050505": ("--queue", "#d98e04", "#f2b134"),
    "#060606": ("--preprocessing", "#8a5cd6", "#b08cf0"),
    "#070707": ("--prefill", "#2f6fde", "#6ea2ff"),
    "#080808": ("--decode", "#1f9d6b", "#4fd39c"),
    "#090909": ("--preempted", "#c93a4b", "#ff7b89"),
    "#0a0a0a": ("--mixed", "#8792a5", "#9aa5b8"),
    "#0b0b0b": ("--accent", "#2f6fde", "#6ea2ff"),
    "#0c0c0c": ("--other", "#5c677a", "#8e99ab"),
}

_BY_NAME: Final = {variable.removeprefix("--"): stand_in for stand_in, (variable, _, _) in COLOURS.items()}

OUTCOME_COLOUR: Final = {
    "completed": "decode",
    "cancelled": "mixed",
    "timed_out": "queue",
    "failed": "preempted",
    "incomplete": "other",
}
"""Outcome -> the colour it is drawn in."""


def colour(name: str) -> str:
    """Return the stand-in of a colour, to draw with."""
    return _BY_NAME[name]


def themed(svg: str) -> str:
    """Return a drawing in which every stand-in is the variable it stands for."""
    for stand_in, (variable, _, _) in COLOURS.items():
        svg = svg.replace(stand_in, f"var({variable})")
    return svg


def variables(dark: bool) -> str:
    """Return the CSS declarations of one theme."""
    return " ".join(f"{variable}: {night if dark else day};" for variable, day, night in COLOURS.values())
