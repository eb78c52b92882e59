"""What can be measured, by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Final

from tests.benchmarks import interference, marks, requests, tokens
from tests.benchmarks.measure import Budget, allow

RESERVED: Final = {"whole_server": 290}
"""Seconds that are kept for a part that others come before; what noise takes of them is not theirs."""

PROCESSES = {"unsampled_requests": 9}
"""In how many processes a part is measured.  The figures of two processes differ by up to a tenth, whatever the rounds
in each: by where code and data lie, and by how texts are hashed, which is drawn anew for each."""

Say = Callable[[str], None]
Measure = Callable[[Say], Iterator[Budget]]


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


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


def measured(name: str, seconds: float) -> list[Budget]:
    """Measure what is named, in no more than so many seconds."""
    allow(seconds)
    return list(measures()[name](say))
