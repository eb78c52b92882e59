"""SGLang: its server.

Switched on by ``OTEL_LIFECYCLE_SGLANG=on`` where this package is installed beside SGLang, which loads it as a plug-in,
or by :func:`instrument`.  Each call of the client is one request, its choices (n > 1) included.  Admission needs
``--enable-metrics``: without it the scheduler sends no times.  A retraction is counted, its time is not known.
"""

from __future__ import annotations

from typing import Any, Final

from opentelemetry.trace import TracerProvider

from otel_lifecycle.integrations import _sglang_adapter
from otel_lifecycle.integrations._drop_in import DropIn
from otel_lifecycle.integrations._hooks import observe
from otel_lifecycle.integrations.auto import ensure_processor

_DROP_IN: Final = DropIn(
    name="sglang",
    distributions=("sglang",),
    since=(0, 5, 23),
    before=(0, 6),
    patch=_sglang_adapter.patch,
)


def instrument(tracer_provider: TracerProvider | None = None) -> bool:
    """Make the requests of SGLang in this process inference requests; return whether that was possible."""
    return _DROP_IN.instrument(tracer_provider)


def uninstrument() -> None:
    """Put back what :func:`instrument` replaced."""
    _DROP_IN.uninstrument()


def plugin() -> None:
    """The entry point ``sglang.srt.plugins``: SGLang calls it in every process it starts.

    The hooks are set when the module that answers clients is imported, and nothing else happens before an object of it
    is made: the scheduler and the detokenizer never make one.
    """
    if _DROP_IN.switched_on():
        observe(_sglang_adapter.when_frontend_is_imported, _start)


def _start() -> None:
    # None if the hooks were set before: then the app called instrument() and sets its providers up itself.
    hooks = _DROP_IN.start()
    if hooks is not None:
        hooks.around(_sglang_adapter.manager(), "__init__", after=_configured)


def _configured(*_arguments: Any, **_named: Any) -> None:
    # Only when a frontend is made: exporters in the scheduler's and the detokenizer's processes would be idle threads.
    ensure_processor()
