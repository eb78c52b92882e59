"""``otel-lifecycle run``."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence

import click

from otel_lifecycle._cli.commands import options
from otel_lifecycle._cli.commands.live_options import finish_saving, live_options, saving_to, token_for
from otel_lifecycle._live.child import Launch, launch_of, run_child
from otel_lifecycle._live.kept import Kept
from otel_lifecycle._live.receiver import Receiver
from otel_lifecycle._live.saving import Saving, SpooledMessages
from otel_lifecycle._live.session import LiveSettings, Served, serving, until_quiet, until_stopped
from otel_lifecycle._live.stream import Status

EXAMPLES = options.examples(
    "otel-lifecycle run -- python my_server.py",
    "otel-lifecycle run --save run.jsonl.zst -- uvicorn app:app",
)
NOTHING_CAME = (
    "nothing arrived: the command sets up no OpenTelemetry SDK, or exports elsewhere. Call otel_lifecycle.configure()"
    " without an endpoint; `otel-lifecycle doctor -- COMMAND` looks closer"
)


@click.command(
    help="Run a server, watch its requests on a live page, and print the report when it ends.\n\n"
    "An OTLP receiver is started on free ports of this machine, and COMMAND with the environment that sends there. "
    f"Signals and the exit code are passed through.{EXAMPLES}",
    context_settings={"ignore_unknown_options": True},
)
@click.option("--no-auto", is_flag=True, help="Do not use opentelemetry-instrument, even where it is installed.")
@click.option("--stay", is_flag=True, help="Keep the page after the command has ended, until Ctrl-C.")
@click.option("--port", default=0, help="Port of the page and of OTLP/HTTP; a free one by default.")
@live_options
@options.shape_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    command: Sequence[str],
    no_auto: bool,
    stay: bool,
    port: int,
    host: str,
    token: str | None,
    keep: int,
    save: str | None,
    shape: str,
) -> int:
    """Run a server under observation."""
    title = shlex.join(command)
    settings = LiveSettings(host=host, port=port, token=token_for(host, token), shape=shape, title=title)
    with saving_to(save, spool=True) as saving:
        assert saving is not None  # noqa: S101 - the report needs what came
        receiver = Receiver(Kept(keep), shape=shape, sink=saving.write)
        try:
            code = asyncio.run(_watched(command, receiver, settings, auto=not no_auto, stay=stay))
        finally:
            finish_saving(saving, save if receiver.requests else None, shape)
        _report(receiver, saving, title, shape)
    return code


async def _watched(
    command: Sequence[str], receiver: Receiver, settings: LiveSettings, *, auto: bool, stay: bool
) -> int:
    status = Status("running")
    async with serving(receiver, status, settings) as served:
        launch = launch_of(command, served.http, served.token, auto=auto)
        _announce(launch, served)
        # We return the command's exit code, so that scripts can put ``run`` in front of it.
        code = await run_child(launch)
        # The report would miss the batch that the exporter sent while the process ended.
        await until_quiet(receiver)
        status.text = f"ended with exit code {code}"
        if stay:
            click.echo(f"otel-lifecycle: the page stays at {served.page} until Ctrl-C", err=True)
            await until_stopped()
        status.end(f"{status.text}; this page is no longer served")
    return code


def _announce(launch: Launch, served: Served) -> None:
    click.echo(f"otel-lifecycle: live page at {served.page}", err=True)
    if launch.remark is not None:
        click.echo(f"otel-lifecycle: {launch.remark}", err=True)


def _report(receiver: Receiver, saving: Saving, title: str, shape: str) -> None:
    """Print the report of everything that came; its first line begins with the number of requests."""
    if not receiver.requests:
        # On standard output, as the first line of a report is: scripts read the number from there.
        click.echo("0 requests")
        lines = receiver.unread.lines(0, receiver.gauges.counted())
        for line in lines:
            click.echo(f"{line.count:,} {line.what}: {line.reason}" + (f"; {line.remedy}" if line.remedy else ""))
        if not receiver.messages:
            click.echo(NOTHING_CAME)
        return
    # The analysis takes longer to import than a server may take to start; it is only needed now.
    from otel_lifecycle._analysis.settings import WorkloadSettings
    from otel_lifecycle._cli.commands.report import read_workload, show_report

    show_report(read_workload((str(saving.path),), WorkloadSettings(shape=shape)), (title,))
    left_out = saving.left_out if isinstance(saving, SpooledMessages) else 0
    if left_out:
        click.echo(f"{left_out:,} messages came after the file for this report was full; they are not in it")
