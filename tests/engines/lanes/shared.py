"""What the lanes have in common: running the load, and the figures that every engine is held to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.engines import meter
from tests.engines.figures import MINIMUM_DISCONNECTS, MINIMUM_REQUESTS, Figure, Outcome
from tests.engines.load import Ask, Target, Told, drive
from tests.engines.ours import Exported
from tests.engines.serving import EngineServer
from tests.support.plain import Span

OK: Final = 200
MOST_CPU: Final = 0.01
"""The largest share of the engine's CPU time that hooks may take."""


@dataclass(slots=True, kw_only=True)
class Run:
    """A load that was driven, with the CPU it cost: the server's, and that of the processes with hooks.

    ``spans``: our request span for the trace of each client, where a lane has joined them by other means.  ``hooked``:
    in how many of the server's processes a hook has run.
    """

    told: list[Told]
    engine_cpu: float
    hooks: Mapping[str, int] = field(default_factory=dict)
    spans: Mapping[str, Span] = field(default_factory=dict)
    hooked: int = 0

    def and_then(self, later: Run) -> Run:
        """Return both loads as one."""
        hooks = {name: count + later.hooks[name] for name, count in self.hooks.items()}
        cpu = self.engine_cpu + later.engine_cpu
        return Run(told=self.told + later.told, engine_cpu=cpu, hooks=hooks, hooked=later.hooked)


def run_load(server: EngineServer, target: Target, asks: Sequence[Ask], metered: Path, *, at_once: int = 12) -> Run:
    """Drive the load; CPU counts from its start to its end."""
    before, cpu = meter.read(metered), server.cpu_seconds()
    told = asyncio.run(drive(target, asks, at_once=at_once))
    meter.wait_until_written(metered)
    after = meter.read(metered)
    hooks = {name: after[name] - before[name] for name in after}
    cpu = server.cpu_seconds() - cpu
    return Run(told=told, engine_cpu=cpu, hooks=hooks, hooked=meter.hooked(metered))


def cost(outcome: Outcome, run: Run) -> None:
    """Add what the hooks cost, and that they ran in the process that answers clients alone."""
    hooks = run.hooks["hooks_ns"] / 1e9
    share = hooks / run.engine_cpu if run.engine_cpu else None
    outcome.figures.append(Figure(name="CPU of the hooks, share", engine=MOST_CPU, ours=share, at_least=True))
    outcome.figures.append(Figure(name="processes in which hooks ran", engine=1, ours=run.hooked))
    outcome.notes.append(
        f"hooks: {hooks:.3f} s in {run.hooks['calls']} calls; engine {run.engine_cpu:.1f} s, "
        f"its processes that loaded the drop-in {run.hooks['process_ns'] / 1e9:.1f} s"
    )


def loads(outcome: Outcome, told: Sequence[Told]) -> None:
    """Add the floors that every load must reach."""
    outcome.floor("requests", len(told), MINIMUM_REQUESTS)
    outcome.floor("disconnects", sum(one.left for one in told), MINIMUM_DISCONNECTS)
    outcome.floor("answers with two choices", sum(one.ask.kind == "choices" and one.status == OK for one in told), 1)
    outcome.floor("refused requests", sum(400 <= one.status < 500 for one in told), 1)


def clients(outcome: Outcome, told: Sequence[Told], spans: Mapping[str, Span]) -> None:
    """Add what clients measured: their times at least ours, and each that left a cancelled request.

    ``spans``: our request span for the trace of each client.
    """
    seen = {
        "TTFT": [(one.ask.trace_id, one.ttft) for one in told if one.ttft is not None],
        "E2E": [(one.ask.trace_id, one.e2e) for one in told if one.e2e is not None],
    }
    outcome.figures += [_closest(name, times, spans) for name, times in seen.items()]
    left = [one for one in told if one.left]
    cancelled = sum(
        spans[one.ask.trace_id]["attributes"]["inference.outcome"] == "cancelled"
        for one in left
        if one.ask.trace_id in spans
    )
    outcome.figures.append(Figure(name="disconnects that are cancelled requests", engine=len(left), ours=cancelled))


def _closest(name: str, seen: Sequence[tuple[str, float]], spans: Mapping[str, Span]) -> Figure:
    """Return the client whose time is least above ours, or most below it."""
    attribute = f"inference.{name.lower()}"
    pairs = [
        (client, float(spans[trace]["attributes"][attribute]))
        for trace, client in seen
        if trace in spans and attribute in spans[trace]["attributes"]
    ]
    closest = min(pairs, key=lambda pair: pair[0] - pair[1], default=(None, None))
    return Figure(
        name=f"{name} of clients, the closest",
        engine=closest[0],
        ours=closest[1],
        at_least=True,
        unit="s",
        samples=len(pairs),
    )


def soundness(outcome: Outcome, exported: Exported, told: Sequence[Told]) -> None:
    """Add that every request of a client is one request, and that none was violated."""
    outcome.figures.append(Figure(name="requests", engine=len(told), ours=len(exported.requests)))
    kinds = [
        str(span["attributes"]["inference.violations"])
        for span in exported.requests
        if span["attributes"].get("inference.violations")
    ]
    outcome.figures.append(Figure(name="violations", engine=0, ours=len(kinds)))
    outcome.notes += [f"violation: {kind}" for kind in sorted(set(kinds))]
