"""The names of vLLM that its drop-in relies on, all of them outside vLLM's public API.

Run with 0.32.0, 0.16.0 and 0.12.0.  Where a class or method is missing, the drop-in logs
it once and does nothing; where an attribute is missing, its value is absent.

| event | source |
|---|---|
| arrive | ``EngineCoreRequest.arrival_time``, wall clock, before the prompt is rendered |
| input_ready | ``OutputProcessor.add_request``; of a pooling request the admission, because its shape queues first |
| admit, resume | SCHEDULED in ``EngineCoreOutput.events``, the first one and those after PREEMPTED |
| first_token, token | ``EngineCoreOutputs.timestamp``, one stamp for each step, times ``len(new_token_ids)`` |
| preempt | PREEMPTED in ``EngineCoreOutput.events``; it travels with the next output of the request |
| step | ``SchedulerStats.iteration_details``, in versions and configurations that have it |
| end | ``finish_reason``; without one, the frontend found a stop string; ``abort_requests``; ``propagate_error`` |
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from opentelemetry.trace import TracerProvider

from otel_lifecycle import driver, monotonic, step
from otel_lifecycle.integrations._engine_names import EngineNames
from otel_lifecycle.integrations._engine_requests import EngineGroup, EngineRequests, Member
from otel_lifecycle.integrations._hooks import EngineMismatch, Hooks, observe
from otel_lifecycle.types import Request

FRONTENDS: Final = ("vllm.v1.engine.async_llm", "vllm.v1.engine.llm_engine")
"""The modules whose engines answer clients: the server's, and that of the offline ``LLM``."""

# Numbers of EngineCoreEventType; patch() refuses an engine that has others.
_SCHEDULED: Final = 2
_PREEMPTED: Final = 3
_NS: Final = 1_000_000_000

_OPERATIONS: Final = (
    ("chatcmpl", "chat"),
    ("cmpl", "text_completion"),
    ("resp", "chat"),
    ("embd", "embeddings"),
    ("pool", "embeddings"),
    ("rerank", "rerank"),
    ("score", "rerank"),
    ("classify", "classify"),
)
"""The server's own prefixes of request ids -> the operation."""


def when_frontend_is_imported(start: Callable[[], None]) -> None:
    """Call ``start`` once an engine that answers clients is imported; at once if it is."""
    # Imported here: only a plug-in that is switched on needs wrapt.
    from wrapt import register_post_import_hook

    for module in FRONTENDS:
        register_post_import_hook(lambda _: observe(start), module)


def engines() -> tuple[type, ...]:
    """Return the classes of the engines that answer clients."""
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.llm_engine import LLMEngine

    return AsyncLLM, LLMEngine


def patch(hooks: Hooks, tracer_provider: TracerProvider | None) -> None:
    """Wrap the methods that show a request's lifecycle; EngineMismatch if one is missing."""
    from vllm.v1.engine import EngineCoreEventType
    from vllm.v1.engine.output_processor import OutputProcessor

    if (EngineCoreEventType.SCHEDULED, EngineCoreEventType.PREEMPTED) != (_SCHEDULED, _PREEMPTED):
        raise EngineMismatch("EngineCoreEventType has other numbers")
    frontend = _Frontend(tracer_provider)
    for engine in engines():
        hooks.around(engine, "__init__", after=frontend.engine_made)
    hooks.around(OutputProcessor, "add_request", after=frontend.added)
    hooks.around(OutputProcessor, "process_outputs", before=frontend.stepped, after=frontend.settled)
    hooks.around(OutputProcessor, "abort_requests", after=frontend.aborted)
    hooks.around(OutputProcessor, "propagate_error", after=frontend.failed)
    # Steps are an addition: a version without this method is instrumented all the same.
    if hasattr(OutputProcessor, "update_scheduler_stats"):
        hooks.around(OutputProcessor, "update_scheduler_stats", after=frontend.iterated)


