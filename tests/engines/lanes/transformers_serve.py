"""``transformers serve`` with continuous batching: our figures beside what its clients were told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.engines.figures import Figure, Outcome
from tests.engines.lanes import shared
from tests.engines.lanes.vllm import make_model
from tests.engines.load import Ask, Target, mix
from tests.engines.ours import Exported, wait_until_exported
from tests.engines.serving import EngineServer, engine_environ, free_port
from tests.support.otlp_receiver import HttpReceiver

REQUESTS: Final = 224
OPTIONS: Final = (
    "--continuous-batching --attn-implementation sdpa --device cpu --cb-num-blocks 64 --cb-max-batch-tokens 256"
)


def run(python: Path, scratch: Path, version: str) -> Outcome:
    """Run the lane; EngineFailed if the server does not start."""
    model = scratch / "model"
    make_model(python, model)
    port = free_port()
    command = [str(python), "-m", "otel_lifecycle.integrations.transformers", "serve", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), *OPTIONS.split(" ")]
    with HttpReceiver() as receiver:
        environ = engine_environ(python, receiver, scratch)
        server = EngineServer(command, port=port, ready="/health", environ=environ, log=scratch / "server.log")
        with server:
            load = shared.run_load(server, Target(base=server.base, model=str(model)), asks(), scratch)
        wait_until_exported(receiver, lambda: len(load.told))
        return _outcome(version, load, Exported(receiver))


def asks() -> list[Ask]:
    """Return the load.  The server takes one choice only, and prompts of any length: neither is asked for."""
    alike = {"choices": "stream", "refused": "whole"}
    return [replace(ask, kind=alike.get(ask.kind, ask.kind)) for ask in mix(REQUESTS, leave=800)]  # type: ignore[arg-type]


def _outcome(version: str, load: shared.Run, ours: Exported) -> Outcome:
    outcome = Outcome(engine="transformers serve", version=version)
    spans = ours.by_trace()
    told = [one for one in load.told if one.tokens is not None and one.ask.trace_id in spans]
    mine = [spans[one.ask.trace_id]["attributes"] for one in told]
    outcome.figures.append(
        Figure(
            name="output tokens that clients were told",
            engine=sum(one.tokens or 0 for one in told),
            ours=sum(float(one.get("inference.streamed_tokens", 0)) for one in mine),
            samples=len(told),
        )
    )
    shared.soundness(outcome, ours, load.told)
    shared.clients(outcome, load.told, spans)
    outcome.floor("requests", len(load.told), 200)
    outcome.floor("disconnects", sum(one.left for one in load.told), 2)
    outcome.notes.append(
        "the server makes one choice, takes a prompt of any length, and tells neither stages nor evictions: "
        "the lane `transformers` compares those"
    )
    shared.cost(outcome, load)
    return outcome
