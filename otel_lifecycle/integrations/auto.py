"""What ``opentelemetry-instrument`` runs: it puts the processor in place, whoever sets the providers up.

There is no configurator of ours: only one configurator runs, and with ours an installed distro would not do its work.
After all instrumentors have run, the providers of a distro get the processor; without a distro nobody has set any up,
and :func:`otel_lifecycle.configure` does.
"""

from __future__ import annotations

import logging

from otel_lifecycle import configure
from otel_lifecycle._log import say
from otel_lifecycle._runtime import runtime


def ensure_processor() -> None:
    """The entry point ``opentelemetry_post_instrument``: add the processor, unless one is in place.

    It raises nothing: an error here ends the instrumentation of an app that may never use this library.
    """
    if runtime().processors():
        return
    try:
        configure()
    except Exception as error:  # noqa: BLE001  # other programs must run as without this package
        say("auto", "otel_lifecycle is not set up", level=logging.ERROR, error=error)
