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

    ``enabled``: whether requests are entered at all.  ``shared``: other processes feed the same engines, all of them.
    ``name_culprits``: whether the request ids of culprits are told, which may belong to another tenant.
    """

    __slots__ = ("_logs", "_mixed", "_shared", "enabled", "name_culprits", "shared")

    def __init__(self, *, enabled: bool = True, shared: bool = False, name_culprits: bool = True) -> None:
        self.enabled = enabled
        self.shared = shared
        self.name_culprits = name_culprits
        self._logs: dict[str, EngineLog] = {}
        # What drop-ins say of the few engines they drive; a name that a client made up is never among them.
        self._shared: frozenset[str] = frozenset()
        self._mixed: frozenset[str] = frozenset()

    def share(self, engine: str) -> None:
        """Note that other processes feed this engine, too: its idle time and its queue cannot be known here."""
        self._shared |= {engine}
        known = self._logs.get(engine)
        if known is not None:
            known.shared = True

    def mix(self, engine: str) -> None:
        """Note that several engines answer under this name, and that nobody says which one has a request."""
        self._mixed |= {engine}
        self._logs.pop(engine, None)

    def log(self, engine: str) -> EngineLog | None:
        """Return the log of an engine; None where logs are switched off, and of one engine too many."""
        if not self.enabled:
            return None
        if engine in self._mixed:
            # A log for this request alone: each of the others may run elsewhere, so none of them may be blamed.
            return EngineLog(shared=True)
        known = self._logs.get(engine)
        if known is not None:
            return known
        if len(self._logs) >= MAX_ENGINES and not self._drop_idle():
            # Each of the others has a request open.  To enter it elsewhere would blame requests of another engine.
            return None
        # If two threads get here at once, both use the log that was stored first.
        return self._logs.setdefault(engine, EngineLog(shared=self.shared or engine in self._shared))

    def _drop_idle(self) -> bool:
        # A copy made by one C call, because other threads add logs meanwhile.
        for engine, log in list(self._logs.items()):
            if log.idle:
                self._logs.pop(engine, None)
                return True
        return False

    def fresh(self) -> EngineLogs:
        """Return empty logs with the same switches, for a forked child."""
        logs = EngineLogs(enabled=self.enabled, shared=self.shared, name_culprits=self.name_culprits)
        # The engines stay those of the parent: a server that forks its workers said so before.
        logs._shared, logs._mixed = self._shared, self._mixed
        return logs
