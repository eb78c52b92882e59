"""What the drop-in for OpenVINO GenAI relies on.  All of it is the public Python API; checked with 2026.4.1.

The engine stamps each token on the monotonic clock and hands the stamps out when a request has ended, also one that was
cancelled: tokens are marked then, with the engine's own times.  Until then a request is active under an unknown stage.
The engine does not tell when it admits or evicts a request, so queue, prefill and preempted time are absent.

| event | source |
|---|---|
| arrive, input_ready | before and after ``add_request``, which tokenises the prompt |
| first_token, token | ``PerfMetrics.raw_metrics.m_new_token_times`` and ``m_batch_sizes`` |
| end | ``GenerationHandle.get_status()`` after ``step``; ``cancel``, ``stop``; a handle that was dropped |
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Final

from opentelemetry.trace import TracerProvider

from otel_lifecycle import driver, monotonic
from otel_lifecycle.integrations._engine_names import EngineNames
from otel_lifecycle.integrations._hooks import Hooks

_NS_PER_MS: Final = 1_000_000
# The engine's default for max_new_tokens is its largest unsigned number.  A limit as high as this one is none.
_UNLIMITED: Final = 2**31


def patch(hooks: Hooks, tracer_provider: TracerProvider | None) -> None:
    """Wrap the methods that show a request's lifecycle; EngineMismatch if one is missing."""
    import openvino_genai
    from openvino_genai.py_openvino_genai import GenerationHandle

    pipelines = _Pipelines(tracer_provider, openvino_genai.GenerationStatus)
    pipeline = openvino_genai.ContinuousBatchingPipeline
    hooks.around(pipeline, "__init__", after=pipelines.made)
    hooks.around(pipeline, "add_request", before=pipelines.arrived, after=pipelines.added)
    hooks.around(pipeline, "step", after=pipelines.stepped)
    hooks.around(GenerationHandle, "cancel", before=pipelines.cancelled)
    hooks.around(GenerationHandle, "stop", before=pipelines.stopped)


class _OpenvinoGeneration:
    """One request: its driver, and the handle as long as the server holds it."""

    __slots__ = ("choices", "drive", "handle", "ready_ns", "word")

    def __init__(self, drive: driver.Driver, handle: Any, choices: int) -> None:
        self.drive = drive
        self.handle = weakref.ref(handle)
        self.choices = choices
        self.ready_ns = time.perf_counter_ns()
        self.word: str | None = None

    def finish(self, metrics: Any, word: str | None) -> None:
        """Mark the tokens at the engine's times, and end the request."""
        drive = self.drive
        raw = metrics.raw_metrics
        stamps = [int(stamp * _NS_PER_MS) for stamp in raw.m_new_token_times]
        drive.usage(input_tokens=metrics.get_num_input_tokens())
        # Where the thread that added the request had to wait for the interpreter, the engine was ahead of its return.
        drive.mark("input_ready", at_monotonic_ns=min([self.ready_ns, *stamps[:1]]))
        steps = zip(stamps, raw.m_batch_sizes, strict=False)
        if self.choices <= 1:
            _mark_single(drive, steps)
        else:
            for stamp, count in steps:
                _mark_step(drive, count, self.choices, stamp)
        drive.finish(word)

    def abandon(self) -> None:
        """The server let go of the handle: the engine drops the request, and its stamps went with the handle."""
        self.drive.mark("input_ready", at_monotonic_ns=self.ready_ns)
        self.drive.finish("abort")


