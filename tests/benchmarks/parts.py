"""What can be measured, by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from tests.benchmarks import interference, marks, requests, tokens
from tests.benchmarks.measure import Budget, Say, allow

RESERVED: Final = {"whole_server": 290}
"""Seconds that are kept for a part that others come before; what noise takes of them is not theirs."""


@dataclass(frozen=True)
class Processes:
    """In how many processes a part is measured, one after the other, and for how many seconds in each."""

    fewest: int
    most: int
    seconds: float


PROCESSES: Final = {"unsampled_requests": Processes(9, 31, 10), "long_requests": Processes(5, 11, 12)}
"""Parts whose figures differ by up to a tenth between two processes, whatever the rounds in each: by where code and
data lie, and by how texts are hashed, which is drawn anew for each."""

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
        requests.long_requests,
        requests.unsampled_requests,
        requests.ends_of_requests,
        interference.interference,
        requests.fallback,
    ]
    if find_spec("fastapi") and find_spec("uvicorn"):
        from tests.benchmarks.whole_server import more_servers, whole_server

        found += [whole_server, more_servers]
    return {measure.__name__: measure for measure in found}


def measured(name: str, seconds: float, quiet: bool = False) -> list[Budget]:
    """Measure what is named, in no more than so many seconds; ``quiet``: its rows are all that is wanted of it."""
    allow(seconds)
    return list(measures()[name](_nothing if quiet else say))


def _nothing(line: str) -> None:
    """Print nothing."""
