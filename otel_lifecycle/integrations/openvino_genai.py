"""OpenVINO GenAI: the requests of ``ContinuousBatchingPipeline.add_request``.

Switched on by :func:`instrument`.  Tokens carry the engine's own times, those of a cancelled request too.  The engine
does not tell when it admits or evicts a request, so those stages are absent.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.trace import TracerProvider

from otel_lifecycle.integrations import _openvino_adapter
from otel_lifecycle.integrations._drop_in import DropIn

_DROP_IN: Final = DropIn(
    name="openvino_genai",
    distributions=("openvino-genai",),
    since=(2026, 4),
    before=(2027,),
    patch=_openvino_adapter.patch,
)


def instrument(tracer_provider: TracerProvider | None = None) -> bool:
    """Make the requests of OpenVINO GenAI in this process inference requests; return whether that was possible."""
    return _DROP_IN.instrument(tracer_provider)


def uninstrument() -> None:
    """Put back what :func:`instrument` replaced."""
    _DROP_IN.uninstrument()
