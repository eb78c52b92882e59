"""How often ``compare`` tells two equal simulated runs apart, and how often it finds twice the slots.

    python -m tests.cli.verdicts_of_equal_runs [PAIRS]

Prints the rows of the table in ``tests/cli/README.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from otel_lifecycle._cli.commands.report import read_workload
from otel_lifecycle._cli.comparison import sides
from otel_lifecycle._cli.comparison.sides import Side
from otel_lifecycle._cli.comparison.verdicts import compare, usual_effect
from otel_lifecycle._cli.evidence.workload import Settings, Workload
from tests.cli.generator import Load, write


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A load, and how many runs of it make a side."""

    name: str
    load: Load
    runs: int = 1


CASES = (
    Case(name="4 slots, 92 % busy, 600 requests", load=Load(requests=600, rate=3.0)),
    Case(name="4 slots, 61 % busy, 600 requests", load=Load(requests=600, rate=2.0)),
    Case(name="4 slots, 92 % busy, 2000 requests", load=Load(requests=2000, rate=3.0)),
    Case(name="2 slots, 73 % busy, 150 requests", load=Load(requests=150, rate=1.2, slots=2)),
    Case(name="4 slots, 61 % busy, 5 runs of 150 requests", load=Load(requests=150, rate=2.0), runs=5),
)


def side(case: Case, folder: Path, seeds: Iterator[int], slots: int) -> Side:
    """Simulate one side."""
    return Side(name="side", sources=(), runs=[run(case.load, folder, next(seeds), slots) for _ in range(case.runs)])


def run(load: Load, folder: Path, seed: int, slots: int) -> Workload:
    """Simulate one run, write it down and read it."""
    file = folder / "run.json"
    with file.open("wb") as out:
        write(replace(load, seed=seed, slots=slots), out)
    return read_workload((str(file),), Settings(sample=sides.SAMPLE))


def told_apart(one: Side, other: Side) -> bool:
    """Whether any figure gets a verdict."""
    found = compare(one, other, usual_effect(one, other))
    return any(figure.verdict in {"better", "worse"} for figure in found)


def main(pairs: int = 40) -> None:
    """Print a row a case."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for case in CASES:
            seeds, slots = iter(range(1, 1_000_000)), case.load.slots
            equal = sum(
                told_apart(side(case, folder, seeds, slots), side(case, folder, seeds, slots)) for _ in range(pairs)
            )
            changes = max(1, pairs // 3)
            found = sum(
                told_apart(side(case, folder, seeds, slots), side(case, folder, seeds, 2 * slots))
                for _ in range(changes)
            )
            sys.stdout.write(f"| {case.name} | {equal} of {pairs} | {found} of {changes} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
