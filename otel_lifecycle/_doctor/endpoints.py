"""Whether an OTLP endpoint answers."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

# Two signals are asked one after the other, and a person waits.
TIMEOUT_S: Final = 2.0
SIGNALS: Final = ("traces", "metrics")
GRPC_PORT: Final = 4317
HTTP_PORT: Final = 4318


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a signal is sent: ``named`` by the user, or the default."""

    signal: str
    url: str
    grpc: bool
    named: bool


def endpoint_of(signal: str, environment: Mapping[str, str]) -> Endpoint:
    """Return where configure() sends a signal by these variables."""

    def first(*names: str) -> str:
        return next((value for name in names if (value := environment.get(name, "").strip())), "")

    upper = signal.upper()
    whole = first(f"OTEL_EXPORTER_OTLP_{upper}_ENDPOINT")
    base = first("OTEL_LIFECYCLE_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    protocol = first("OTEL_LIFECYCLE_PROTOCOL", f"OTEL_EXPORTER_OTLP_{upper}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    # The order of configure(): our own variable beats those of OpenTelemetry.
    given = base if environment.get("OTEL_LIFECYCLE_ENDPOINT") else whole or base
    url = given if "//" in given or not given else f"http://{given}"
    grpc = protocol == "grpc" or (not protocol and bool(url) and urlsplit(url).port == GRPC_PORT)
    default = f"http://localhost:{GRPC_PORT if grpc else HTTP_PORT}"
    # The OTLP specification appends the path to the general endpoint and takes the signal's own as it is.
    if not grpc and (not whole or given == base):
        url = f"{(url or default).rstrip('/')}/v1/{signal}"
    return Endpoint(signal=signal, url=url or default, grpc=grpc, named=bool(given))


def problem_of(endpoint: Endpoint) -> str | None:
    """Return why an endpoint cannot be sent to; None if it answers."""
    parts = urlsplit(endpoint.url)
    port = parts.port or (GRPC_PORT if endpoint.grpc else 443 if parts.scheme == "https" else 80)
    host = parts.hostname or "localhost"
    try:
        with socket.create_connection((host, port), TIMEOUT_S):
            pass
    except OSError as error:
        return f"nothing answers at {host}:{port} ({error.strerror or error})"
    # For gRPC the open port must do: a real call would need grpcio in this environment.
    return None if endpoint.grpc else _http_problem(endpoint.url, host, port)


def _http_problem(url: str, host: str, port: int) -> str | None:
    """Send an empty message, which every receiver takes and which leaves nothing behind."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", parts.path or "/", b"", {"Content-Type": "application/x-protobuf"})
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"{host}:{port} does not speak HTTP ({type(error).__name__}); is it the gRPC port?"
    finally:
        connection.close()
    # A receiver that wants credentials is there; whether the program has them is not known here.
    return (
        None if status < 400 or status in {401, 403} else f"{url} answers with status {status}: no OTLP is taken there"
    )
