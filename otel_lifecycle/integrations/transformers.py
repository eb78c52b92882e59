"""transformers: continuous batching, in the library and in ``transformers serve``.

Switched on by :func:`instrument`.  For the server, ``python -m otel_lifecycle.integrations.transformers serve …`` does
that, sets the exporters up and starts it.  A request that was cancelled, which the engine forgets, is seen too; so are
requests whose cache was taken away for a while.
"""

from __future__ import annotations

from typing import Any, Final

from opentelemetry.trace import TracerProvider

from otel_lifecycle.asgi import LifecycleMiddleware, Route
from otel_lifecycle.integrations import _transformers_adapter
from otel_lifecycle.integrations._drop_in import DropIn
from otel_lifecycle.integrations._hooks import Hooks

ROUTES: Final = (
    Route("POST /v1/chat/completions", operation="chat", shape="preprocess_first"),
    Route("POST /v1/completions", operation="text_completion", shape="preprocess_first"),
    Route("POST /v1/responses", operation="chat", shape="preprocess_first"),
)
"""The server's routes that are requests."""


def _patch(hooks: Hooks, tracer_provider: TracerProvider | None) -> None:
    def follow(app: Any) -> None:
        # The engine's hooks join the request that this opens, so that it begins at the HTTP server.
        app.add_middleware(LifecycleMiddleware, routes=ROUTES, tracer_provider=tracer_provider)

    _transformers_adapter.patch(hooks, tracer_provider)
    _transformers_adapter.patch_server(hooks, follow)


_DROP_IN: Final = DropIn(
    name="transformers", distributions=("transformers",), since=(5, 24), before=(5, 25), patch=_patch
)


def instrument(tracer_provider: TracerProvider | None = None) -> bool:
    """Make the requests of continuous batching in this process inference requests; return whether that was possible."""
    return _DROP_IN.instrument(tracer_provider)


def uninstrument() -> None:
    """Put back what :func:`instrument` replaced."""
    _DROP_IN.uninstrument()


def main() -> None:
    """Run the command ``transformers`` with its server instrumented."""
    # Imported here: transformers loads torch, and importing this module must stay cheap.
    from transformers.cli.transformers import main as command

    from otel_lifecycle.integrations.auto import ensure_processor

    ensure_processor()
    instrument()
    command()


if __name__ == "__main__":
    main()
