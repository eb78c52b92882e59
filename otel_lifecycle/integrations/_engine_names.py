"""Which engine a request runs on, as the drop-ins name it.

Requests interfere with each other only on the same engine, so two engines of one process must not share a name.  The
first one with a model is called as the model; each further one that lives beside it gets a number.
"""

from __future__ import annotations

import weakref
from typing import Any

__all__ = ["EngineNames"]


class EngineNames:
    """A name for each engine object.  ``kind``: the name of an engine whose model is not known."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        # Weak: the name of an engine that is gone is free again.
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def of(self, engine: Any, model: str | None) -> str:
        """Return the name of an engine, the same for as long as it lives; adapters of one engine share it."""
        known = self._names.get(engine)
        if known is not None:
            return known
        base = model or self._kind
        taken = set(self._names.values())
        name, number = base, 1
        while name in taken:
            number += 1
            name = f"{base} #{number}"
        # Of two threads that ask at once for the first time, both get the name that was stored.
        return self._names.setdefault(engine, name)
