"""``otel-lifecycle live``."""

from __future__ import annotations

import asyncio

import click

from otel_lifecycle._cli.commands import options
from otel_lifecycle._cli.commands.live_options import finish_saving, live_options, saving_to, token_for
from otel_lifecycle._live.kept import Kept
from otel_lifecycle._live.receiver import Receiver
from otel_lifecycle._live.session import LiveSettings, serving, until_stopped
from otel_lifecycle._live.stream import Status

EXAMPLES = options.examples(
    "otel-lifecycle live",
    "otel-lifecycle live --port 0 --grpc-port 0 --save run.jsonl.zst",
)


@click.command(
    help="An OTLP receiver and a page that shows requests as they come, for servers that export already.\n\n"
    f"It listens where OTLP is sent by default. Stop it with Ctrl-C.{EXAMPLES}"
)
@click.option("--port", default=4318, show_default=True, help="Port of OTLP/HTTP and of the page; 0 is a free one.")
@click.option("--grpc-port", default=4317, show_default=True, help="Port of OTLP/gRPC; 0 is a free one.")
@live_options
@options.shape_option
def live(port: int, grpc_port: int, host: str, token: str | None, keep: int, save: str | None, shape: str) -> None:
    """Receive and show."""
    settings = LiveSettings(
        host=host, port=port, grpc_port=grpc_port, token=token_for(host, token), shape=shape, title="live"
    )
    with saving_to(save, spool=False) as saving:
        receiver = Receiver(Kept(keep), shape=shape, sink=None if saving is None else saving.write)
        try:
            asyncio.run(_serve(receiver, settings))
        finally:
            # Also after Ctrl-C and errors.  Without a request there is no table to write.
            finish_saving(saving, save if receiver.requests else None, shape)
    click.echo(f"{receiver.requests:,} requests received", err=True)


async def _serve(receiver: Receiver, settings: LiveSettings) -> None:
    status = Status("waiting for telemetry")
    async with serving(receiver, status, settings) as served:
        click.echo(f"live page: {served.page}", err=True)
        click.echo(
            f"OTLP: http://{served.host}:{served.port} (HTTP), {served.host}:{served.grpc_port} (gRPC)", err=True
        )
        click.echo("stop with Ctrl-C", err=True)
        await until_stopped()
