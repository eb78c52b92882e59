"""``otel-lifecycle view``."""

from __future__ import annotations

from pathlib import Path

import click

from otel_lifecycle._cli.commands import options
from otel_lifecycle._cli.commands.progress import reading
from otel_lifecycle._cli.render.output import show
from otel_lifecycle._table.errors import Unusable
from otel_lifecycle._table.sources.reader import Reader, is_url, kept_pipe
from otel_lifecycle._table.sources.tally import ReadingTally
from otel_lifecycle._trace.anatomy import Anatomy, anatomy
from otel_lifecycle._trace.find import find, only_request


@click.command(
    help="One request: waterfall of its stages, token timeline, stalls and their causes, neighbours, attribution.\n\n"
    "TRACE is a trace id or its beginning, a span id or a request id, looked for in SOURCE; or a file that holds "
    "one request.\n\n" + options.SOURCES
)
@click.argument("trace")
@click.argument("sources", metavar="[SOURCE]...", nargs=-1)
@click.option("--html", metavar="FILE", help="Write one self-contained page instead.")
@click.option("--json", "form", flag_value="json", help="Print JSON.")
@options.shape_option
def view(trace: str, sources: tuple[str, ...], html: str | None, form: str | None, shape: str) -> None:
    """Show a request."""
    found = _anatomy(trace, sources, shape)
    # Imported late: what is not found needs no drawing.
    from otel_lifecycle._cli.render.trace import presented

    show(presented(found), "none" if html is not None and form is None else form, html)


def _anatomy(trace: str, sources: tuple[str, ...], shape: str) -> Anatomy:
    tally = ReadingTally()
    if not sources:
        if not (Path(trace).exists() or is_url(trace) or trace == "-"):
            raise Unusable(f"{trace} is not a file; to look for a trace of that name, say where: view {trace} SOURCE")
        with kept_pipe((trace,)) as pipe:
            # One request alone: there are no neighbours to look for.
            return anatomy(only_request((trace,), shape, tally, pipe))
    # The search reads its sources up to three times, and once more for the neighbours; a pipe can be read once.
    with kept_pipe(sources) as pipe, reading(sources, "looking") as advance:
        found = find(trace, sources, shape, tally, advance, pipe)
        return anatomy(found, Reader(sources, ReadingTally(), pipe=pipe), shape)
