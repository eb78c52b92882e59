"""Colours of charts and pages, for light and dark: ``{name: (light, dark)}``, each a CSS variable ``--name``."""

from __future__ import annotations

from importlib import resources
from typing import Final

COLOURS: Final = {
    "ink": ("#1c2330", "#e4e8ef"),
    "muted": ("#5b6576", "#a3adbd"),
    "line": ("#d8dde6", "#343c4a"),
    "paper": ("#ffffff", "#151a22"),
    "raised": ("#f6f7f9", "#1c232e"),
    "queue": ("#d98e04", "#f2b134"),
    "preprocessing": ("#8a5cd6", "#b08cf0"),
    "prefill": ("#2f6fde", "#6ea2ff"),
    "decode": ("#1f9d6b", "#4fd39c"),
    "preempted": ("#c93a4b", "#ff7b89"),
    "mixed": ("#8792a5", "#9aa5b8"),
    "accent": ("#2f6fde", "#6ea2ff"),
    "other": ("#98a1b0", "#6b7688"),
}

OUTCOME_COLOUR: Final = {
    "completed": "decode",
    "cancelled": "mixed",
    "timed_out": "queue",
    "failed": "preempted",
    "incomplete": "other",
}
"""Outcome -> the colour it is drawn in."""


def shade_of(key: str) -> str:
    """Return the colour of a stage, an outcome or a name of the theme; ``other`` for any other text."""
    name = OUTCOME_COLOUR.get(key, key)
    # The name becomes part of a class attribute, so only known words pass.
    return name if name in COLOURS else "other"


def variables(dark: bool) -> str:
    """Return the CSS declarations of one theme."""
    return " ".join(f"--{name}: {night if dark else day};" for name, (day, night) in COLOURS.items())


def stylesheet() -> str:
    """Return the styles that every chart needs, with the colours of both themes."""
    light, dark = variables(dark=False), variables(dark=True)
    colours = f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
    return colours + _static("draw.css")


def script() -> str:
    """Return the script that explains marks on hover and by keyboard."""
    return _static("draw.js")


def _static(name: str) -> str:
    return (resources.files("otel_lifecycle._draw") / "static" / name).read_text("utf-8")
