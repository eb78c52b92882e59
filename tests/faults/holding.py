"""How long a fault holds a serving thread: our requests beside the same spans made plainly, in turns within one run.

Each contender is a process of its own, so that nothing but its own exporter disturbs its serving thread; while one has
its turn the others stand still.  A figure is the median over the rounds of what neighbours in a round have to do with
each other, so it needs no clock but the one that both of them had.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.measure import Interval, middle
from tests.faults.programs.held import Sample
from tests.faults.running import command, started
from tests.support.otlp_receiver import HttpReceiver

OFTEN = {"OTEL_METRIC_EXPORT_INTERVAL": 50, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": 128}
"""Collections, and exports of spans, fall into every turn."""
TO_STEADY = 450
"""Requests whose spans fill the queue of an exporter that sends none."""

UP, ILL = "up", "ill"
Who = tuple[str, str]
"""A kind, and the state of what it exports to."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is done to the receiver of the spans, and with which settings its exporter runs.

    ``all_signals``: metrics go there too; else they go where all is well, and collections go on.
    """

    inflict: Callable[[HttpReceiver], None]
    settings: Mapping[str, Any] = field(default_factory=dict)
    all_signals: bool = False


class Turns:
    """What the requests of a contest took, turn by turn."""

    def __init__(self, turns: Mapping[Who, list[list[Sample]]]) -> None:
        self._turns = turns

    def samples(self, kind: str, state: str, figure: str) -> list[int]:
        """Return a figure of every request, sorted."""
        return sorted(getattr(sample, figure) for turn in self._turns[kind, state] for sample in turn)

    def by_fault(self, kind: str, figure: str) -> Interval:
        """Return how many times what it is without the fault a figure is with it."""
        return middle(self._ratios((kind, ILL), (kind, UP), figure))

    def beside_plain(self, figure: str) -> Interval:
        """Return how many times as much the fault makes of ours as of plain spans."""
        ours, plain = (self._ratios((kind, ILL), (kind, UP), figure) for kind in ("ours", "plain"))
        return middle([mine / theirs for mine, theirs in zip(ours, plain, strict=True)])

    def over_plain(self, figure: str) -> Interval:
        """Return how many times that of plain spans a figure of ours is, without a fault."""
        return middle(self._ratios(("ours", UP), ("plain", UP), figure))

    def waited(self, kind: str, state: str) -> float:
        """Return the share of requests during which the thread waited."""
        waits = self.samples(kind, state, "whole_waits")
        return sum(map(bool, waits)) / len(waits)

    def _ratios(self, one: Who, other: Who, figure: str) -> list[float]:
        ours, theirs = (
            [median(getattr(sample, figure) for sample in turn) for turn in self._turns[who]] for who in (one, other)
        )
        return [mine / its for mine, its in zip(ours, theirs, strict=True)]


class Contest:
    """The contenders of one fault."""

    def __init__(self, processes: Mapping[Who, subprocess.Popen[str]], receivers: tuple[HttpReceiver, ...]) -> None:
        self._processes = processes
        self._receivers = receivers

    def rounds(self, number: int, requests: int, *manner: str) -> Turns:
        """Let each have its turn in each round, every other round backwards."""
        turns: dict[Who, list[list[Sample]]] = {who: [] for who in self._processes}
        order = list(turns)
        for _ in range(number):
            for who in order:
                turns[who].append(self.turn(who, requests, *manner))
            order.reverse()
            for receiver in self._receivers:
                receiver.clear()
        return Turns(turns)

    def turn(self, who: Who, requests: int, *manner: str) -> list[Sample]:
        """Let one serve so many requests."""
        process = self._processes[who]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{' '.join((str(requests), *manner))}\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer, f"{who} has ended: {process.wait(10)}"
        return [Sample(*sample) for sample in json.loads(answer)]


@contextmanager
def contest(fault: Fault, logs: Path, *, ours: str = "ours", warm_up: int = TO_STEADY) -> Iterator[Contest]:
    """Start ours and plain spans, each once with a receiver that is well and once with one that is ill."""
    with ExitStack() as stack:
        well, ill = stack.enter_context(HttpReceiver()), stack.enter_context(HttpReceiver())
        metrics = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{well.endpoint}/v1/metrics"}
        settings = {UP: {**OFTEN, **metrics}, ILL: {**OFTEN, **fault.settings}}
        if not fault.all_signals:
            settings[ILL] |= metrics
        processes = {
            (name, state): stack.enter_context(
                started(
                    receiver,
                    command("held", kind),
                    logs / f"{name} {state}",
                    stdin=subprocess.PIPE,
                    **settings[state],
                )
            )
            for name, kind in (("ours", ours), ("plain", "plain"))
            for state, receiver in ((UP, well), (ILL, ill))
        }
        contenders = Contest(processes, (well, ill))
        fault.inflict(ill)
        contenders.rounds(1, warm_up)
        yield contenders
