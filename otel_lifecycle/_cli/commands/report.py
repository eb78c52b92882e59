"""``otel-lifecycle report``."""

from __future__ import annotations

from functools import partial

import click

from otel_lifecycle._analysis.diagnosis.diagnosis import diagnose
from otel_lifecycle._analysis.document import report_of
from otel_lifecycle._analysis.facts import columns_asked
from otel_lifecycle._analysis.settings import CLASS_LENGTH, WorkloadSettings
from otel_lifecycle._analysis.workload import Workload, gather
from otel_lifecycle._cli.commands import options
from otel_lifecycle._cli.commands.follow import follow
from otel_lifecycle._cli.commands.progress import reading
from otel_lifecycle._cli.render.output import show
from otel_lifecycle._cli.render.report import presented
from otel_lifecycle._table.alike.messages import AlikeSpans
from otel_lifecycle._table.errors import OK, UNUSABLE
from otel_lifecycle._table.sources.reader import STDIN, Reader
from otel_lifecycle._table.sources.tally import ReadingTally

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
    show_report(workload, sources, form, html, limit)
    return nothing_found(workload, sources)


def show_report(
    workload: Workload, sources: tuple[str, ...], form: str | None = None, html: str | None = None, limit: int = 10
) -> None:
    """Print the report of a workload, and write its page where one is named."""
    document = report_of(workload, sources)
    show(presented(workload, document, diagnose(workload, document), limit), form, html)


def nothing_found(workload: Workload, sources: tuple[str, ...]) -> int:
    """Return the exit code of a report: ``UNUSABLE`` if there was no request."""
    # Warm-up traffic or halves of requests alone are still something to report.
    if any(workload.parts[part] for part in ("live", "apart", "role")):
        return OK
    click.echo(f"otel-lifecycle: nothing to report: no request in {', '.join(sources)}", err=True)
    return UNUSABLE


def read_workload(sources: tuple[str, ...], settings: WorkloadSettings) -> Workload:
    """Read some sources into a workload, with a progress bar."""
    tally = ReadingTally()
    with reading(sources) as advance:
        alike = AlikeSpans(columns_asked(settings))
        return gather(Reader(sources, tally, progress=advance, alike=alike), settings, tally)
