"""Programs as processes of their own, exporting to the receiver of a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.otlp_receiver import OtlpReceiver

ROOT = Path(__file__).parents[2]
PROGRAMS = "tests.faults.programs"
REQUESTS = "inference.requests"


def environment(receiver: OtlpReceiver | None, **more: object) -> dict[str, str]:
    """Return the variables of a process that exports to the receiver, every 200 ms unless told otherwise."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    # Python 3.12 and later say at each fork that the process has threads, as every one with an exporter has.
    variables["PYTHONWARNINGS"] = "ignore:This process:DeprecationWarning"
    variables |= {"PYTHONUNBUFFERED": "1", "OTEL_METRIC_EXPORT_INTERVAL": "200", "OTEL_BSP_SCHEDULE_DELAY": "200"}
    if receiver is not None:
        variables |= {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": receiver.scheme}
    return variables | {name: str(value) for name, value in more.items()}


def command(program: str, *arguments: object) -> list[str]:
    """Return the command line of a program."""
    return [sys.executable, "-m", f"{PROGRAMS}.{program}", *map(str, arguments)]


def run(
    receiver: OtlpReceiver | None, program: str, *arguments: object, **variables: object
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(
        command(program, *arguments),
        cwd=ROOT,
        env=environment(receiver, **variables),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@contextmanager
def started(
    receiver: OtlpReceiver | None,
    argv: list[str],
    log: Path,
    *,
    inherit: Sequence[int] = (),
    stdin: int | None = None,
    **variables: Any,
) -> Iterator[subprocess.Popen[str]]:
    """Start a command as a process group of its own; whatever is left of the group is killed at the end."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            argv,
            cwd=ROOT,
            env=environment(receiver, **variables),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            pass_fds=inherit,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # Workers outlive a parent that was killed: the group is the only thing that names them all.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # What it was told and never read goes with it.
                    pipe.close()


def total(receiver: OtlpReceiver, metric: str = REQUESTS, **match: Any) -> float:
    """Return the newest values of a metric, summed over every instance and series; ``__`` in a name is a dot."""
    wanted = {name.replace("__", "."): value for name, value in match.items()}
    return sum(
        point["value"] if point["value"] is not None else point["count"] or 0
        for point in receiver.points(metric)
        if wanted.items() <= point["attributes"].items()
    )


def by_instance(receiver: OtlpReceiver, metric: str = REQUESTS) -> dict[str, float]:
    """Return the newest values of a metric, summed for each service.instance.id."""
    counted: Counter[str] = Counter()
    for point in receiver.points(metric):
        counted[str(point["resource"].get("service.instance.id"))] += point["value"]  # type: ignore[assignment,operator]
    return dict(counted)


def kept_spans(receiver: OtlpReceiver) -> int:
    """Return how many request spans arrived."""
    return sum(1 for span in receiver.spans() if "inference.outcome" in span["attributes"])
