"""The interval logs of all engines of a process, by what their requests compete for.

How it works.  A log is made when the first request of its engine arrives.  At the limit an idle log makes room; if none
is idle, the request goes without a log, because another engine's log would blame the wrong requests.
"""

from __future__ import annotations

from typing import Final

from otel_lifecycle._core.engine_log import EngineLog

MAX_ENGINES: Final = 64
"""Logs kept; the name of an engine may be a model that a client made up."""


class EngineLogs:
    """One log for each engine.

    ``enabled``: whether requests are entered at all.  ``shared``: other processes feed the same engines.
    ``name_culprits``: whether the request ids of culprits are told, which may belong to another tenant.
    """

    __slots__ = ("_logs", "enabled", "name_culprits", "shared")

    def __init__(self, *, enabled: bool = True, shared: bool = False, name_culprits: bool = True) -> None:
        self.enabled = enabled
        self.shared = shared
        self.name_culprits = name_culprits
        self._logs: dict[str, EngineLog] = {}

    def log(self, engine: str) -> EngineLog | None:
        """Return the log of an engine; None where logs are switched off, and of one engine too many."""
        if not self.enabled:
            return None
        known = self._logs.get(engine)
        if known is not None:
            return known
        if len(self._logs) >= MAX_ENGINES and not self._drop_idle():
            # Each of the others has a request open.  To enter it elsewhere would blame requests of another engine.
            return None
        # Of two threads that meet here, the first one's log stands for both.
        return self._logs.setdefault(engine, EngineLog(shared=self.shared))

    def _drop_idle(self) -> bool:
        # A copy made by one C call, because other threads add logs meanwhile.
        for engine, log in list(self._logs.items()):
            if log.idle:
                self._logs.pop(engine, None)
                return True
        return False

    def fresh(self) -> EngineLogs:
        """Return empty logs with the same switches, for a forked child."""
        return EngineLogs(enabled=self.enabled, shared=self.shared, name_culprits=self.name_culprits)
