"""A real small model, and programs under ``opentelemetry-instrument``."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.integration.support_http import wait_for


def small_model() -> Path:
    """The file of a real model of 98 MB, fetched once for the whole project."""
    from examples.model import fetch

    return fetch()


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def instrumented(program: Path, *arguments: object, otlp: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``opentelemetry-instrument python program`` while the block runs, in a process group of its own.

    What it starts dies with it: LitServe's workers outlive their parent.
    """
    settings: Mapping[str, Any] = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OTEL_")},
        "OTEL_EXPORTER_OTLP_ENDPOINT": otlp,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_METRIC_EXPORT_INTERVAL": "300",
        "NO_PROXY": "127.0.0.1,localhost",
        **environment,
    }
    command = [
        sys.executable,
        "-c",
        "import sys; from opentelemetry.instrumentation.auto_instrumentation import run; sys.exit(run())",
        sys.executable,
        str(program),
        *map(str, arguments),
    ]
    process = subprocess.Popen(command, env=settings, start_new_session=True, cwd=program.parent)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for_http(process: subprocess.Popen[bytes], url: str, seconds: float = 300.0) -> None:
    """Return when the URL answers 200; AssertionError if the process ends before, or after the time."""

    def answers() -> bool:
        assert process.poll() is None, f"the server ended with {process.returncode}"
        try:
            return httpx.get(url, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    wait_for(answers, seconds)
