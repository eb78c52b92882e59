"""The names of transformers' continuous batching that its drop-in relies on.  Checked with 5.24.

| event | source |
|---|---|
| arrive, input_ready | ``ContinuousBatchingManager.add_request``: the prompt comes as token ids |
| admit, resume | ``RequestState.status`` leaves PENDING; the first time at ``lifespan[0]`` |
| first_token, token | ``update_and_check_completion``, at the engine's own stamp with ``record_timestamps`` |
| preempt | ``Scheduler.add_waiting_request`` of a request that was admitted: its cache was taken away |
| end | ``RequestState.status`` becomes FINISHED; ``clear_cancelled_requests``; ``fail_and_deliver`` |

A request is known by the identity of its ``RequestState``, because ids are unique within one manager only.  The engine
makes a new state when it resets a request, and one for each further choice.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any, Final

from opentelemetry.trace import TracerProvider

from otel_lifecycle import monotonic
from otel_lifecycle.integrations._engine_names import EngineNames
from otel_lifecycle.integrations._engine_requests import EngineGroup, EngineRequests, Member
from otel_lifecycle.integrations._hooks import EngineMismatch, Hooks, observe

SERVER_MODULE: Final = "transformers.cli.serving.server"
_NS: Final = 1_000_000_000
_PENDING: Final = 0
_FINISHED: Final = 3
_NUMBERS: Final = {"PENDING": _PENDING, "PREFILLING": 1, "DECODING": 2, "FINISHED": _FINISHED, "FAILED": 4}


def patch(hooks: Hooks, tracer_provider: TracerProvider | None) -> None:
    """Wrap the methods that show a request's lifecycle; EngineMismatch if one is missing."""
    from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager, OutputRouter
    from transformers.generation.continuous_batching.requests import RequestState, RequestStatus
    from transformers.generation.continuous_batching.scheduler import Scheduler

    # The hooks compare numbers, so a release that renumbers the states must be refused here.
    if {status.name: int(status) for status in RequestStatus} != _NUMBERS:
        raise EngineMismatch("RequestStatus has other members")
    engine = _BatchingEngine(tracer_provider)
    hooks.around(
        ContinuousBatchingManager, "add_request", before=engine.asked, after=engine.queued, failed=engine.refused
    )
    hooks.around(RequestState, "__post_init__", after=engine.made)
    hooks.around(RequestState, "create_equivalent_initial_request", after=engine.reset)
    hooks.around(RequestState, "fork", after=engine.forked)
    hooks.around(RequestState, "update_and_check_completion", before=engine.samples, after=engine.sampled)
    _watch_status(hooks, RequestState, engine.moved)
    hooks.around(Scheduler, "add_waiting_request", after=engine.waits)
    hooks.around(Scheduler, "clear_cancelled_requests", after=engine.cancelled)
    hooks.around(OutputRouter, "fail_and_deliver", before=engine.failed)


def patch_server(hooks: Hooks, wrap_app: Callable[[Any], None]) -> None:
    """Give the app of ``transformers serve`` to ``wrap_app``; nothing where the server is not installed."""
    from importlib import import_module

    try:
        server = import_module(SERVER_MODULE)
    except ImportError:
        return
    hooks.around(server, "build_server", after=lambda _noted, app, *_arguments, **_named: wrap_app(app))


def _watch_status(hooks: Hooks, owner: Any, moved: Callable[[Any, int, int], None]) -> None:
    # The setter, because many methods of the engine change the status, and all of them go through it.
    original = vars(owner).get("status")
    if not isinstance(original, property) or original.fset is None:
        raise EngineMismatch("RequestState.status is not a property that can be set")
    set_status = original.fset

    def status(state: Any, value: Any) -> None:
        before = int(state.status)
        set_status(state, value)
        observe(moved, state, before, int(value))

    hooks.replace(owner, "status", original.setter(status))


