"""``python -m tests.benchmarks [NAME ...]``: measure, print a line for each budget, exit 1 if one is missed.

NAME is one of the functions that measure: token_path, gaps, whole_requests, end_of_request, memory, whole_server; left
out, all of them.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from tests.benchmarks.budgets import IN_PROCESS
from tests.benchmarks.measure import Budget

PACKAGES = (
    "opentelemetry-sdk",
    "opentelemetry-util-genai",
    "prometheus-client",
    "fastapi",
    "uvicorn",
    "uvloop",
    "httptools",
)
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
    found: list[Measure] = list(IN_PROCESS)
    if find_spec("fastapi") and find_spec("uvicorn"):
        from tests.benchmarks.whole_server import whole_server

        found.append(whole_server)
    return {measure.__name__: measure for measure in found}


def main(names: Sequence[str] = ()) -> int:
    """Measure what is named; return the exit code."""
    known = measures()
    if unknown := [name for name in names if name not in known]:
        say(f"nothing here is called {', '.join(unknown)}; there are {', '.join(known)}")
        return 2
    say(installed())
    budgets = [budget for name in names or known for budget in known[name](say)]
    for budget in budgets:
        say(str(budget))
    return int(any(budget.verdict == "MISSED" for budget in budgets))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
