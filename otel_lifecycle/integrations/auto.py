"""What ``opentelemetry-instrument`` runs: it adds the processor, whether or not a distro sets the providers up.

We have no configurator: only one configurator runs, and ours would replace that of an installed distro.
After all instrumentors have run, the providers of a distro get the processor; without a distro there are none,
and :func:`otel_lifecycle.configure` sets them up.
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
    # An app may have called configure() already, or added the processor to its own provider.
    if runtime().processors():
        return
    try:
        configure()
    except Exception as error:  # noqa: BLE001  # other programs must run as without this package
        say("auto", "otel_lifecycle is not set up", level=logging.ERROR, error=error)
