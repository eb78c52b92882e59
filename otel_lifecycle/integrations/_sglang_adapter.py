"""The names of SGLang that its drop-in relies on, all of them internal.  Checked with 0.5.23.

| event | source |
|---|---|
| arrive | ``received_time`` of the request object, else the call of ``TokenizerManager.generate_request`` |
| input_ready | ``TokenizerManager._send_one_request``, ``_send_batch_request``: the prompt is tokenised |
| admit | ``forward_entry_time`` of the scheduler, sent with ``--enable-metrics`` |
| first_token, token | ``_handle_batch_output`` times ``len(output_ids[i])``, at receipt |
| preempt, resume | ``retraction_counts``: how often, not when |
| end | ``finished_reasons``; ``abort_request`` and its echo; what leaves ``generate_request`` |

The tokens of an answer that is not streamed are sent in batches; its first token has ``prefill_finished_time``.
Two choices (n = 2) are three requests of the engine: one without tokens fills the prefix cache for the others.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final

from opentelemetry.trace import TracerProvider

from otel_lifecycle import driver, monotonic
from otel_lifecycle.integrations._engine_names import EngineNames
from otel_lifecycle.integrations._engine_requests import EngineGroup, EngineRequests, Member
from otel_lifecycle.integrations._hooks import EngineMismatch, Hooks, observe

MODULE: Final = "sglang.srt.managers.tokenizer_manager"
"""The module whose ``TokenizerManager`` answers clients."""

_NS: Final = 1_000_000_000
_BAD_REQUEST: Final = 400
_REASONS: Final = {_BAD_REQUEST: "bad_input", 503: "queue_full", 504: "queue_timeout"}
"""The status an aborted request is answered with -> why it ended."""


def when_frontend_is_imported(start: Callable[[], None]) -> None:
    """Call ``start`` once the module that answers clients is imported; at once if it is."""
    # Imported here: only a plug-in that is switched on needs wrapt.
    from wrapt import register_post_import_hook

    register_post_import_hook(lambda _: observe(start), MODULE)


def manager() -> type:
    """Return the class of the object that answers clients."""
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    return TokenizerManager  # type: ignore[no-any-return]


def patch(hooks: Hooks, tracer_provider: TracerProvider | None) -> None:
    """Wrap the methods that show a request's lifecycle; EngineMismatch if one is missing."""
    owner = manager()
    frontend = _SglangFrontend(tracer_provider)
    hooks.around(owner, "__init__", after=frontend.made)
    hooks.around(owner, "_init_req_state", after=frontend.opened)
    hooks.around(owner, "_send_one_request", before=frontend.sent)
    hooks.around(owner, "_send_batch_request", before=frontend.sent_together)
    hooks.around(owner, "_handle_batch_output", before=frontend.read)
    hooks.around(owner, "_handle_abort_req", before=frontend.abort_echoed)
    hooks.around(owner, "abort_request", before=frontend.aborted)
    # Not by around(): that wraps a call, and this one is a generator whose steps have to be wrapped.
    original = getattr(owner, "generate_request", None)
    if original is None:
        raise EngineMismatch("TokenizerManager has no generate_request")
    hooks.replace(owner, "generate_request", frontend.around(original))


class _SglangCall:
    """One call of ``generate_request``: one request of a client.  ``primers``: how many come before its choices."""

    __slots__ = ("group", "primers", "ready")

    def __init__(self, group: EngineGroup) -> None:
        self.group = group
        self.primers = 0
        self.ready = False


# A context variable, because _init_req_state does not get the call it works for, and calls run side by side.
_CALL: ContextVar[_SglangCall | None] = ContextVar("otel_lifecycle_sglang_call", default=None)


