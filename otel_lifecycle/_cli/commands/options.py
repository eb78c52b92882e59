"""Options that several commands share, and what they are turned into."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime, timezone
from typing import Any, Final, TypeVar

import click

from otel_lifecycle._analysis.settings import OPEN
from otel_lifecycle._core.lifecycle import SHAPES
from otel_lifecycle._core.slo import Slo
from otel_lifecycle._table.errors import Unusable
from otel_lifecycle._table.export import FORMS, Form
from otel_lifecycle._table.sources.plausibility import EARLIEST
from otel_lifecycle.errors import ConfigurationError

Command = TypeVar("Command", bound=Callable[..., Any])

SOURCES: Final = (
    "SOURCE is a file, folder or pattern of OTLP traces (JSON or protobuf, plain, gzip or zstd, as the Collector's "
    "file exporter writes them), '-' for a pipe, or a Jaeger: http://host:16686?service=NAME&lookback=SECONDS."
)
OPEN_START, OPEN_END = OPEN
OBJECTIVES: Final = tuple(item.name for item in fields(Slo))
SLO_FORM: Final = "it is written ttft=0.5,tpot=0.05,e2e=30"
LATEST: Final = OPEN_END * 1e-9
"""Epoch seconds beyond which nanoseconds do not fit: the year 2262."""


def examples(*lines: str) -> str:
    """Return examples as the end of a help text, each on a line of its own."""
    # "\b" keeps click from joining the lines of the paragraph.
    return "\n\n\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def limit_option(command: Command) -> Command:
    """Choose how many abnormal requests are shown one by one."""
    return click.option(
        "--limit",
        type=click.IntRange(min=0),
        default=10,
        show_default=True,
        help="Abnormal requests shown one by one.",
    )(command)


def sources_argument(command: Command) -> Command:
    """Take one or more sources."""
    return click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)(command)


def output_options(command: Command) -> Command:
    """Choose the form of the output."""
    # Click lists the option applied last first, so this is the reverse of the help.
    for option in (
        click.option("--html", "html", metavar="FILE", help="Write one self-contained page, too."),
        click.option("--junit", "form", flag_value="junit", help="Print JUnit XML, for a CI server."),
        click.option("--markdown", "form", flag_value="markdown", help="Print Markdown, for a comment or a summary."),
        click.option("--csv", "form", flag_value="csv", help="Print CSV: section, name, figure, value."),
        click.option("--json", "form", flag_value="json", help="Print JSON."),
    ):
        command = option(command)
    return command


def out_option(command: Command) -> Command:
    """Choose where the output goes."""
    return click.option("-o", "--out", metavar="FILE", help="Write into a file instead of standard output.")(command)


def form_of(name: str) -> Form:
    """Return the form of a file by its name."""
    return next(form for form in FORMS if form == name)


def shape_option(command: Command) -> Command:
    """Choose the lifecycle that foreign spans and raw events follow."""
    return click.option(
        "--shape",
        type=click.Choice(list(SHAPES)),
        default="default",
        show_default=True,
        help="The lifecycle of spans of other libraries and of raw events.",
    )(command)


def slo_option(command: Command) -> Command:
    """Judge every request by an SLO."""
    return click.option("--slo", metavar="NAME=SECONDS,...", help="Objectives for goodput: ttft=0.5,tpot=0.05,e2e=30.")(
        command
    )


def window_options(command: Command) -> Command:
    """Look at the requests that ended in a window only."""
    command = click.option("--to", "until", metavar="TIME", help="Only requests that ended at or before this.")(command)
    return click.option(
        "--from", "since", metavar="TIME", help="Only requests that ended after this: ISO 8601 or epoch seconds."
    )(command)


def slo_of(text: str | None) -> Slo | None:
    """Return the SLO that an option states; Unusable if it makes no sense."""
    if text is None:
        return None
    try:
        pairs = {name.strip(): value for name, value in (item.split("=", 1) for item in text.split(","))}
        unknown = [name for name in pairs if name not in OBJECTIVES]
        if unknown:
            raise Unusable(f"--slo {text}: there is no objective {unknown[0]!r}; {SLO_FORM}")
        return Slo(**{name: float(value) for name, value in pairs.items()})
    except ValueError as error:
        raise Unusable(f"--slo {text}: {error if isinstance(error, ConfigurationError) else SLO_FORM}") from error


def window_of(since: str | None, until: str | None) -> tuple[int, int] | None:
    """Return the window in epoch nanoseconds; an end left out is open."""
    if since is None and until is None:
        return None
    start = OPEN_START if since is None else _of_option("--from", since)
    end = OPEN_END if until is None else _of_option("--to", until)
    if end <= start:
        raise Unusable(f"the window ends ({until}) before it starts ({since})")
    return start, end


def _of_option(option: str, text: str) -> int:
    try:
        return time_of(text)
    except Unusable as error:
        raise Unusable(f"{option}: {error}") from error


def time_of(text: str) -> int:
    """Return an instant in epoch nanoseconds; without a zone it is UTC."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        except ValueError as error:
            raise Unusable(f"{text!r} is not a time: ISO 8601 or epoch seconds") from error
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    if not math.isfinite(seconds):
        raise Unusable(f"{text!r} is not a time: ISO 8601 or epoch seconds")
    # Epoch milliseconds are a common mistake; the message names the unit instead of an empty window.
    if not 0 <= seconds < LATEST:
        raise Unusable(f"{text!r} lies outside the years 1970 to 2262{_finer(seconds)}")
    return round(seconds * 1e9)


def _finer(seconds: float) -> str:
    """Return a hint if the number is a plausible time in a finer unit."""
    for unit, factor in (("milliseconds", 1e3), ("microseconds", 1e6), ("nanoseconds", 1e9)):
        if EARLIEST < seconds / factor < LATEST:
            return f": epoch seconds are meant, and this looks like {unit}"
    return ""
