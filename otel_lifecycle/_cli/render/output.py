"""One presentation in the form that was asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from otel_lifecycle._cli.render.plain import written
from otel_lifecycle._cli.render.sections import Presentation
from otel_lifecycle._table.errors import Unusable
from otel_lifecycle._table.machine import to_json, write_csv


def show(found: Presentation, form: str | None, html: str | None = None) -> None:
    """Print a result, and write its page into a file where one is named; ``none`` prints nothing."""
    # Each form is loaded when it is asked for: a page needs the drawing, a script needs no terminal.
    if html is not None:
        from otel_lifecycle._cli.render.pages import page

        write_page(html, page(found))
    if form == "json":
        click.echo(to_json(found.plain))
    elif form == "csv":
        write_csv(found.plain, sys.stdout)
    elif form == "junit":
        from otel_lifecycle._cli.render.junit import xml

        click.echo(xml(found))
    elif form == "markdown":
        from otel_lifecycle._cli.render.markdown import document

        click.echo(document(found))
    elif form is None:
        _show_text(found)


def _show_text(found: Presentation) -> None:
    text = written(found)
    if text is not None:
        sys.stdout.write(text)
        return
    from otel_lifecycle._cli.render.terminal import console, show_presentation

    show_presentation(console(), found)


def write_page(path: str, page: str) -> None:
    """Write a page, and say where on standard error."""
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror or error}") from error
    click.echo(f"wrote {path}", err=True)
