"""A presentation as one self-contained page: no request to any network, light and dark, no script needed."""

from __future__ import annotations

from typing import Final

import jinja2

from otel_lifecycle._cli.render.sections import Presentation
from otel_lifecycle._draw import theme
from otel_lifecycle._version import __version__

LONG: Final = 5
"""Sections from which a page has a table of contents."""


def page(found: Presentation) -> str:
    """Return the page as HTML; everything that came from a trace is escaped."""
    drawn = [
        {
            "title": section.title,
            "charts": section.charts(),
            "tables": [table for table in section.tables if table.rows],
            "details": section.details(),
        }
        for section in found.sections
    ]
    sections = [section for section in drawn if section["charts"] or section["tables"]]
    # The environment escapes every value; the template exempts only drawings, which draw.svg has escaped.
    loader = jinja2.PackageLoader("otel_lifecycle._cli.render")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("page.html.j2").render(
        page=found,
        sections=sections,
        styles=theme.stylesheet(),
        script=theme.script(),
        contents=len(sections) >= LONG,
        version=__version__,
    )
