"""``python -m tests.benchmarks [NAME ...]``: measure, print a line for each budget, exit 1 unless all are met.

NAME is one of the functions that measure: token_path, marks_at_a_time, gaps, memory, sampled_requests,
unsampled_requests, ends_of_requests, interference, fallback, whole_server.  Left out, all of these are run, which takes
less than eight minutes: what is not settled by then is untold.  more_servers has no budget and is run by name only.
Beside the table a page with plots is written to ``.benchmarks/index.html``.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

from tests.benchmarks import interference, marks, requests, tokens
from tests.benchmarks.measure import Budget, allow
from tests.benchmarks.page import write

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
Say = Callable[[str], None]
Measure = Callable[[Say], Iterator[Budget]]


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def installed() -> str:
    """Return the versions that the figures depend on."""
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"no {package}")
    return ", ".join(found)


def measures() -> dict[str, Measure]:
    """Return what can be measured with what is installed, by name."""
    found: list[Measure] = [
        tokens.token_path,
        marks.marks_at_a_time,
        tokens.gaps,
        tokens.memory,
        requests.sampled_requests,
        requests.unsampled_requests,
        requests.ends_of_requests,
        interference.interference,
        requests.fallback,
    ]
    if find_spec("fastapi") and find_spec("uvicorn"):
        from tests.benchmarks.whole_server import more_servers, whole_server

        found += [whole_server, more_servers]
    return {measure.__name__: measure for measure in found}


def main(names: Sequence[str] = ()) -> int:
    """Measure what is named; return the exit code.  A budget that noise hides counts as missed."""
    known = measures()
    if unknown := [name for name in names if name not in known]:
        say(f"nothing here is called {', '.join(unknown)}; there are {', '.join(known)}")
        return 2
    began, versions = monotonic(), installed()
    allow(MOST_SECONDS)
    say(versions)
    budgets = [budget for name in names or known if name in names or name not in BY_NAME for budget in known[name](say)]
    for budget in budgets:
        say(str(budget))
    say(f"  {monotonic() - began:.0f} s; plots: {write(PAGE, budgets, versions)}")
    return int(any(budget.verdict != "met" for budget in budgets))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
