"""OpenVINO GenAI's batching pipeline behind a small server: ``python -m tests.engines.openvino_server MODEL PORT``.

One thread steps the pipeline.  Nothing here knows of OpenTelemetry but the two lines that switch the drop-in on.
"""

from __future__ import annotations

import itertools
import sys
import threading
from typing import Any

import openvino_genai

from otel_lifecycle import configure
from otel_lifecycle.integrations import openvino_genai as drop_in
from tests.engines.engine_app import Job, ServedEngine, serve

CONTEXT = 1024


class OpenvinoEngine(ServedEngine):
    """The pipeline and its thread."""

    def __init__(self, model: str) -> None:
        super().__init__()
        config = openvino_genai.SchedulerConfig()
        # So few blocks that the longer requests have to be evicted.
        config.num_kv_blocks = 40
        config.max_num_seqs = 4
        config.max_num_batched_tokens = 64
        config.dynamic_split_fuse = True
        config.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, config, "CPU", {})
        self._tokenizer = self._pipeline.get_tokenizer()
        self._numbers = itertools.count()
        self._jobs: list[Job] = []
        self._work = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def too_long(self, prompt: str) -> bool:
        """Whether a prompt is refused."""
        return bool(self._tokenizer.encode(prompt).input_ids.shape[1] > CONTEXT)

    def text(self, tokens: list[int]) -> str:
        """Return tokens as text."""
        return str(self._tokenizer.decode(tokens))

    def add(self, body: dict[str, Any], job: Job) -> None:
        """Give a request to the engine."""
        number = next(self._numbers)
        self.figures[job.name] = {"id": str(number)}
        job.handle = self._pipeline.add_request(number, body["prompt"], _config(body))
        with self._work:
            self._jobs.append(job)
            self._work.notify()

    def cancel(self, job: Job) -> None:
        """Tell the engine that nobody waits for a request any more."""
        job.handle.cancel()

    def _run(self) -> None:
        for step in itertools.count(1):
            with self._work:
                self._work.wait_for(lambda: self._jobs)
            self._pipeline.step()
            for job in list(self._jobs):
                self._look(job, step)

    def _look(self, job: Job, step: int) -> None:
        tokens: list[int] = []
        # The tokens of several choices are told at the end.
        while job.choices == 1 and job.handle.can_read():
            for output in job.handle.read().values():
                tokens += output.generated_ids
        if tokens:
            # A request that ran and gets no token in a step was evicted: the engine has no word of its own for it.
            self.evictions += job.last_step > 0 and step - job.last_step > 1
            job.last_step = step
            job.put(tokens)
        if job.handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
            self._end(job)

    def _end(self, job: Job) -> None:
        try:
            metrics = job.handle.get_perf_metrics()
        except RuntimeError:
            # Cancelled just now: the figures come with the next step.
            return
        tokens = metrics.get_num_generated_tokens()
        times = metrics.raw_metrics.m_new_token_times
        self.figures[job.name] |= {
            "tokens": tokens,
            "input_tokens": metrics.get_num_input_tokens(),
            "choices": job.choices,
            "ttft": metrics.get_ttft().mean / 1e3 if tokens else None,
            "tpot": metrics.get_tpot().mean / 1e3 if tokens > 1 else None,
            "span": (times[-1] - times[0]) / 1e3 if tokens else 0.0,
        }
        self._jobs.remove(job)
        job.done = True
        job.put(None)


def _config(body: dict[str, Any]) -> Any:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = body["max_tokens"]
    if body.get("n", 1) > 1:
        config.do_sample = True
        config.num_return_sequences = body["n"]
    if "stop" in body:
        config.stop_strings = set(body["stop"])
        config.include_stop_str_in_output = True
    return config


if __name__ == "__main__":
    configure(service_name="openvino")
    drop_in.instrument()
    serve(OpenvinoEngine(sys.argv[1]), int(sys.argv[2]))
