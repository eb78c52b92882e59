"""Rate-limited logging: one logger, and at most one line a minute for the same place.

What fails once often fails for every request.  The first line says so; the rest would bury the app's own log.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import Final

logger: Final = logging.getLogger("otel_lifecycle")

QUIET_S: Final = 60.0
# No lock: a finalizer may log while this thread holds any lock.  A race costs one line more.  Places are names in the
# code, of settings or of exporters, so the mapping stays small.
_last_said: dict[str, float] = {}


def say(place: str, message: str, *, level: int = logging.WARNING, error: BaseException | None = None) -> None:
    """Log a line, with the error's stack if there is one, unless this place said something within the last minute."""
    # Monotonic, because a wall clock that is set back would silence the place.
    now = monotonic()
    last = _last_said.get(place)
    if last is not None and now - last < QUIET_S:
        return
    _last_said[place] = now
    logger.log(level, "%s", message, exc_info=error)
