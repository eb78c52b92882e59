"""``python -m tests.benchmarks [NAME ...]``: measure, print a line for each budget, exit 1 unless all are met.

NAME is one of the functions that measure: token_path, marks_at_a_time, gaps, memory, sampled_requests, long_requests,
unsampled_requests, ends_of_requests, interference, fallback, whole_server.  Left out, all of these are run, which takes
less than eight minutes: what is not settled by then is untold.  more_servers has no budget and is run by name only.
Each is measured in a process of its own, some in several: what another one has left in memory slows code down that runs
once a request, and a figure must not depend on what was measured before it.  Beside the table a page with plots is
written to ``.benchmarks/index.html``.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from time import monotonic

from tests.benchmarks.measure import Budget, of_processes, say_costs
from tests.benchmarks.page import write
from tests.benchmarks.parts import PROCESSES, RESERVED, Processes, measured, measures, say

PACKAGES = (
    "opentelemetry-sdk",
    "opentelemetry-util-genai",
    "prometheus-client",
    "fastapi",
    "uvicorn",
    "uvloop",
    "httptools",
)
PAGE = Path(__file__).parents[2] / ".benchmarks" / "index.html"
MOST_SECONDS = 470
"""All rows together take no more; those that noise keeps from an answer are cut short, and untold."""

BY_NAME = {"more_servers"}


def installed() -> str:
    """Return the versions that the figures depend on."""
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"no {package}")
    return ", ".join(found)


def measured_alone(name: str, seconds: float, *, quiet: bool = False) -> list[Budget]:
    """Measure what is named in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(measured, name, seconds, quiet).result()


def measured_often(name: str, processes: Processes, seconds: float) -> list[Budget]:
    """Measure what is named in as many processes as it takes to tell, in no more than so many seconds."""
    end = monotonic() + seconds
    runs: list[list[Budget]] = []
    rows: list[Budget] = []
    while len(runs) < processes.most and (not runs or monotonic() < end - processes.seconds):
        runs.append(measured_alone(name, processes.seconds, quiet=True))
        rows = [of_processes(row) for row in zip(*runs, strict=True)]
        if len(runs) >= processes.fewest and all(row.verdict != "untold" for row in rows):
            break
    say(f"{name}, medians of {len(runs)} processes:")
    for row in rows:
        say_costs(say, row)
    return rows


def main(names: Sequence[str] = ()) -> int:
    """Measure what is named; return the exit code.  A budget that noise hides counts as missed."""
    known = measures()
    if unknown := [name for name in names if name not in known]:
        say(f"nothing here is called {', '.join(unknown)}; there are {', '.join(known)}")
        return 2
    began, versions = monotonic(), installed()
    say(versions)
    budgets: list[Budget] = []
    to_come = [*(names or [name for name in known if name not in BY_NAME])]
    while to_come:
        name = to_come.pop(0)
        left = MOST_SECONDS - sum(RESERVED.get(later, 0) for later in to_come) - (monotonic() - began)
        if name in PROCESSES:
            budgets += measured_often(name, PROCESSES[name], left)
        else:
            budgets += measured_alone(name, left)
    for budget in budgets:
        say(str(budget))
    say(f"  {monotonic() - began:.0f} s; plots: {write(PAGE, budgets, versions)}")
    return int(any(budget.verdict != "met" for budget in budgets))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
