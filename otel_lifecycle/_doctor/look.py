"""Starts a program, lets a probe look at it from inside, and ends it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypedDict

from otel_lifecycle._table.errors import Unusable

SITE: Final = Path(__file__).parent / "site"
CONFIGURED: Final = (
    sys.executable,
    "-c",
    "import sys, otel_lifecycle; otel_lifecycle.configure(); sys.otel_lifecycle_look()",
)
"""The program to look at without a command: one that calls configure() with these variables."""
# Beyond the wait: the interpreter has to start and import before the probe's clock runs.
GRACE_S: Final = 20.0
POLL_S: Final = 0.05


class Layer(TypedDict, total=False):
    """A processor, reader or exporter by its class, what it holds, and where it sends."""

    endpoint: str
    inner: list[Layer]


class EngineFound(TypedDict, total=False):
    """An engine that is installed, the instrumentor for it, and whether that is active."""

    instrumentor: str
    engine: str
    version: str
    wanted: str
    active: bool
    error: str


class Providers(TypedDict, total=False):
    """The global providers of a program, by class names; None for what the SDK does not show."""

    api: bool
    sdk: bool
    tracer: str
    meter: str
    processors: list[dict[str, object]] | None
    readers: list[dict[str, object]] | None
    sampler: str


class ProbeReport(TypedDict, total=False):
    """What the probe wrote."""

    python: str
    executable: str
    ended: bool
    versions: dict[str, str]
    providers: Providers
    engines: list[EngineFound]
    settings: str | None
    known_variables: list[str]
    errors: list[str]


def look_at(command: Sequence[str], environment: Mapping[str, str], wait: float) -> ProbeReport:
    """Run a command for ``wait`` seconds and return what a probe within it saw.

    Raises Unusable where there is no such command, or where no Python of it started.
    """
    if shutil.which(command[0]) is None:
        raise Unusable(f"{command[0]}: there is no such command")
    with tempfile.TemporaryDirectory(prefix="otel-lifecycle-") as folder:
        target = Path(folder) / "seen.json"
        # First on the path, so that Python finds our sitecustomize; it imports the hidden one itself.
        path = os.pathsep.join(filter(None, [str(SITE), environment.get("PYTHONPATH")]))
        own = {
            **environment,
            "PYTHONPATH": path,
            "OTEL_LIFECYCLE_DOCTOR_FILE": str(target),
            "OTEL_LIFECYCLE_DOCTOR_WAIT": str(wait),
        }
        # A session of its own, so that its workers end with it.  Its output goes to stderr: stdout is for the result.
        process = subprocess.Popen(command, env=own, stdout=sys.stderr, start_new_session=True)  # noqa: S603 - the user's
        try:
            seen = _read(target, process, wait + GRACE_S)
        finally:
            _end(process)
    if seen is None:
        raise Unusable(
            f"{command[0]}: none of its Python processes could be examined (is it a Python program? does it start?)"
        )
    return seen


def _read(target: Path, process: subprocess.Popen[bytes], longest: float) -> ProbeReport | None:
    until = time.monotonic() + longest
    while not target.exists():
        # Asked again after the exit: the probe may have written its file in between.
        if process.poll() is not None and not target.exists():
            return None
        if time.monotonic() > until:
            return None
        time.sleep(POLL_S)
    found: ProbeReport = json.loads(target.read_text("utf-8"))
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the program with its workers; they are a session of their own."""
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        if process.poll() is not None:
            return
        # The group still exists: poll returned None, so the leader has not been collected.
        os.killpg(process.pid, number)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
