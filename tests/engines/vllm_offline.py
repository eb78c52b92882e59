"""vLLM's offline ``LLM`` with the drop-in: ``python -m tests.engines.vllm_offline MODEL generate|embed|engines OUT``.

Writes what the engine returned and what the spans say, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from vllm import LLM, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.engine.output_processor import OutputProcessor

from otel_lifecycle import configure
from otel_lifecycle.integrations import vllm as drop_in

OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 512,
    "max_num_seqs": 4,
    "enforce_eager": True,
    "num_gpu_blocks_override": 64,
    # An LLM switches them off, and without them the engine core tells neither of queue nor of preemption.
    "disable_log_stats": False,
}
NAMES = {name for kind in (OutputProcessor, AsyncLLM, LLMEngine) for name in vars(kind)}
PROMPTS = [f"the quick brown fox number {i} jumps over a lazy dog" for i in range(24)]


def run(model: str, task: str) -> dict[str, Any]:
    """Run one task; return the engine's counts and ours."""
    exporter = InMemorySpanExporter()
    configure(service_name="offline")
    _export_to(exporter)
    before = _methods()
    assert drop_in.instrument()
    assert _methods() != before
    if task == "engines":
        # Two engines of one model in one process: each is its own.
        llms = [LLM(model, runner="pooling", convert="embed", **OPTIONS) for _ in range(2)]
        answers: Any = [answer for llm in llms for answer in llm.embed(PROMPTS[:2])]
        tokens = 0
    elif task == "embed":
        llm = LLM(model, runner="pooling", convert="embed", **OPTIONS)
        answers = llm.embed(PROMPTS)
        tokens = 0
    else:
        llm = LLM(model, **OPTIONS)
        answers = llm.generate(PROMPTS, SamplingParams(max_tokens=12, n=2, temperature=1.0))
        tokens = sum(len(choice.token_ids) for answer in answers for choice in answer.outputs)
    drop_in.uninstrument()
    spans: list[dict[str, Any]] = [dict(span.attributes or {}) for span in exporter.get_finished_spans()]
    ours = [attributes for attributes in spans if "inference.outcome" in attributes]
    return {
        "engine": {"requests": len(answers), "tokens": tokens},
        "ours": {
            "requests": len(ours),
            "tokens": sum(int(one.get("gen_ai.usage.output_tokens", 0)) for one in ours),
            "completed": sum(one["inference.outcome"] == "completed" for one in ours),
            "violations": sum(int(one["inference.violations"]) for one in ours),
            "with_queue": sum("inference.queue_wait" in one for one in ours),
            "with_prefill": sum("inference.prefill" in one for one in ours),
            "operations": sorted({one["gen_ai.operation.name"] for one in ours}),
            "engines": len({one["inference.engine"] for one in ours}),
            "left_changed": sum(now is not then for now, then in zip(_methods(), before, strict=True)),
        },
    }


def _methods() -> list[object]:
    """Return every attribute of the classes that the drop-in changes."""
    return [vars(kind).get(name) for kind in (OutputProcessor, AsyncLLM, LLMEngine) for name in sorted(NAMES)]


def _export_to(exporter: InMemorySpanExporter) -> None:
    from opentelemetry import trace

    trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))  # type: ignore[attr-defined]


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(run(sys.argv[1], sys.argv[2])))
