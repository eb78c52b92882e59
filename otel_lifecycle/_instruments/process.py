"""The process in its own metrics: that it serves, that it ended in order, and since when it runs.

A process that is killed leaves its last values behind, whatever they were.  An orderly end sends one more: 0 servers.
"""

from __future__ import annotations

import os
import time
import weakref
from typing import Any

from opentelemetry.metrics import CallbackOptions, Observation


class ServingProcess:
    """What is observed of the process; nothing before its first request, so an app that serves none exports nothing.

    ``recorders``: the processors that record here.  ``had_traffic``: set with the first request that ends.
    """

    def __init__(self, recorders: weakref.WeakSet[Any]) -> None:
        self.had_traffic = False
        self._recorders = recorders
        self._retired: weakref.WeakSet[Any] = weakref.WeakSet()
        self._started = (os.getpid(), time.time())

    def retire(self, recorder: object) -> None:
        """Stop counting this processor as one that serves: it was shut down in order."""
        self._retired.add(recorder)

    def servers(self, options: CallbackOptions) -> list[Observation]:
        """Observe 1 while any processor serves, else 0."""
        serving = any(recorder not in self._retired for recorder in self._recorders)
        return [Observation(int(serving))] if self.had_traffic else []

    def start_time(self, options: CallbackOptions) -> list[Observation]:
        """Observe when the process began, in seconds since 1970."""
        # A fork that inherits the app's own providers keeps the instance id of its parent. Its own start time makes the
        # two visible as two.
        if self._started[0] != os.getpid():
            self._started = (os.getpid(), time.time())
        return [Observation(self._started[1])] if self.had_traffic else []
