"""The default endpoint: often nothing listens there, because the user is only trying the library out.

The exporters retry for seconds and log a traceback for each batch, also while the process ends.  For the default
endpoint, and only for it, a connection to the loopback tells before each export whether anything listens.
"""

from __future__ import annotations

import logging
import socket
from typing import Final

from otel_lifecycle._log import say

PORTS: Final = {"grpc": 4317, "http/protobuf": 4318}
CONNECT_TIMEOUT_S: Final = 0.5
"""A refused connection to the loopback answers at once; this only bounds a full backlog."""


class DefaultEndpoint:
    """The default OTLP endpoint of one protocol."""

    __slots__ = ("_port",)

    def __init__(self, protocol: str) -> None:
        self._port = PORTS[protocol]

    def answers(self) -> bool:
        """Return whether a Collector listens; if not, log the remedies once."""
        try:
            # Asked before each export and not once, because a Collector may be started after the app.  By name, because
            # it may listen on ::1 alone: create_connection() tries every address.
            socket.create_connection(("localhost", self._port), CONNECT_TIMEOUT_S).close()
        except OSError:
            # One key for both signals: one line tells all there is to do.
            say(
                "default_endpoint",
                f"nothing is exported: no Collector listens on localhost:{self._port}, the default. Start one, name "
                "another by OTEL_EXPORTER_OTLP_ENDPOINT, see the requests with `otel-lifecycle run -- ...`, or switch "
                "the export off with OTEL_TRACES_EXPORTER=none OTEL_METRICS_EXPORTER=none",
                level=logging.WARNING,
            )
            return False
        return True
