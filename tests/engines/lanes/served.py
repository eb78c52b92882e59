"""Engines without a server of their own, behind the small one of ``engine_app``: their own figures beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx

from tests.engines.figures import Figure, Outcome, worst
from tests.engines.lanes import shared
from tests.engines.load import Ask, Target, mix
from tests.engines.ours import Exported, wait_until_exported
from tests.engines.serving import EngineServer, engine_environ, free_port
from tests.support.otlp_receiver import HttpReceiver

REQUESTS: Final = 224
REFUSED: Final = 400
OUTPUT: Final = {"inference.token.direction": "output"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a run left: the load, our spans, and for each request that ended what the engine said and our attributes."""

    load: shared.Run
    ours: Exported
    engine: Mapping[str, Mapping[str, Any]]
    mine: Mapping[str, Mapping[str, Any]]
    evictions: int

    def worst(self, name: str, theirs: str, ours: str, within: float) -> Figure:
        """The request whose figure differs most, of those with one choice."""
        pairs = [
            (float(one[theirs]), float(self.mine[key][ours]))
            for key, one in self.engine.items()
            if key in self.mine and one["choices"] == 1 and one.get(theirs) is not None and ours in self.mine[key]
        ]
        engine, mine = worst(pairs) or (None, None)
        return Figure(name=name, engine=engine, ours=mine, within=within, unit="s", samples=len(pairs))


def run_served(python: Path, scratch: Path, module: str, model: Path, asks: list[Ask]) -> Served:
    """Start the server, drive the load and collect both sides; EngineFailed if the server does not start."""
    port = free_port()
    command = [str(python), "-m", module, str(model), str(port)]
    with HttpReceiver() as receiver:
        environ = engine_environ(python, receiver, scratch)
        server = EngineServer(command, port=port, ready="/health", environ=environ, log=scratch / "server.log")
        with server:
            load = shared.run_load(server, Target(base=server.base, model="tiny", refused_words=1500), asks, scratch)
            told = httpx.get(f"{server.base}/engine", timeout=30).json()
        served = sum(one.status != REFUSED for one in load.told)
        wait_until_exported(receiver, lambda: served)
        ours = Exported(receiver)
    known = ours.by_id()
    engine = {name: one for name, one in told["requests"].items() if "tokens" in one}
    ids = {name: one["id"] for name, one in told["requests"].items()}
    mine = {name: known[number]["attributes"] for name, number in ids.items() if number in known}
    traced = {one.ask.trace_id: known[ids[one.ask.name]] for one in load.told if ids.get(one.ask.name) in known}
    return Served(load=replace(load, spans=traced), ours=ours, engine=engine, mine=mine, evictions=told["evictions"])


def completions(**options: Any) -> list[Ask]:
    """Return the load: completions alone, and two choices as a whole answer."""
    return [replace(ask, path="/v1/completions", streamable=ask.kind != "choices") for ask in mix(REQUESTS, **options)]


def common(outcome: Outcome, served: Served) -> None:
    """Add the figures that need nothing of one engine."""
    answered = [one for one in served.load.told if one.status != REFUSED]
    shared.soundness(outcome, served.ours, answered)
    shared.clients(outcome, answered, served.load.spans)
    shared.loads(outcome, served.load.told)
    outcome.floor("evictions", served.evictions, 1)
    refused = len(served.load.told) - len(answered)
    outcome.notes.append(f"{refused} refused requests never reach the engine; the middleware of a server sees those")
    shared.cost(outcome, served.load)
