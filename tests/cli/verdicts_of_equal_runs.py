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
from typing import Any, Final

from otel_lifecycle._analysis.comparison.sides import Run, Side, run_of
from otel_lifecycle._analysis.comparison.verdicts import compare, usual_effect
from otel_lifecycle._analysis.settings import WorkloadSettings
from otel_lifecycle._cli.commands.report import read_workload
from otel_lifecycle._core.slo import Slo
from tests.cli.generator import START_NS, Load, Simulated, encode, line, simulate, spans_of

SLO: Final = Slo(ttft=1.0)
RATED: Final = frozenset({"goodput", "timeout_rate", "success_rate"})
"""What is 1 or 0 of a request, and depends on the queue as much as its latency does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A load, and how many runs of it make a side; ``patience``: seconds in the queue after which a request is out."""

    name: str
    load: Load
    runs: int = 1
    patience: float = float("inf")


CASES = (
    Case(name="4 slots, 92 % busy, 600 requests", load=Load(requests=600, rate=3.0)),
    Case(name="4 slots, 61 % busy, 600 requests", load=Load(requests=600, rate=2.0)),
    Case(name="4 slots, 92 % busy, 2000 requests", load=Load(requests=2000, rate=3.0)),
    Case(name="4 slots, 92 % busy, 800 requests, out after 2 s", load=Load(requests=800, rate=3.0), patience=2.0),
    Case(name="2 slots, 73 % busy, 150 requests", load=Load(requests=150, rate=1.2, slots=2)),
    Case(name="4 slots, 61 % busy, 5 runs of 150 requests", load=Load(requests=150, rate=2.0), runs=5),
)


def side(case: Case, folder: Path, seeds: Iterator[int], slots: int) -> Side:
    """Simulate one side."""
    return Side(name="side", sources=(), runs=[run(case, folder, next(seeds), slots) for _ in range(case.runs)])


def run(case: Case, folder: Path, seed: int, slots: int) -> Run:
    """Simulate one run, write it down and read it."""
    load, file = replace(case.load, seed=seed, slots=slots), folder / "run.json"
    with file.open("wb") as out:
        for request in simulate(load):
            spans = spans_of(request, load)
            late = request.admit - request.arrive > case.patience
            out.write(line([timed_out(spans[0], request, case.patience)] if late else spans))
    return run_of(read_workload((str(file),), WorkloadSettings(slo=SLO)))


def timed_out(span: dict[str, Any], request: Simulated, patience: float) -> dict[str, Any]:
    """Return the span of a request that the server gave up in its queue."""
    ended = {
        "gen_ai.request.model": "smollm2",
        "gen_ai.usage.input_tokens": request.input_tokens,
        "inference.outcome": "timed_out",
        "inference.failure.stage": "queue",
        "inference.end.reason": "deadline",
        "inference.e2e": patience,
    }
    end = str(START_NS + round((request.arrive + patience) * 1e9))
    return {**span, "attributes": encode(ended), "endTimeUnixNano": end, "events": []}


def told_apart(one: Side, other: Side) -> set[str]:
    """Return the figures that get a verdict."""
    return {figure.metric for figure in compare(one, other, usual_effect(one, other)) if figure.told}


def main(pairs: int = 40) -> None:
    """Print a row a case."""
    with TemporaryDirectory() as name:
        for case in CASES:
            sys.stdout.write(row(case, pairs, Path(name)))
            sys.stdout.flush()


def row(case: Case, pairs: int, folder: Path) -> str:
    """Return the row of a case."""
    seeds, slots, changes = iter(range(1, 1_000_000)), case.load.slots, max(1, pairs // 3)
    equal = [told_apart(side(case, folder, seeds, slots), side(case, folder, seeds, slots)) for _ in range(pairs)]
    changed = [
        told_apart(side(case, folder, seeds, slots), side(case, folder, seeds, 2 * slots)) for _ in range(changes)
    ]
    counted = [sum(bool(told & RATED) for told in equal), sum(map(bool, equal))]
    told = " | ".join(f"{count} of {pairs}" for count in counted)
    return f"| {case.name} | {told} | {sum(map(bool, changed))} of {changes} |\n"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
