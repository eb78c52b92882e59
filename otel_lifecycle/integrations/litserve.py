"""``LitServe``: its HTTP endpoints, and its inference workers in other processes.

A request arrives over HTTP, is admitted when a worker takes it from the queue, and its input is ready when
``predict`` begins.  Its engine is the API it asks for; where an API has several workers, the one that takes it.
Tokens are those of the frames of an OpenAI spec; what another API streams is output of unknown
size, and what it returns is a whole answer.  Where a worker decodes several requests at once, it does not tell which
one enters the model, so preprocessing and prefill are absent.  ``on_after_predict`` is not used: for a generator it
comes before the first token, not after the last.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final

from opentelemetry.trace import TracerProvider

from otel_lifecycle import driver
from otel_lifecycle._guard import guarded
from otel_lifecycle._request.handle import Request
from otel_lifecycle._request.opening import current
from otel_lifecycle.asgi import LifecycleMiddleware, Route
from otel_lifecycle.integrations._engine import EngineInstrumentor
from otel_lifecycle.integrations._hooks import Hooks, installed_version, observe

_STATES: Final = {"admit": "queued", "input_ready": "preprocessing"}
"""What a worker tells -> the state in which it is news."""


class LitServeInstrumentor(EngineInstrumentor):
    """Makes each request of a ``LitServer`` an inference request."""

    distribution: ClassVar[str] = "litserve"
    requirement: ClassVar[str] = ">= 0.2.19, < 0.3"

    def _patch(self, hooks: Hooks, tracer_provider: TracerProvider | None) -> None:
        # Imported here: this module is loaded as an entry point, whether LitServe is installed or not.
        import litserve.server
        import litserve.utils

        from otel_lifecycle.integrations import _litserve_worker as worker

        told = {"backend": "litserve", "backend_version": installed_version(self.distribution)}
        workers: dict[str, int] = {}

        def follow(server: Any) -> None:
            # First what may be missing: a server whose workers send no marks is better left alone.
            _add_marks(server, worker.WorkerMarks(), workers)
            routes = [_route_of(litserve, lit_api) for lit_api in server.litapi_connector]
            server.app.add_middleware(LifecycleMiddleware, routes=routes, tracer_provider=tracer_provider, **told)

        def followed(original: Callable[..., None]) -> Callable[..., None]:
            def register_middleware(server: Any) -> None:
                original(server)
                observe(follow, server)

            return register_middleware

        def listening(original: Callable[..., Any]) -> Callable[..., Any]:
            def response_queue_to_buffer(transport: Any, buffer: Any, *more: Any, **named: Any) -> Any:
                return original(_Listening(transport, buffer, worker, workers), buffer, *more, **named)

            return response_queue_to_buffer

        # Not public, checked with 0.2.19.  Where the method or the function is missing, the server is left alone.
        hooks.wrap(litserve.server.LitServer, "_register_middleware", followed)
        hooks.wrap(litserve.server.LitServer, "_start_server", partial(_serving, workers))
        hooks.wrap(litserve.server, "response_queue_to_buffer", listening)
        hooks.wrap(litserve.utils.ResponseBufferItem, "__init__", _remembering)


def _add_marks(server: Any, marks: Any, workers: dict[str, int]) -> None:
    """Give the server's workers the callback that marks, and note how many workers each API has."""
    # The public way to add a callback is an argument of LitServer, which exists by now.
    server._callback_runner._add_callbacks(marks)
    for lit_api in server.litapi_connector:
        workers[lit_api.api_path] = len(server._inference_workers_config_for_api(lit_api.api_path))


def _serving(workers: dict[str, int], original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def start_server(*arguments: Any, **named: Any) -> Any:
        observe(_say_who_competes, signature, workers, arguments, named)
        return original(*arguments, **named)

    return start_server


def _say_who_competes(signature: inspect.Signature, workers: dict[str, int], arguments: Any, named: Any) -> None:
    """Before the API servers start, each of them a fork of this process: tell which engines are not theirs alone."""
    told = signature.bind(*arguments, **named).arguments
    several = told["num_uvicorn_servers"] > 1 and told["uvicorn_worker_type"] == "process"
    for api, count in workers.items():
        if count > 1:
            # Until one of them takes a request, nobody knows which one it will be.
            driver.engines_are_mixed(api)
        if several:
            for engine in (api, *(_engine_of(api, number) for number in range(count))):
                driver.engine_is_shared(engine)


def _engine_of(api: str, worker: int) -> str:
    """Return the name of one of several workers of an API."""
    return f"{api} #{worker}"


def _route_of(litserve: Any, lit_api: Any) -> Route:
    """Return the route of one API and what is known of its requests."""
    if isinstance(lit_api.spec, litserve.OpenAISpec):
        path = lit_api.spec.api_path
        return Route(path, methods=["POST"], operation="chat", tokens="openai", engine=lit_api.api_path)
    if isinstance(lit_api.spec, litserve.OpenAIEmbeddingSpec):
        path = lit_api.spec.api_path
        told = {"operation": "embeddings", "shape": "pooling", "engine": lit_api.api_path}
        return Route(path, methods=["POST"], tokens="openai", **told)
    # Whatever it is that the API makes, the conventions have no better word for it.
    path = lit_api.api_path
    return Route(path, methods=["POST"], operation="generate_content", tokens=_unknown, engine=path)


def _unknown(part: object) -> None:
    """Return None: only the API knows how many tokens a part of an answer has."""


def _remembering(original: Callable[..., None]) -> Callable[..., None]:
    """Where an answer is waited for, remember which request waits."""

    def init(item: Any, *arguments: Any, **named: Any) -> None:
        original(item, *arguments, **named)
        handle = current()
        if handle:
            # On the item, because the listener runs in a task of its own, where no request is current.  Weak, because
            # the server may keep the item longer than the request.
            item.otel_lifecycle = weakref.ref(handle)

    return init


class _Listening:
    """A transport whose messages are looked at as they come."""

    def __init__(self, transport: Any, waiting: Any, worker: Any, workers: dict[str, int]) -> None:
        self._transport = transport
        self._waiting = waiting
        self._worker = worker
        self._workers = workers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    async def areceive(self, *arguments: Any, **named: Any) -> Any:
        """Return the next message."""
        message = await self._transport.areceive(*arguments, **named)
        if message is not None:
            guarded("a message of a worker", self._look, message)
        return message

    def _look(self, message: Any) -> None:
        uid, (_, status, kind, worker_id) = message
        handle = self._waits_for(uid)
        if handle is not None:
            self._take(handle, status, kind, worker_id)

    def _waits_for(self, uid: str) -> Request | None:
        reference = getattr(self._waiting.get(uid), "otel_lifecycle", None)
        handle: Request | None = None if reference is None else reference()
        return handle

    def _take(self, handle: Request, status: Any, kind: Any, worker_id: Any) -> None:
        if isinstance(worker_id, self._worker.Mark):
            # Several choices are taken from the queue one by one; the first one counts for the request.
            # Checked before the mark, because a late one would be an illegal transition.
            if handle.state == _STATES[worker_id.event]:
                if worker_id.event == "admit" and self._workers.get(worker_id.api, 0) > 1:
                    handle.set(engine=_engine_of(worker_id.api, int(worker_id)))
                handle.record([{"event": worker_id.event, "timestamp": worker_id.at_ns}])
        elif status == self._worker.LitAPIStatus.ERROR and kind == self._worker.LoopResponseType.STREAMING:
            # The client sees a stream that ends normally, with what there was until now.
            handle.fail("engine_error")