class _BatchingEngine:
    """The hooks.  A request is added on the caller's thread, all the rest happens on its manager's one."""

    def __init__(self, tracer_provider: TracerProvider | None) -> None:
        self._requests = EngineRequests(tracer_provider)
        self._names = EngineNames("transformers")
        self._adding = threading.local()
        self._states: dict[int, weakref.ref[Any]] = {}
        self._origins: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def asked(self, manager: Any, input_ids: Any = (), *_arguments: Any, **named: Any) -> None:
        """Before ``add_request``.  The state that it makes finds the request by this thread."""
        model = _model(manager)
        choices = getattr(manager, "num_return_sequences", None) or 1
        group = self._requests.begin(
            {
                "model": model,
                "engine": self._names.of(manager, model),
                "provider": "huggingface",
                "operation": "text_completion",
                "input_tokens": len(input_ids),
                "stream": named.get("streaming"),
            },
            shape="preprocess_first",
            expected=choices,
        )
        self._adding.group = group

    def queued(self, _noted: None, name: str | None, *_arguments: Any, **_named: Any) -> None:
        """After ``add_request``, which returns None where the manager takes no more requests."""
        group = self._adding.group
        self._adding.group = None
        if name is None and group is not None:
            group.driver.finish("error", error="shutdown")

    def refused(self, _noted: None, error: BaseException) -> None:
        """``add_request`` raised: the queue was full for too long."""
        group: EngineGroup | None = self._adding.group
        self._adding.group = None
        if group is not None:
            group.driver.finish("error", error="queue_full" if type(error).__name__ == "Full" else error)

    def made(self, _noted: None, _result: None, state: Any) -> None:
        """After ``RequestState.__post_init__``."""
        group: EngineGroup | None = getattr(self._adding, "group", None)
        if group is None:
            return
        group.driver.suggest(request_id=state.request_id, max_tokens=state.max_new_tokens)
        group.driver.mark("input_ready", at_monotonic_ns=int(state.created_time * _NS))
        self._join(state, group, 0)

    def reset(self, _noted: None, new: Any, state: Any) -> None:
        """After ``create_equivalent_initial_request``: its cache was taken away, or it is a choice without room.

        Which of the two shows when it is put into the queue: a choice has an id of its own by then.
        """
        if self._member(state) is not None:
            self._origins[id(new)] = (weakref.ref(new), state)

    def forked(self, _noted: None, new: Any, state: Any, *_arguments: Any) -> None:
        """After ``fork``: another choice, which is running already."""
        member = self._member(state)
        if member is not None:
            self._join(new, member.group, member.group.joined).admitted = True

    def moved(self, state: Any, before: int, after: int) -> None:
        """The status was set.  It becomes FINISHED inside :meth:`samples` and :meth:`sampled` only."""
        member = self._member(state)
        if member is not None and before == _PENDING and after < _FINISHED:
            now = time.perf_counter_ns()
            member.scheduled(now if member.admitted else int(state.lifespan[0] * _NS))

    def samples(self, state: Any, *_arguments: Any) -> tuple[Member, int, int] | None:
        """Before ``update_and_check_completion``."""
        member = self._member(state)
        return None if member is None else (member, state.generated_len(), time.perf_counter_ns())

    def sampled(self, noted: tuple[Member, int, int] | None, finished: bool, state: Any, *_arguments: Any) -> None:
        """After ``update_and_check_completion``: one token, unless it was over the limit, which may be the last."""
        if noted is None:
            return
        member, tokens, now = noted
        # Only if the answer grew: a token above the limit is computed and thrown away.
        if state.generated_len() > tokens:
            stamps = state.timestamps
            _token(member, int(stamps[-1] * _NS) if stamps else now)
        if finished:
            full = state.max_new_tokens is not None and state.generated_len() >= state.max_new_tokens
            self._close(state, "length" if full else "stop")

    def waits(self, _noted: None, _result: None, _scheduler: Any, state: Any) -> None:
        """After ``add_waiting_request``: for the first time, or because its cache was taken away."""
        # Popped, so that the mapping holds a state only between its reset and its return to the queue.
        known, origin = self._origins.pop(id(state), (None, None))
        if known is not None and known() is state:
            self._continue(origin, state)
        member = self._member(state)
        if member is not None and member.admitted:
            member.preempted(time.perf_counter_ns())

    def _continue(self, origin: Any, state: Any) -> None:
        member = self._member(origin)
        if member is None:
            return
        if state.request_id != origin.request_id:
            self._join(state, member.group, member.group.joined)
            return
        self._requests.move(id(origin), id(state))
        self._states.pop(id(origin), None)
        self._states[id(state)] = weakref.ref(state)

    def cancelled(self, _noted: None, states: Iterable[Any], *_arguments: Any) -> None:
        """After ``clear_cancelled_requests``; the engine delivers nothing for these."""
        for state in states:
            self._close(state, "abort")

    def failed(self, _router: Any, state: Any, error: BaseException) -> None:
        """Before ``fail_and_deliver``."""
        self._close(state, "error", error)

    def _join(self, state: Any, group: EngineGroup, choice: int) -> Member:
        self._states[id(state)] = weakref.ref(state)
        return self._requests.join(id(state), group, choice)

    def _member(self, state: Any) -> Member | None:
        known = self._states.get(id(state))
        # A state that is gone may have left its identity to another one.
        return self._requests.get(id(state)) if known is not None and known() is state else None

    def _close(self, state: Any, reason: str, error: object = None) -> None:
        if self._member(state) is not None:
            self._states.pop(id(state), None)
            self._requests.close(id(state), reason, error=error)


def _token(member: Member, stamp: int) -> None:
    drive = member.group.driver
    if member.started and member.group.expected == 1:
        # A fifth of what item() costs, which also passes boundaries and knows of choices.
        drive.request.token(at_ns=monotonic(ns=stamp))
    else:
        member.started = True
        drive.item(1, member.choice, at_monotonic_ns=stamp)


def _model(manager: Any) -> str | None:
    path = getattr(getattr(getattr(manager, "model", None), "config", None), "_name_or_path", None)
    return PurePath(path).name or None if isinstance(path, str) else None
