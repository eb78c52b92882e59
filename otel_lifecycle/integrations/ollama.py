"""Ollama's Python client: each chat, generation and embedding of ``ollama.Client`` and ``ollama.AsyncClient``.

Switched on by :func:`instrument`.  Ollama says at the end how long loading, prefill and decode took; the stages are
derived from that, and the queue is what remains.  For clients that are not Python there is ``otel-lifecycle proxy``.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.trace import TracerProvider

from otel_lifecycle.integrations import _ollama_adapter
from otel_lifecycle.integrations._drop_in import DropIn

_DROP_IN: Final = DropIn(
    name="ollama",
    distributions=("ollama",),
    since=(0, 6),
    before=(0, 7),
    patch=_ollama_adapter.patch,
)


def instrument(tracer_provider: TracerProvider | None = None) -> bool:
    """Make the calls of Ollama's client in this process inference requests; return whether that was possible."""
    return _DROP_IN.instrument(tracer_provider)


def uninstrument() -> None:
    """Put back what :func:`instrument` replaced."""
    _DROP_IN.uninstrument()
