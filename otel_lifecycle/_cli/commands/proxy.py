"""``otel-lifecycle proxy``."""

from __future__ import annotations

import click

from otel_lifecycle._cli.commands import options

EXAMPLES = options.examples(
    "otel-lifecycle proxy --to http://127.0.0.1:11434 --provider ollama",
    "otel-lifecycle proxy --to http://127.0.0.1:8080 --port 9000 --file run.jsonl",
)


@click.command(
    help="A reverse proxy that watches the requests of an engine that is not Python.\n\n"
    "Bodies pass byte for byte. It sees arrival, output and end; queue, preprocessing and prefill inside the engine "
    f"are unknown and stay absent. Telemetry goes where OTEL_* variables say, or into --file.{EXAMPLES}"
)
@click.option("--to", "upstream", required=True, metavar="URL", help="Base URL of the engine.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, help="Port to listen on.")
@click.option("--provider", help="gen_ai.provider.name of the requests.")
@click.option("--backend", help="inference.backend.name of the requests.")
@click.option("--service-name", default="inference-proxy", show_default=True, help="service.name of the telemetry.")
@click.option("--file", "file", metavar="PATH", help="Write OTLP JSON lines there.")
def proxy(
    upstream: str,
    host: str,
    port: int,
    provider: str | None,
    backend: str | None,
    service_name: str,
    file: str | None,
) -> None:
    """Serve until it is stopped."""
    # Each of them needs an extra, or takes long to import; the help does not need any.
    import uvicorn

    import otel_lifecycle as lifecycle
    from otel_lifecycle.errors import ConfigurationError
    from otel_lifecycle.integrations.reverse_proxy import proxy_app

    try:
        app = proxy_app(upstream, provider=provider, backend=backend)
        lifecycle.configure(service_name=service_name, file=file)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    click.echo(f"http://{host}:{port} passes requests on; stop with Ctrl-C", err=True)
    # No access log: a query may hold a key.
    uvicorn.run(app, host=host, port=port, access_log=False, log_level="warning")
    # uvicorn returns after a signal; the last batch has not been sent then.
    lifecycle.shutdown()