class _VllmEngine:
    """The requests of one ``OutputProcessor``, and what is known of its engine."""

    def __init__(self, tracer_provider: TracerProvider | None) -> None:
        self.requests = EngineRequests(tracer_provider)
        self.model: str | None = None
        self.name: str | None = None
        self.latest: Request | None = None

    def describe(self, config: Any) -> None:
        """Note what the engine's configuration says about the model."""
        model = config.model_config
        name = getattr(model, "served_model_name", None) or model.model
        self.model = name if isinstance(name, str) else name[0]

    def called(self, name: str, config: Any, clients: int) -> None:
        """Note the engine's name, and who else uses it; ``clients``: API servers that feed the same engine core."""
        self.name = name
        if clients > 1:
            driver.engine_is_shared(name)
        # The client picks the engine core that is least busy, and tells nobody.
        if getattr(getattr(config, "parallel_config", None), "data_parallel_size", 1) > 1:
            driver.engines_are_mixed(name)


class _Frontend:
    """The hooks.  All methods of an OutputProcessor run on one thread; engines of their own threads share nothing."""

    def __init__(self, tracer_provider: TracerProvider | None) -> None:
        self._tracer_provider = tracer_provider
        # Weak: what is kept for an engine goes when the engine is gone.
        self._engines: weakref.WeakKeyDictionary[Any, _VllmEngine] = weakref.WeakKeyDictionary()
        self._names = EngineNames("vllm")

    def engine_made(self, _noted: None, _result: None, engine: Any, *_arguments: Any, **named: Any) -> None:
        """After ``AsyncLLM.__init__`` and ``LLMEngine.__init__``."""
        processor, config = engine.output_processor, engine.vllm_config
        known = self._of(processor)
        known.describe(config)
        # All versions pass client_count by name; an offline engine has none.
        known.called(self._names.of(processor, known.model), config, named.get("client_count", 1))

    def added(
        self,
        _noted: None,
        _result: None,
        processor: Any,
        request: Any,
        _prompt: Any = None,
        parent_req: Any = None,
        request_index: int = 0,
        *_arguments: Any,
        **_named: Any,
    ) -> None:
        """After ``OutputProcessor.add_request``: the prompt is rendered, the request goes to the engine core."""
        engine = self._of(processor)
        # A session with streamed input adds to a request that is open already.
        if engine.requests.get(request.request_id) is not None:
            return
        group = None if parent_req is None else engine.requests.group(parent_req.request_id)
        if group is None:
            group = self._opened(engine, request, parent_req)
        engine.requests.join(request.request_id, group, request_index)

    def _opened(self, engine: _VllmEngine, request: Any, parent_req: Any) -> EngineGroup:
        pooling = request.sampling_params is None
        group = engine.requests.begin(
            _asked(request, engine.model, engine.name),
            shape="pooling" if pooling else "preprocess_first",
            arrived_at_ns=int(request.arrival_time * _NS),
            expected=1 if parent_req is None else parent_req.n,
            key=None if parent_req is None else parent_req.request_id,
        )
        engine.latest = group.driver.request
        if not pooling:
            group.driver.mark("input_ready")
        if parent_req is not None:
            engine.requests.keep(group)
        return group

    def stepped(
        self,
        processor: Any,
        engine_core_outputs: Sequence[Any],
        engine_core_timestamp: float | None = None,
        *_arguments: Any,
        **_named: Any,
    ) -> tuple[_VllmEngine, int]:
        """Before ``OutputProcessor.process_outputs``: what one step of the engine core brought."""
        # Read first: the end of a request is when its last output came in, not when all of the step has been
        # processed.
        received_ns = time.perf_counter_ns()
        engine = self._of(processor)
        stamp = received_ns if engine_core_timestamp is None else int(engine_core_timestamp * _NS)
        get = engine.requests.get
        decoding: list[Request] = []
        counts: list[int] = []
        for output in engine_core_outputs:
            member = get(output.request_id)
            if member is None:
                continue
            # Choices of one request take the slower path, because step() always marks choice 0.
            if member.started and not output.events and member.group.expected == 1:
                decoding.append(member.group.driver.request)
                counts.append(len(output.new_token_ids))
            else:
                _read(member, output, stamp)
        # Nearly all outputs are one more token: they are marked in one call, which costs a tenth of a call each.
        step(decoding, at_ns=monotonic(ns=stamp), counts=counts)
        return engine, received_ns

    def settled(
        self,
        noted: tuple[_VllmEngine, int] | None,
        _result: Any,
        processor: Any,
        engine_core_outputs: Sequence[Any],
        *_arguments: Any,
        **_named: Any,
    ) -> None:
        """After ``OutputProcessor.process_outputs``: the requests it no longer knows have ended."""
        if noted is None:
            return
        engine, received_ns = noted
        states = processor.request_states
        for output in engine_core_outputs:
            if output.request_id not in states:
                reason = output.finish_reason
                # The frontend found a stop string by itself: the engine core does not know yet.
                word = "stop" if reason is None else str(reason)
                engine.requests.close(output.request_id, word, at_monotonic_ns=received_ns)

    def aborted(self, _noted: None, aborted: Iterable[str], processor: Any, *_arguments: Any, **_named: Any) -> None:
        """After ``OutputProcessor.abort_requests``, which returns the ids of those it knew."""
        engine = self._of(processor)
        for request_id in aborted or ():
            engine.requests.close(request_id, "abort")

    def failed(self, _noted: None, _result: None, processor: Any, error: BaseException, *_arguments: Any) -> None:
        """After ``OutputProcessor.propagate_error``: the engine is gone, and every open request with it."""
        engine = self._of(processor)
        for request_id in list(processor.request_states):
            engine.requests.close(request_id, "error", error=error)

    def iterated(
        self, _noted: None, _result: None, processor: Any, stats: Any, *_arguments: Any, **_named: Any
    ) -> None:
        """After ``OutputProcessor.update_scheduler_stats``: how long an iteration took, if the core says so.

        It does with ``--enable-logging-iteration-details``; versions before have no such figure.
        """
        details = getattr(stats, "iteration_details", None)
        engine = self._of(processor)
        if details is None or details.is_dummy or engine.latest is None:
            return
        # All requests of an engine have its labels, so it does not matter that this one may have ended.
        driver.record_step(
            engine.latest,
            details.elapsed_ms / 1e3,
            decode=details.num_generation_requests,
            prefill=details.num_ctx_requests,
        )

    def _of(self, processor: Any) -> _VllmEngine:
        engine = self._engines.get(processor)
        if engine is None:
            engine = self._engines[processor] = _VllmEngine(self._tracer_provider)
        return engine


