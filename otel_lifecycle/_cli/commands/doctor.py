"""``otel-lifecycle doctor``."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from otel_lifecycle._cli.commands import options
from otel_lifecycle._doctor.checks import Check, checks_of
from otel_lifecycle._doctor.look import CONFIGURED, look_at
from otel_lifecycle._table.errors import FOUND, OK

EXAMPLES = options.examples("otel-lifecycle doctor", "otel-lifecycle doctor -- python my_server.py")
CONFIGURED_WAIT = 60.0
"""Seconds that configure() has at most; it is looked at once it has run."""
MARKS = {"ok": ("✓", "green"), "note": ("·", "yellow"), "wrong": ("✗", "red")}


@click.command(
    help="What is set up for OpenTelemetry, what is not, and the remedy.\n\n"
    "Without COMMAND it looks at what configure() sets up in this environment. With COMMAND, it starts it, looks at it"
    " from inside after --wait seconds, and ends it. Exit code 0: nothing to fix, 1: something, 2: it could not look."
    f"{EXAMPLES}",
    # Options behind COMMAND belong to it.
    context_settings={"ignore_unknown_options": True},
)
@click.option("--wait", default=5.0, show_default=True, help="Seconds that the command has to set itself up.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def doctor(wait: float, as_json: bool, command: Sequence[str]) -> int:
    """Look at a set-up."""
    seen = look_at(command or CONFIGURED, os.environ, wait if command else CONFIGURED_WAIT)
    checks = checks_of(seen, os.environ)
    if as_json:
        import orjson

        document = {"schema_version": 1, "checks": [check.plain() for check in checks]}
        click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    else:
        _show(checks)
    return FOUND if any(check.state == "wrong" for check in checks) else OK


def _show(checks: Sequence[Check]) -> None:
    wrong = sum(check.state == "wrong" for check in checks)
    click.echo("nothing to fix" if not wrong else f"{wrong} to fix")
    for check in checks:
        mark, colour = MARKS[check.state]
        click.echo(f"{click.style(mark, fg=colour)} {check.topic}: {check.text}")
        if check.remedy:
            click.echo(f"    {check.remedy}")
