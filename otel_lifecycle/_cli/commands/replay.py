"""``otel-lifecycle replay``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import click

from otel_lifecycle._analysis.settings import WorkloadSettings
from otel_lifecycle._analysis.workload import Workload
from otel_lifecycle._cli.commands import options
from otel_lifecycle._cli.commands.progress import reading
from otel_lifecycle._cli.commands.report import nothing_found, show_report
from otel_lifecycle._table.errors import FOUND, Unusable
from otel_lifecycle._table.events.columns import NANOSECONDS, Unit
from otel_lifecycle._table.events.log import read_logs
from otel_lifecycle._table.events.otlp import write_otlp
from otel_lifecycle._table.events.replayed import Replayed, replayed
from otel_lifecycle._table.machine import to_json_line
from otel_lifecycle._table.row import row_of
from otel_lifecycle._table.sources.tally import ReadingTally

EVENTS = (
    "EVENTS is a file (or '-') of JSON Lines or CSV, gzip or zstd too, with an event a line: 'event' (arrive, admit, "
    "input_ready, first_token, token, complete, ...), 'timestamp' (a number, an ISO time, or nothing: unknown; the "
    "name may state the unit: timestamp_us, time_ms), 'request_id', and for tokens 'count' and 'choice'. Further "
    "columns become attributes."
)


@click.command(
    help=f"Raw event logs through the state machine, into reports, metrics and OTLP.\n\n{EVENTS}"
    + options.examples("otel-lifecycle replay events.jsonl", "otel-lifecycle replay --unit ms --html page.html run.csv")
)
@click.argument("events", metavar="EVENTS...", nargs=-1, required=True)
@click.option(
    "--requests", "lines", is_flag=True, help="Print report, metrics and outcome of each request, a JSON line."
)
@click.option("--otlp", metavar="FILE", help="Write the spans as OTLP JSON, too ('-' for standard output).")
@click.option(
    "--unit",
    type=click.Choice(list(NANOSECONDS)),
    default="s",
    show_default=True,
    help="Of times that do not state one.",
)
@click.option("--start", metavar="TIME", help="The instant of time 0, where times are not epoch times. Default: now.")
@click.option("--service", default="replay", show_default=True, help="service.name of the spans.")
@click.option("--strict", is_flag=True, help="Exit 1 if anything was illegal.")
@options.shape_option
@options.slo_option
@options.output_options
@options.limit_option
def replay(
    events: tuple[str, ...],
    lines: bool,
    otlp: str | None,
    unit: Unit,
    start: str | None,
    service: str,
    strict: bool,
    shape: str,
    slo: str | None,
    form: str | None,
    html: str | None,
    limit: int,
) -> int:
    """Replay event logs."""
    tally = ReadingTally()
    # Whole seconds, so that a log's own decimals stay visible in the spans.
    offset = options.time_of(start) if start is not None else time.time_ns() // 10**9 * 10**9
    settings = WorkloadSettings(slo=options.slo_of(slo), shape=shape)
    workload = Workload(settings, tally)
    with ExitStack() as stack:
        bar = stack.enter_context(reading(events, "replaying"))
        # Output goes to the same terminal while the bar moves.
        if bar is not None and (lines or otlp == "-"):
            bar.clear()
        logs = read_logs(events, tally, bar, unit)
        # A generator: a log may have more requests than memory holds.
        found: Iterator[Replayed] = (replayed(log, shape, offset) for log in logs)
        if otlp is not None:
            out = sys.stdout.buffer if otlp == "-" else stack.enter_context(_opened(otlp))
            found = write_otlp(found, out, service)
        for one in found:
            workload.table.add(row_of(one.span, one.judged))
            if lines:
                click.echo(to_json_line(one.plain()))
    workload.conclude()
    show_report(workload, events, form or ("none" if lines or otlp == "-" else None), html, limit)
    if strict and workload.counts["illegal"]:
        return FOUND
    return nothing_found(workload, events)


def _opened(path: str) -> BinaryIO:
    try:
        return Path(path).open("wb")
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror or error}") from error
