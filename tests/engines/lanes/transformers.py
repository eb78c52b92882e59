"""transformers' continuous batching: our figures beside the timestamps of its own ``GenerationOutput``."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.engines.figures import Figure, Outcome
from tests.engines.lanes.served import OUTPUT, Served, common, completions, run_served
from tests.engines.restored import restored

PATCHED: Final = tuple(
    f"transformers.generation.continuous_batching.{name}" for name in ("continuous_api", "requests", "scheduler")
)
"""The modules whose classes the drop-in changes."""


def run(python: Path, scratch: Path, version: str) -> Outcome:
    """Run the lane; EngineFailed if the server does not start."""
    model = scratch / "model"
    script = Path(__file__).parents[1] / "models" / "tiny_hf.py"
    subprocess.run([str(python), str(script), str(model)], check=True, capture_output=True)
    served = run_served(python, scratch, "tests.engines.transformers_server", model, completions(leave=800))
    outcome = Outcome(engine="transformers", version=version)
    known = Served(
        load=served.load,
        ours=served.ours,
        engine={key: _measured(one) for key, one in served.engine.items()},
        mine=served.mine,
        evictions=served.evictions,
    )
    delivered = [served.mine[key] for key in served.engine if key in served.mine]
    outcome.figures += [
        Figure(
            name="output tokens of delivered requests",
            engine=sum(one["tokens"] for one in served.engine.values()),
            ours=sum(float(one.get("inference.streamed_tokens", 0)) for one in delivered),
        ),
        Figure(
            name="output tokens, counter and spans",
            engine=served.ours.sum_of("inference.streamed_tokens"),
            ours=served.ours.total("inference.tokens", OUTPUT),
        ),
        Figure(
            name="preemptions",
            engine=served.evictions,
            ours=served.ours.total("inference.preemptions") + _choices_preempted(served),
        ),
        known.worst("queue, worst request", "queue", "inference.queue_wait", 1e-4),
        known.worst("prefill, worst request", "prefill", "inference.prefill", 1e-4),
        known.worst("first to last token, worst request", "span", "inference.token_span", 1e-4),
        known.worst("TPOT, worst request", "tpot", "inference.tpot", 1e-4),
    ]
    common(outcome, served)
    restored(outcome, python, "transformers", *PATCHED)
    return outcome


def _choices_preempted(served: Served) -> int:
    return sum(event["name"] == "choice_preempted" for span in served.ours.requests for event in span["events"])


def _measured(one: Mapping[str, Any]) -> dict[str, Any]:
    """Work the stages out of the engine's times; a reset request starts its times anew, so it has none."""
    output = one["outputs"][0]
    times, tokens = output["times"], output["tokens"]
    whole = len(times) >= tokens > 0
    return {
        "choices": len(one["outputs"]),
        "queue": output["started"] - output["created"] if whole else None,
        "prefill": times[0] - output["started"] if whole else None,
        "span": times[tokens - 1] - times[0] if whole else None,
        "tpot": (times[tokens - 1] - times[0]) / (tokens - 1) if whole and tokens > 1 else None,
    }
