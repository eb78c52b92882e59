"""Options that ``run`` and ``live`` share."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from otel_lifecycle._cli.live.guard import is_loopback
from otel_lifecycle._cli.live.kept import KEEP
from otel_lifecycle._cli.live.saving import JsonLines
from otel_lifecycle._cli.problems import Unusable

Command = TypeVar("Command", bound=Callable[..., Any])

FORMS: Final = (".jsonl", ".jsonl.zst")


def live_options(command: Command) -> Command:
    """Choose where to listen, how much to keep and where to save it."""
    for option in (
        click.option("--token", metavar="TEXT", help="The token beyond this machine; made up where none is given."),
        click.option(
            "--host",
            default="127.0.0.1",
            show_default=True,
            help="Address to listen on; beyond this machine only with a token.",
        ),
        click.option(
            "--keep",
            type=click.IntRange(min=1),
            default=KEEP,
            show_default=True,
            help="Requests kept for the page; the oldest leave.",
        ),
        click.option("--save", metavar="FILE", help="Write all that arrives: run.jsonl, run.jsonl.zst or run.parquet."),
    ):
        command = option(command)
    return command


def token_for(host: str, given: str | None) -> str | None:
    """Return the token that a server on a host needs: the given one, or a new one beyond this machine."""
    return given or (None if is_loopback(host) else secrets.token_urlsafe(18))


def saving_to(save: str | None) -> JsonLines | None:
    """Return where ``--save`` writes while telemetry arrives; Unusable for a form that is not known."""
    if save is None:
        return None
    if not save.endswith(FORMS):
        raise Unusable(f"--save {save}: the name must end in {', '.join(FORMS)}")
    return JsonLines(Path(save))
