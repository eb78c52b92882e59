"""What ``opentelemetry-instrument`` runs: the processor is put in place, whoever sets the providers up."""

from __future__ import annotations

from typing import Any

from otel_lifecycle import _registry, configure


class LifecycleConfigurator:
    """The entry point ``opentelemetry_configurator``: providers, OTLP and the processor, by :func:`configure`.

    Where another configurator is installed too, OTEL_PYTHON_CONFIGURATOR=otel_lifecycle chooses this one; with the
    other one, :func:`ensure_processor` adds the processor to what it set up.
    """

    def configure(self, **options: Any) -> None:
        """Set everything up from OTEL_* and OTEL_LIFECYCLE_* variables."""
        configure()


def ensure_processor() -> None:
    """The entry point ``opentelemetry_post_instrument``: add the processor, unless one is in place."""
    if not _registry.processors():
        configure()
