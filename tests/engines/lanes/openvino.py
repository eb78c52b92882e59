"""OpenVINO GenAI's batching pipeline: our figures beside the engine's own ``PerfMetrics``."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.engines.figures import Figure, Outcome
from tests.engines.lanes.served import OUTPUT, Served, common, completions, run_served
from tests.engines.restored import restored

PATCHED: Final = ("openvino_genai", "openvino_genai.py_openvino_genai")
"""The modules whose classes the drop-in changes."""


def run(python: Path, scratch: Path, version: str) -> Outcome:
    """Run the lane; EngineFailed if the server does not start."""
    model = scratch / "tiny.gguf"
    script = Path(__file__).parents[1] / "models" / "tiny_gguf.py"
    subprocess.run([str(python), str(script), str(model)], check=True, capture_output=True)
    served = run_served(python, scratch, "tests.engines.openvino_server", model, completions(leave=800))
    outcome = Outcome(engine="OpenVINO GenAI", version=version)
    engine = served.engine.values()
    gaps = sum(max(0, one["tokens"] - one["choices"]) for one in engine)
    outcome.figures += [
        Figure(
            name="output tokens",
            engine=sum(one["tokens"] for one in engine),
            ours=served.ours.total("inference.tokens", OUTPUT),
        ),
        Figure(
            name="input tokens",
            engine=sum(one["input_tokens"] for one in engine),
            ours=served.ours.sum_of("gen_ai.usage.input_tokens"),
        ),
        Figure(name="ITL, samples", engine=gaps, ours=served.ours.total("inference.inter_token_latency")),
        _span_sum(served),
        served.worst("TPOT, worst request", "tpot", "inference.tpot", 1e-4),
        *_ttft(served),
    ]
    common(outcome, served)
    restored(outcome, python, "openvino_genai", *PATCHED)
    outcome.notes.append("the engine tells neither when it admits a request nor that it evicts one")
    return outcome


def _span_sum(served: Served) -> Figure:
    single = {key: one for key, one in served.engine.items() if one["choices"] == 1 and key in served.mine}
    return Figure(
        name="first to last token, sum",
        engine=sum(one["span"] for one in single.values()),
        ours=sum(float(served.mine[key].get("inference.token_span", 0.0)) for key in single),
        within=1e-3,
        unit="s",
        samples=len(single),
    )


def _ttft(served: Served) -> list[Figure]:
    """The engine's TTFT begins inside ``add_request``, after tokenising: it lies between ours without and with that."""
    pairs = [
        (float(one["ttft"]), float(mine["inference.ttft"]), float(mine["inference.preprocessing"]))
        for key, one in served.engine.items()
        if one["ttft"] is not None and "inference.ttft" in (mine := served.mine.get(key, {}))
    ]
    late = min(pairs, key=lambda pair: pair[1] - pair[0], default=(None, None, None))
    early = min(pairs, key=lambda pair: pair[0] - pair[1] + pair[2], default=(None, None, None))
    without = None if early[1] is None or early[2] is None else early[1] - early[2]
    return [
        Figure(
            name="TTFT, ours at least the engine's, the closest", engine=late[1], ours=late[0], at_least=True, unit="s"
        ),
        Figure(
            name="TTFT, the engine's at least ours without preprocessing, the closest",
            engine=early[0],
            ours=without,
            at_least=True,
            within=1e-3,
            unit="s",
            samples=len(pairs),
        ),
    ]
