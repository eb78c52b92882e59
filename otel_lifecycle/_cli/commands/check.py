"""``otel-lifecycle check``."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Final

import click

from otel_lifecycle._cli.commands import options
from otel_lifecycle._cli.commands.progress import ReadingBar, reading
from otel_lifecycle._cli.render.output import show
from otel_lifecycle._cli.render.report_tables import trouble
from otel_lifecycle._cli.render.sections import JudgedCase, Presentation, Section, table_of, written
from otel_lifecycle._cli.render.terminal import console, show_tables
from otel_lifecycle._table.errors import FOUND, OK, Unusable
from otel_lifecycle._table.machine import safe_cell, to_json_line
from otel_lifecycle._table.requests.from_span import is_request
from otel_lifecycle._table.requests.troubles import note_troubles
from otel_lifecycle._table.row import row_of_span
from otel_lifecycle._table.sources.reader import Reader
from otel_lifecycle._table.sources.spans import Span
from otel_lifecycle._table.sources.tally import TROUBLE, ReadingTally
from otel_lifecycle._table.text import plural, seconds, text
from otel_lifecycle._table.violations import COLUMNS, SCHEMA_VERSION, Violated, findings


@click.command(
    help="Every illegal transition: which request, which trace, where, and the rule it broke.\n\n"
    "Exit code 1 if there is any, 2 if there is no request to check.\n\n"
    + options.SOURCES
    + options.examples("otel-lifecycle check traces.json", "otel-lifecycle check --csv traces/ > violations.csv")
)
@options.sources_argument
@options.shape_option
@click.option("--json", "form", flag_value="json", help="Print one JSON object a line.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV.")
@click.option("--markdown", "form", flag_value="markdown", help="Print Markdown, for a comment or a summary.")
@click.option("--junit", "form", flag_value="junit", help="Print JUnit XML, for a CI server.")
@click.option("--limit", default=0, help="Stop printing after so many; 0 prints all. They are counted all the same.")
def check(sources: tuple[str, ...], shape: str, form: str | None, limit: int) -> int:
    """Check every request."""
    tally, counts = ReadingTally(), Counter[str]()
    try:
        with reading(sources, "checking") as bar:
            found = _checked(Reader(sources, tally, progress=bar), shape, tally, counts)
            if form in _WHOLE:
                _print_whole(list(islice(found, limit or None)), found, form, counts)
            else:
                _print(found, form, limit, bar)
        if form is None:
            _conclude(tally, counts)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):
        # The reader closed the pipe.  rich exits with 1 then, which is right only if there is a violation.
        if not counts["violations"]:
            raise
    # A check of nothing must not pass: a wrong path would look like a legal run.
    if not counts["requests"]:
        raise Unusable(f"nothing to check: no request in {', '.join(sources)}")
    return FOUND if counts["violations"] else OK


def _checked(reader: Reader, shape: str, tally: ReadingTally, counts: Counter[str]) -> Iterator[Violated]:
    for item in reader:
        if not isinstance(item, Span) or not is_request(item):
            continue
        note_troubles(item, tally)
        row = row_of_span(item, shape)
        counts["requests"] += 1
        # Without the dropped events nothing is known of the order.
        counts["truncated"] += bool(row.get("legal") is None and row.get("dropped_events"))
        told = list(findings(row))
        counts["illegal"] += bool(told)
        counts["violations"] += sum(one.count for one in told)
        yield from told


_WHOLE: Final = frozenset({"junit", "markdown"})
"""Forms that begin with the number of all."""


def _print_whole(shown: list[Violated], rest: Iterator[Violated], form: str | None, counts: Counter[str]) -> None:
    """Print the violations in a form that needs all of them at once; what a limit leaves out is only counted."""
    for _ in rest:
        pass
    title = f"{plural(counts['violations'], 'violation')} in {plural(counts['requests'], 'request')}"
    columns = written(text, "request", "trace:trace_id", "kind", "event", "state", "rule")
    table = table_of("", [one.plain() for one in shown], columns, left=6)
    presentation = Presentation(
        command="check",
        headline=title,
        plain=None,
        sections=[Section(title=title, tables=[table])],
        cases=[_case(one) for one in shown],
        # The legal requests are counted as passed.
        passed=counts["requests"] - counts["illegal"],
    )
    show(presentation, form)


def _case(one: Violated) -> JudgedCase:
    return JudgedCase(
        name=f"{one.request or one.trace_id}: {one.kind}",
        failure=f"{one.event} in {one.state}: {one.rule}",
        told=f"trace {one.trace_id} span {one.span_id}",
    )


def _print(found: Iterator[Violated], form: str | None, limit: int, bar: ReadingBar | None) -> None:
    """Print the findings as they come: there may be more of them than fit into memory."""
    out, writer = console(), csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    if form == "csv":
        writer.writeheader()
    for number, finding in enumerate(found, 1):
        # The rest is read all the same: the exit code and the sum are about all of them.
        if limit and number > limit:
            continue
        if number == 1 and bar is not None:
            bar.clear()
        if form == "json":
            click.echo(to_json_line({"schema_version": SCHEMA_VERSION, **finding.plain()}))
        elif form == "csv":
            writer.writerow({key: safe_cell(value) for key, value in finding.plain().items()})
        else:
            out.print(_line(finding), markup=False, soft_wrap=True)


def _line(finding: Violated) -> str:
    where = f"{text(finding.event)} in {text(finding.state)}"
    if finding.offset is not None:
        where += f", {seconds(finding.offset)} after arrival" if finding.offset >= 0 else ", before arrival"
    count = f" ({finding.count} of them)" if finding.count > 1 else ""
    return (
        f"{text(finding.kind)}{count}: {where}\n"
        f"    request {text(finding.request)}  trace {finding.trace_id}  span {finding.span_id}\n"
        f"    rule: {text(finding.rule)}"
    )


def _conclude(tally: ReadingTally, counts: Counter[str]) -> None:
    out = console()
    requests = plural(counts["requests"], "request")
    told = f"{plural(counts['violations'], 'violation')} in {counts['illegal']:,} of {requests}"
    if counts["requests"]:
        out.print(f"[bold]{told if counts['violations'] else f'all legal: {requests}'}[/bold]")
    if counts["truncated"]:
        out.print(f"{plural(counts['truncated'], 'request')} cannot be judged: limits dropped events of theirs")
    report = {
        "read": tally.read,
        "trouble": [line for line in tally.plain() if line["kind"] in TROUBLE],
    }
    found = trouble(report)
    if found.rows:
        show_tables(out, [found])