class _Pipelines:
    """The hooks, and the open requests of every pipeline, by the identity of their handles.

    Requests are added, cancelled and dropped on any thread, while another one steps the pipeline: each table changes by
    single operations only.
    """

    def __init__(self, tracer_provider: TracerProvider | None, status: Any) -> None:
        self._tracer_provider = tracer_provider
        self._status = status
        self._names = EngineNames("openvino")
        self._models: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._open: weakref.WeakKeyDictionary[Any, dict[int, _OpenvinoGeneration]] = weakref.WeakKeyDictionary()
        self._dropped: deque[_OpenvinoGeneration] = deque()

    def made(self, _noted: None, _result: None, pipeline: Any, *arguments: Any, **named: Any) -> None:
        """After ``ContinuousBatchingPipeline.__init__``: the model is called as its file or folder."""
        path = named.get("models_path", arguments[0] if arguments else None)
        if path is not None:
            self._models[pipeline] = PurePath(str(path)).name.removesuffix(".gguf")

    def arrived(self, pipeline: Any, request_id: int, *arguments: Any, **named: Any) -> tuple[driver.Driver, int]:
        """Before ``add_request``."""
        config = named.get("generation_config", arguments[-1] if arguments else None)
        model = self._models.get(pipeline)
        limit, choices = getattr(config, "max_new_tokens", None), getattr(config, "num_return_sequences", 1)
        conditions = {
            "request_id": str(request_id),
            "model": model,
            "engine": self._names.of(pipeline, model),
            "provider": "openvino",
            "operation": "text_completion",
            "max_tokens": limit if isinstance(limit, int) and limit < _UNLIMITED else None,
        }
        drive = driver.begin(conditions, shape="preprocess_first", tracer_provider=self._tracer_provider)
        if not drive.owned:
            drive.suggest(**conditions)
            drive.follow_shape("preprocess_first")
        return drive, choices

    def added(
        self, noted: tuple[driver.Driver, int] | None, handle: Any, pipeline: Any, *_arguments: Any, **_named: Any
    ) -> None:
        """After ``add_request``: the prompt is tokenised, the request waits for a step."""
        if noted is None:
            return
        drive, choices = noted
        generation = _OpenvinoGeneration(drive, handle, choices)
        self._open.setdefault(pipeline, {})[id(handle)] = generation
        # The finalizer may run inside a garbage collection, where nothing may be locked or recorded: it only notes it.
        weakref.finalize(handle, self._dropped.append, generation).atexit = False

    def stepped(self, _noted: None, _result: None, pipeline: Any, *_arguments: Any, **_named: Any) -> None:
        """After ``step``: requests that no longer run have ended."""
        # By value: comparing two members of this enumeration costs five times as much, for each request and step.
        running = self._status.RUNNING.value
        # A copy, because another thread may add a request meanwhile.
        for key, generation in list(self._open.get(pipeline, {}).items()):
            handle = generation.handle()
            if handle is not None and (status := handle.get_status()).value != running:
                self._settle(pipeline, key, generation, handle, status)
        if self._dropped:
            self._sweep(pipeline)

    def cancelled(self, handle: Any, *_arguments: Any, **_named: Any) -> None:
        """Before ``GenerationHandle.cancel``: it takes effect with the next step."""
        self._note(handle, "abort")

    def stopped(self, handle: Any, *_arguments: Any, **_named: Any) -> None:
        """Before ``GenerationHandle.stop``: the server wants no more of the answer."""
        self._note(handle, "stop")

    def _note(self, handle: Any, word: str) -> None:
        # The handle does not know its pipeline, and a process has one or two of them.
        for generations in list(self._open.values()):
            generation = generations.get(id(handle))
            # The handle is compared, too: an id may belong to a later object by now.  The first word wins.
            if generation is not None and generation.handle() is handle and generation.word is None:
                generation.word = word

    def _settle(self, pipeline: Any, key: int, generation: _OpenvinoGeneration, handle: Any, status: Any) -> None:
        try:
            metrics = handle.get_perf_metrics()
        except RuntimeError:
            # Cancelled while the step ran: the engine takes notice of it, and gives the figures, in the next one.
            return
        self._open[pipeline].pop(key, None)
        generation.finish(metrics, self._word(generation, status))

    def _word(self, generation: _OpenvinoGeneration, status: Any) -> str | None:
        if status == self._status.FINISHED:
            return None
        # Neither cancelled nor stopped: the engine ignores a request that its cache can never hold.
        return generation.word or "out_of_memory"

    def _sweep(self, pipeline: Any) -> None:
        """End the requests whose handles the server dropped: the engine drops them too, and their stamps with them."""
        generations = self._open.get(pipeline, {})
        # Only those that are there now: finalizers may append meanwhile, for ever.
        for _ in range(len(self._dropped)):
            self._dropped.popleft().abandon()
        for key in [key for key, generation in list(generations.items()) if generation.handle() is None]:
            generations.pop(key, None)


def _mark_single(drive: driver.Driver, steps: Iterator[tuple[int, int]]) -> None:
    """Mark the tokens of a request with one choice: the first passes what lies before it, the others are appended."""
    for stamp, count in steps:
        drive.item(count, at_monotonic_ns=stamp)
        break
    # A twentieth of an item() each: all tokens of a request are marked in the step that ends it.
    token = drive.request.token
    for stamp, count in steps:
        token(count, 0, monotonic(ns=stamp))


def _mark_step(drive: driver.Driver, count: int, choices: int, stamp: int) -> None:
    """Mark the tokens of one step: one for each choice that still runs."""
    if count > choices:
        drive.item(count, at_monotonic_ns=stamp)
        return
    for choice in range(count):
        drive.item(1, choice, at_monotonic_ns=stamp)
