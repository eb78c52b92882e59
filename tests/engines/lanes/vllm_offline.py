"""vLLM without a server: ``LLM.generate`` with two choices, and a pooling model by ``LLM.embed``."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

from tests.engines.figures import Figure, Outcome
from tests.engines.lanes.vllm import make_model

ENVIRON: Final = {
    "OTEL_TRACES_EXPORTER": "none",
    "OTEL_METRICS_EXPORTER": "none",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
}


def run(python: Path, scratch: Path, version: str) -> Outcome:
    """Run both tasks; CalledProcessError if one does not end well."""
    model = scratch / "model"
    make_model(python, model)
    outcome = Outcome(engine="vLLM offline", version=version)
    for task in ("generate", "embed", "engines"):
        told = _run_task(python, model, task, scratch)
        engine, ours = told["engine"], told["ours"]
        outcome.figures += [
            Figure(name=f"{task}: requests", engine=engine["requests"], ours=ours["requests"]),
            Figure(name=f"{task}: output tokens", engine=engine["tokens"], ours=ours["tokens"]),
            Figure(name=f"{task}: completed", engine=engine["requests"], ours=ours["completed"]),
            Figure(name=f"{task}: with a queue", engine=engine["requests"], ours=ours["with_queue"]),
            Figure(name=f"{task}: with a prefill", engine=engine["requests"], ours=ours["with_prefill"]),
            Figure(name=f"{task}: violations", engine=0, ours=ours["violations"]),
            Figure(name=f"{task}: engines", engine=2 if task == "engines" else 1, ours=ours["engines"]),
            Figure(name=f"{task}: methods that uninstrument() left changed", engine=0, ours=ours["left_changed"]),
        ]
    return outcome


def _run_task(python: Path, model: Path, task: str, scratch: Path) -> dict[str, Any]:
    out = scratch / f"{task}.json"
    command = [str(python), "-m", "tests.engines.vllm_offline", str(model), task, str(out)]
    with (scratch / f"{task}.log").open("wb") as log:
        subprocess.run(command, check=True, env={**os.environ, **ENVIRON}, stdout=log, stderr=subprocess.STDOUT)
    return dict(json.loads(out.read_text()))