class _SglangFrontend:
    """The hooks.  All of them run on the event loop of the tokenizer manager."""

    def __init__(self, tracer_provider: TracerProvider | None) -> None:
        self._requests = EngineRequests(tracer_provider)
        self._names = EngineNames("sglang")

    def made(self, _noted: None, _result: None, manager: Any, *_arguments: Any, **_named: Any) -> None:
        """After ``TokenizerManager.__init__``: who else uses its engine is known."""
        options = getattr(manager, "server_args", None)
        engine = self._names.of(manager, getattr(manager, "served_model_name", None))
        # Each tokenizer worker is a process of its own; all of them feed one scheduler.
        if getattr(options, "tokenizer_worker_num", 1) > 1:
            driver.engine_is_shared(engine)
        # The controller picks the scheduler, and the answer does not say which one it was.
        if getattr(options, "dp_size", 1) > 1:
            driver.engines_are_mixed(engine)

    def around(self, original: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        """Return ``generate_request`` with a request around it."""

        @wraps(original)
        async def generate_request(manager: Any, obj: Any, *arguments: Any, **named: Any) -> AsyncIterator[Any]:
            inner: Any = original(manager, obj, *arguments, **named)
            call = observe(self._called, manager, obj)
            try:
                while True:
                    # For each step only: between two steps the consumer runs in the same context.
                    token = _CALL.set(call)
                    try:
                        item = await inner.__anext__()
                    except StopAsyncIteration:
                        break
                    finally:
                        _CALL.reset(token)
                    yield item
            except BaseException as error:
                if call is not None:
                    observe(self._left, call, error)
                raise
            finally:
                await inner.aclose()

        return generate_request

    def _called(self, manager: Any, obj: Any) -> _SglangCall | None:
        # A health check is a generation of the server's own.
        if str(getattr(obj, "rid", "") or "").startswith("HEALTH_CHECK"):
            return None
        received = getattr(obj, "received_time", None)
        generates = hasattr(obj, "sampling_params") and hasattr(obj, "stream")
        group = self._requests.begin(
            _asked(manager, obj, self._names, generates=generates),
            shape="preprocess_first" if generates else "pooling",
            arrived_at_ns=monotonic(received) if received else None,
        )
        return _SglangCall(group)

    def _left(self, call: _SglangCall, error: BaseException) -> None:
        """What left the call ended it: a refusal, or the client.  Nothing happens if the engine has ended it before."""
        # SGLang raises ValueError for a request it refuses, such as an input that is too long for the model.
        if isinstance(error, ValueError):
            call.group.driver.finish("error", error="bad_input")
        else:
            call.group.driver.leave(error)

    def opened(self, _noted: None, _result: None, _manager: Any, obj: Any, *_arguments: Any, **_named: Any) -> None:
        """After ``_init_req_state``: the engine has new requests, of the call that is current."""
        call = _CALL.get()
        if call is None:
            return
        group = call.group
        choices = getattr(obj, "parallel_sample_num", None) or 1
        if not getattr(obj, "is_single", True):
            group.expected = obj.batch_size * choices
            call.primers = obj.batch_size if choices > 1 else 0
            if choices == 1:
                for index, rid in enumerate(obj.rid):
                    self._requests.join(rid, group, index)
            # With several choices these ids are dropped again: the primers and the choices get ids of their own.
            return
        primes = call.primers > 0
        call.primers -= primes
        self._requests.join(obj.rid, group, group.joined, counts=not primes)

    def sent(self, _manager: Any, tokenized: Any, *_arguments: Any) -> None:
        """Before ``_send_one_request``: the input is ready."""
        self._ready(self._requests.get(tokenized.rid))

    def sent_together(self, _manager: Any, tokenized: Any, *_arguments: Any) -> None:
        """Before ``_send_batch_request``."""
        for one in tokenized:
            self._ready(self._requests.get(one.rid))

    def read(self, _manager: Any, received: Any, *_arguments: Any) -> None:
        """Before ``_handle_batch_output``: what one step of the scheduler brought."""
        now = time.perf_counter_ns()
        stats = _times_of(received)
        get = self._requests.get
        for index, rid in enumerate(received.rids):
            member = get(rid)
            if member is not None:
                _read(member, received, index, None if stats is None else stats[index], now)
                reason = received.finished_reasons[index]
                if reason is not None:
                    self._close(rid, reason)

    def abort_echoed(self, _manager: Any, received: Any, *_arguments: Any) -> None:
        """Before ``_handle_abort_req``: the scheduler has dropped a request that waited."""
        self._close(received.rid, received.finished_reason or {"type": "abort"})

    def aborted(self, _manager: Any, rid: str = "", abort_all: bool = False, *_arguments: Any) -> None:
        """Before ``abort_request``: the client has left, or the server wants the request gone.

        It is kept until the scheduler has dropped it: the tokens that are made until then are wasted.
        """
        member = None if abort_all else self._requests.get(rid)
        if member is not None:
            member.group.driver.finish("abort")

    @staticmethod
    def _ready(member: Member | None) -> None:
        if member is not None and not member.admitted:
            member.group.driver.mark("input_ready")

    def _close(self, rid: str, reason: dict[str, Any]) -> None:
        status = reason.get("status_code")
        if status is None:
            self._requests.close(rid, str(reason.get("type") or "stop"))
        else:
            self._requests.close(rid, "error", error=_REASONS.get(int(status), "engine_error"))


def _times_of(received: Any) -> Any:
    """Return the scheduler's times, unpacked here instead of by the engine, which then finds them unpacked."""
    from sglang.srt.managers.io_struct import unwrap_from_pickle

    received.time_stats = unwrap_from_pickle(received.time_stats)
    return received.time_stats


def _read(member: Member, received: Any, index: int, times: Any, now: int) -> None:
    drive = member.group.driver
    entered = _ns(getattr(times, "forward_entry_time", 0.0))
    if entered and not member.admitted:
        member.scheduled(entered)
    if not member.counts:
        return
    if received.retraction_counts:
        member.preempted_so_often(received.retraction_counts[index])
    ids = getattr(received, "output_ids", None)
    tokens = len(ids[index]) if ids else 0
    if not member.started:
        member.started = True
        _tell(member, received, index)
        finished = _ns(getattr(times, "prefill_finished_time", 0.0))
        # With several choices, the others may already have tokens that came later than that.
        if tokens > 1 and finished and member.group.expected == 1:
            drive.item(1, member.choice, at_monotonic_ns=finished)
            tokens -= 1
    if tokens:
        drive.item(tokens, member.choice, at_monotonic_ns=now)


def _tell(member: Member, received: Any, index: int) -> None:
    figures = {}
    if getattr(received, "prompt_tokens", None):
        figures["input_tokens"] = received.prompt_tokens[index]
    if getattr(received, "cached_tokens", None):
        figures["cached_tokens"] = received.cached_tokens[index]
    member.group.driver.usage(**figures)


def _ns(seconds: float) -> int:
    return int(seconds * _NS)


def _asked(manager: Any, obj: Any, names: EngineNames, *, generates: bool) -> dict[str, object]:
    """Return what a request says about itself."""
    model = getattr(manager, "served_model_name", None)
    sampling = getattr(obj, "sampling_params", None)
    limit = sampling.get("max_new_tokens") if isinstance(sampling, dict) else None
    rid = getattr(obj, "rid", None)
    return {
        "request_id": rid if isinstance(rid, str) else None,
        "model": getattr(obj, "lora_path", None) or model,
        # Adapters of one base model share its engine.
        "engine": names.of(manager, model),
        "provider": "sglang",
        "operation": "text_completion" if generates else "embeddings",
        "max_tokens": limit,
        "stream": obj.stream if generates else None,
    }