def _read(member: Member, output: Any, stamp: int) -> None:
    """Mark what one output says about its request: events first, because they are older than the step's time."""
    if output.events:
        for event in output.events:
            if event.type == _SCHEDULED:
                member.scheduled(int(event.timestamp * _NS))
            elif event.type == _PREEMPTED:
                member.preempted(int(event.timestamp * _NS))
    drive = member.group.driver
    if not member.started:
        member.started = True
        cached = _cached_tokens(output)
        if cached is not None:
            drive.usage(cached_tokens=cached)
    tokens = output.new_token_ids
    if tokens:
        drive.item(len(tokens), member.choice, at_monotonic_ns=stamp)


def _cached_tokens(output: Any) -> int | None:
    # Older versions have num_cached_tokens on the output itself, newer ones in prefill_stats.
    stats = getattr(output, "prefill_stats", None)
    found = getattr(output if stats is None else stats, "num_cached_tokens", None)
    return found if isinstance(found, int) else None


def _asked(request: Any, model: str | None, engine: str | None) -> dict[str, object]:
    """Return what a request says about itself."""
    # Missing in 0.12, where request_id is the client's own; later versions add a suffix to that.
    name = getattr(request, "external_req_id", None) or request.request_id
    sampling, lora = request.sampling_params, request.lora_request
    prompt = request.prompt_token_ids if request.prompt_token_ids is not None else request.prompt_embeds
    return {
        "request_id": name,
        "model": model if lora is None else lora.lora_name,
        # Adapters of one base model share its engine.
        "engine": engine,
        "provider": "vllm",
        "operation": _operation(name, pooling=sampling is None),
        "input_tokens": None if prompt is None else len(prompt),
        "max_tokens": None if sampling is None else sampling.max_tokens,
        # The kinds of output: 0 cumulative, 1 delta (a stream), 2 final only.
        "stream": None if sampling is None else {1: True, 2: False}.get(sampling.output_kind.value),
    }


def _operation(name: str, *, pooling: bool) -> str:
    found = next((operation for prefix, operation in _OPERATIONS if name.startswith(prefix)), None)
    return found or ("embeddings" if pooling else "text_completion")
