"""transformers' continuous batching behind a small server: ``python -m tests.engines.transformers_server MODEL PORT``.

Two managers of one model: choices are a setting of a manager, not of a request.  Nothing here knows of OpenTelemetry
but the two lines that switch the drop-in on.
"""

from __future__ import annotations

import logging
import re
import sys
from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from otel_lifecycle import configure
from otel_lifecycle.integrations import transformers as drop_in
from tests.engines.engine_app import Job, ServedEngine, serve

CONTEXT = 1024


class EvictionCounter(logging.Handler):
    """Counts the requests that the engine says it took the cache from."""

    def __init__(self, engine: ServedEngine) -> None:
        super().__init__(logging.INFO)
        self._engine = engine

    def emit(self, record: logging.LogRecord) -> None:
        """Read one line of the engine's log."""
        found = re.match(r"Offloaded (\d+) requests", record.getMessage())
        if found:
            self._engine.evictions += int(found[1])


class TransformersEngine(ServedEngine):
    """One manager for single answers, one for two choices."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").eval()
        self._managers = {1: _manager(model, 1, 5), 2: _manager(model, 2, 8)}
        self._said: dict[str, int] = {}

    def too_long(self, prompt: str) -> bool:
        """Whether a prompt is refused."""
        return len(self._tokenizer(prompt)["input_ids"]) > CONTEXT

    def text(self, tokens: list[int]) -> str:
        """Return tokens as text."""
        return str(self._tokenizer.decode(tokens))

    def add(self, body: dict[str, Any], job: Job) -> None:
        """Give a request to the engine."""
        self.figures[job.name] = {"id": job.name, "outputs": []}
        manager = self._managers[job.choices]
        for name in (job.name, *(f"{job.name}__child#{i}" for i in range(job.choices - 1))):
            manager.output_router.result_handlers[name] = (partial(self._output, job), job.loop)
        job.handle = manager.add_request(
            self._tokenizer(body["prompt"])["input_ids"],
            request_id=job.name,
            max_new_tokens=body["max_tokens"],
            streaming=job.streams,
            record_timestamps=True,
            eos_token_id=-1,
        )

    def cancel(self, job: Job) -> None:
        """Tell the engine that nobody waits for a request any more."""
        self._managers[job.choices].cancel_request(job.handle)

    def _output(self, job: Job, output: Any) -> None:
        told = self._said.get(output.request_id, 0)
        self._said[output.request_id] = len(output.generated_tokens)
        if job.choices == 1 and len(output.generated_tokens) > told:
            job.queue.put_nowait(output.generated_tokens[told:])
        if output.is_finished():
            self._end(job, output)

    def _end(self, job: Job, output: Any) -> None:
        figures = self.figures[job.name]
        times = output.timestamps or []
        figures["outputs"].append(
            {
                "tokens": len(output.generated_tokens),
                "input_tokens": len(output.prompt_ids),
                "created": output.created_time,
                "started": output.lifespan[0],
                "times": times,
            }
        )
        if len(figures["outputs"]) == job.choices:
            figures["tokens"] = sum(one["tokens"] for one in figures["outputs"])
            job.done = True
            job.queue.put_nowait(None)


def _manager(model: Any, choices: int, blocks: int) -> Any:
    generation = GenerationConfig(do_sample=choices > 1, num_return_sequences=choices, eos_token_id=-1, pad_token_id=3)
    batching = ContinuousBatchingConfig(num_blocks=blocks, max_batch_tokens=64)
    manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=batching)
    manager.start()
    return manager


def _count_evictions(engine: ServedEngine) -> None:
    logger = logging.getLogger("ContinuousBatchingLogger")
    logger.setLevel(logging.INFO)
    logger.addHandler(EvictionCounter(engine))


if __name__ == "__main__":
    torch.set_num_threads(1)
    configure(service_name="transformers")
    drop_in.instrument()
    served = TransformersEngine(sys.argv[1])
    _count_evictions(served)
    serve(served, int(sys.argv[2]))
