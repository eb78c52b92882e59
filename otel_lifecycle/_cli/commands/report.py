"""``otel-lifecycle report``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click

from otel_lifecycle._cli.analysis.document import Document, report_of
from otel_lifecycle._cli.analysis.settings import CLASS_LENGTH, WorkloadSettings
from otel_lifecycle._cli.analysis.workload import Workload, gather
from otel_lifecycle._cli.commands import options
from otel_lifecycle._cli.commands.follow import follow
from otel_lifecycle._cli.commands.progress import reading
from otel_lifecycle._cli.diagnosis.diagnosis import Diagnosis, diagnose
from otel_lifecycle._cli.errors import OK, UNUSABLE, Unusable
from otel_lifecycle._cli.render.machine import to_json, write_csv
from otel_lifecycle._cli.render.tables import report_tables
from otel_lifecycle._cli.sources.reader import STDIN, Reader
from otel_lifecycle._cli.sources.tally import ReadingTally
from otel_lifecycle._cli.text import number, plural, share

EXAMPLES = options.examples(
    "otel-lifecycle report traces.json",
    "otel-lifecycle report traces/ --slo ttft=0.5,e2e=30 --html report.html",
    "otel-lifecycle report --follow run.jsonl",
    "otel-lifecycle report 'http://localhost:16686?service=tiny-llm&lookback=600'",
)


@click.command(help=f"The whole evidence of a workload, and where to look next.\n\n{options.SOURCES}{EXAMPLES}")
@options.sources_argument
@options.output_options
@options.window_options
@options.slo_option
@options.shape_option
@click.option("--group-by", metavar="KEY", help="The same by an attribute: model, backend, outcome, any key.")
@click.option("--long-context", default=CLASS_LENGTH, show_default=True, help="Input tokens that make a context long.")
@options.limit_option
@click.option("--follow", "following", is_flag=True, help="Print it again whenever SOURCE has changed, until Ctrl-C.")
def report(
    sources: tuple[str, ...],
    form: str | None,
    html: str | None,
    since: str | None,
    until: str | None,
    slo: str | None,
    shape: str,
    group_by: str | None,
    long_context: int,
    limit: int,
    following: bool,
) -> int:
    """Report on a workload."""
    settings = WorkloadSettings(
        group_by=group_by,
        slo=options.slo_of(slo),
        window=options.window_of(since, until),
        long_context=long_context,
        shape=shape,
    )
    once = partial(report_once, sources, settings, form, html, limit)
    if not following:
        return once()
    if STDIN in sources or form is not None:
        raise click.UsageError("--follow needs files and prints text: no '-', --json, --csv, --markdown or --junit")
    return follow(sources, once)


def report_once(
    sources: tuple[str, ...], settings: WorkloadSettings, form: str | None, html: str | None, limit: int
) -> int:
    """Read the sources, print the report, and return the exit code."""
    workload = read_workload(sources, settings)
    document = report_of(workload, sources)
    diagnosis = diagnose(workload, document)
    if html is not None:
        # Only a page needs the drawing.
        from otel_lifecycle._cli.render.pages import report_page

        write_page(html, report_page(workload, document, diagnosis, limit))
    show(document, diagnosis, form, limit)
    return nothing_found(workload, sources)


def nothing_found(workload: Workload, sources: tuple[str, ...]) -> int:
    """Return the exit code of a report: ``UNUSABLE`` if there was no request."""
    # Warm-up traffic or halves of requests alone are still something to report.
    (found,) = workload.table.one("SELECT count(*) FROM facts WHERE part IN ('live', 'apart', 'role')")
    if found:
        return OK
    click.echo(f"otel-lifecycle: nothing to report: no request in {', '.join(sources)}", err=True)
    return UNUSABLE


def read_workload(sources: tuple[str, ...], settings: WorkloadSettings) -> Workload:
    """Read some sources into a workload, with a progress bar."""
    tally = ReadingTally()
    with reading(sources) as advance:
        return gather(Reader(sources, tally, progress=advance), settings, tally)


def show(document: Document, diagnosis: Diagnosis, form: str | None, limit: int) -> None:
    """Print a report in the form that was asked for."""
    whole = {**document, "diagnosis": diagnosis.plain()}
    if form == "json":
        click.echo(to_json(whole))
    elif form == "csv":
        write_csv(whole, sys.stdout)
    elif form == "junit":
        from otel_lifecycle._cli.render import junit

        click.echo(junit.of_report(diagnosis))
    elif form == "markdown":
        from otel_lifecycle._cli.render import markdown

        click.echo(markdown.document(title_of(document), report_tables(document, limit), document["warnings"]))
        click.echo(f"\n{markdown.diagnosis(diagnosis)}")
    else:
        # Rich takes longer to load than a short file to read.
        from otel_lifecycle._cli.render.terminal import console, show_diagnosis, show_tables

        out = console()
        out.print(f"{title_of(document)}, from {', '.join(document['sources'])}", style="bold", markup=False)
        for warning in document["warnings"]:
            out.print(warning, style="yellow", markup=False)
        show_tables(out, report_tables(document, limit))
        show_diagnosis(out, diagnosis)


def title_of(document: Document) -> str:
    """Return how many requests there were and what part completed, of those that ended."""
    requests, success = document["requests"], share(document["output"]["success_rate"])
    total, endless = plural(requests["total"], "request"), requests["incomplete"]
    if not endless:
        return f"{total}, {success} completed"
    ended = f"{number(requests['terminated'])} ended"
    if requests["terminated"]:
        ended += f", {success} of those completed"
    return f"{total}, {ended}; {number(endless)} never ended"


def write_page(path: str, page: str) -> None:
    """Write a page, and say where on standard error."""
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror or error}") from error
    click.echo(f"wrote {path}", err=True)
