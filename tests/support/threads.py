"""The threads of exporters and readers, none of which may outlive the test that started it."""

from __future__ import annotations

import threading

NAMES = ("OtelBatch", "OtelPeriodicExporting", "otel-lifecycle-")
"""How the SDK calls the threads of its batch processors and its periodic reader, and we those of a shutdown."""


def exporting() -> set[threading.Thread]:
    """Return those that run now."""
    return {thread for thread in threading.enumerate() if thread.name.startswith(NAMES)}


def still_running(threads: set[threading.Thread], seconds: float = 10.0) -> list[str]:
    """Return the names of those that go on; one that was told to stop gets the time to do so."""
    for thread in threads:
        thread.join(seconds)
    return sorted(thread.name for thread in threads if thread.is_alive())
