"""The library's voice: one logger, and no line more than once a minute for the same place."""

from __future__ import annotations

import logging
from time import monotonic
from typing import Final

logger: Final = logging.getLogger("otel_lifecycle")

QUIET_S: Final = 60.0
_last_said: dict[str, float] = {}


def say(place: str, message: str, *, level: int = logging.WARNING, error: BaseException | None = None) -> None:
    """Log a line, with the error's stack if there is one, unless this place said something within the last minute."""
    now = monotonic()
    last = _last_said.get(place)
    if last is not None and now - last < QUIET_S:
        return
    _last_said[place] = now
    logger.log(level, "%s", message, exc_info=error)
