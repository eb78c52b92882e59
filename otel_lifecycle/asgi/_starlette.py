"""What Starlette does with ``http.disconnect`` (checked on 0.37 to 0.52).

A handler that polls ``request.is_disconnected()`` below a BaseHTTPMiddleware never learns that its client left: the
middleware takes the message in a scope that is cancelled already, and it is lost on the way down.  Where a release
hands the message on, or moves the code, the handler counts as told: then one that stops early counts as cancelled.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Final

_MIDDLEWARE: Final = "starlette.middleware.base"
_POLL: Final = "is_disconnected"
MAX_FRAMES: Final = 200
"""Callers looked at; between a poll and the server's ``receive`` lie a few frames for each middleware."""


def loses_disconnect() -> bool:
    """Return whether the caller that asks for a message now is such a poll."""
    # Not inspect.stack(), which reads source files.  The walk happens only when a disconnect is handed to the app.
    frame: FrameType | None = sys._getframe(1)
    below_middleware = False
    for _ in range(MAX_FRAMES):
        if frame is None:
            return False
        below_middleware = below_middleware or frame.f_globals.get("__name__") == _MIDDLEWARE
        if below_middleware and frame.f_code.co_name == _POLL:
            return True
        frame = frame.f_back
    return False
