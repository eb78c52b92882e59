"""The command that ``run`` starts: its environment, its arguments, its signals."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_lifecycle._table.errors import Unusable

INSTRUMENT: Final = "opentelemetry-instrument"
NO_INSTRUMENT: Final = (
    f"{INSTRUMENT} is not installed beside the command: only what the server marks itself is recorded. For spans"
    " of frameworks, and engines instrumented from outside: pip install opentelemetry-distro"
)
OTHERS: Final = tuple(
    f"OTEL_EXPORTER_OTLP_{signal_}{setting}"
    for signal_ in ("", "TRACES_", "METRICS_", "LOGS_")
    for setting in ("ENDPOINT", "PROTOCOL", "HEADERS", "COMPRESSION", "CERTIFICATE", "INSECURE")
)
"""Settings that would send telemetry elsewhere, or in another form."""
OURS: Final = ("OTEL_LIFECYCLE_ENDPOINT", "OTEL_LIFECYCLE_PROTOCOL", "OTEL_LIFECYCLE_METRIC_INTERVAL")
METRIC_INTERVAL_MS: Final = 500
SPAN_DELAY_MS: Final = 200
"""A person is watching: the usual 5 s for spans and 60 s for metrics are too long."""
FORWARDED: Final = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)
FROM_TERMINAL: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGQUIT") if hasattr(signal, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The command to start: its arguments, its environment, and a remark for the user."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    remark: str | None = None


def launch_of(command: Sequence[str], endpoint: str, token: str | None, *, auto: bool) -> Launch:
    """Return how to start a command so that its telemetry comes to ``endpoint``; Unusable if there is no such command.

    ``auto``: start it under ``opentelemetry-instrument`` where that is installed.
    """
    program = shutil.which(command[0])
    if program is None:
        raise Unusable(f"{command[0]}: there is no such command")
    environment = environment_of(os.environ, endpoint, token)
    if not auto:
        return Launch(arguments=command, environment=environment)
    instrument = instrument_beside(program)
    if instrument is None:
        return Launch(arguments=command, environment=environment, remark=NO_INSTRUMENT)
    return Launch(arguments=[instrument, *command], environment=environment)


def instrument_beside(program: str) -> str | None:
    """Return ``opentelemetry-instrument`` of the environment that a program belongs to, else the one on the path.

    Another environment's would put its own packages before those of the command, so for a Python program only the one
    beside it counts.
    """
    beside = Path(program).parent / INSTRUMENT
    if os.access(beside, os.X_OK):
        return str(beside)
    return None if Path(program).name.startswith("python") else shutil.which(INSTRUMENT)


def environment_of(own: Mapping[str, str], endpoint: str, token: str | None) -> dict[str, str]:
    """Return the environment in which OpenTelemetry sends to ``endpoint``, soon; the user's other settings stay."""
    # A disabled SDK would leave the page empty, although the user asked to watch.
    made = {name: value for name, value in own.items() if name not in {*OTHERS, *OURS, "OTEL_SDK_DISABLED"}}
    made |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "otlp",
        # No command reads logs.
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_METRIC_EXPORT_INTERVAL": str(METRIC_INTERVAL_MS),
        "OTEL_BSP_SCHEDULE_DELAY": str(SPAN_DELAY_MS),
    }
    # The token timeline needs every token's time; a user's own choice holds.
    made.setdefault("OTEL_LIFECYCLE_TOKEN_TIMES", "true")
    if token is not None:
        # The variable has the form of W3C Baggage, in which a space is percent-encoded.
        made["OTEL_EXPORTER_OTLP_HEADERS"] = f"authorization=Bearer%20{token}"
    # The HTTP exporter obeys a proxy of the environment even for 127.0.0.1.
    for name in ("NO_PROXY", "no_proxy"):
        made[name] = ",".join(filter(None, [made.get(name), "127.0.0.1", "localhost"]))
    return made


async def run_child(launch: Launch) -> int:
    """Run the command with our own streams and return its exit code; signals go to it, 128 + n if one ended it."""
    process = await asyncio.create_subprocess_exec(*launch.arguments, env=dict(launch.environment))
    loop = asyncio.get_running_loop()
    for number in FORWARDED:
        loop.add_signal_handler(number, _forward, process, number)
    for number in FROM_TERMINAL:
        # A terminal sends these to every process of the group, and a second Ctrl-C means "at once" to many servers.
        handler = _ignore if _terminal_tells_all() else _forward
        loop.add_signal_handler(number, handler, process, number)
    try:
        code = await process.wait()
    finally:
        for number in (*FORWARDED, *FROM_TERMINAL):
            loop.remove_signal_handler(number)
    return code if code >= 0 else 128 - code


def _terminal_tells_all() -> bool:
    try:
        # A background job, a pipe or a closed stdin: nobody but us delivers the signal to the command.
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False


def _forward(process: asyncio.subprocess.Process, number: int) -> None:
    # The handler may run after the exit was collected; send_signal then raises ProcessLookupError.
    if process.returncode is None:
        process.send_signal(number)


def _ignore(process: asyncio.subprocess.Process, number: int) -> None:
    """The command has the signal already."""
