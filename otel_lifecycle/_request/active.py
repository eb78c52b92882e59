"""A block in which a request and its span are current.

How it works.  Entering attaches a context with the request and its span; leaving detaches it, once.  The block ends
nothing: it is for servers that hand work on while the request stays theirs.
"""

from __future__ import annotations

from contextvars import Token
from types import TracebackType

from opentelemetry.context import Context, attach, get_current

from otel_lifecycle._request.blocks import Block
from otel_lifecycle._request.context import context_of, detach_own
from otel_lifecycle._request.tracked import TrackedRequest


class Active(Block):
    """``with request.active():`` and ``async with``.  It is not an end of the request.  One object is one block."""

    __slots__ = ("_token", "_tracked")

    def __init__(self, tracked: TrackedRequest | None) -> None:
        self._tracked = tracked
        self._token: Token[Context] | None = None

    def __enter__(self) -> None:
        if self._tracked is not None:
            # The block keeps it, not the request: one request may be active in several tasks at once.
            self._token = attach(context_of(self._tracked, get_current()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Make current what was current before; once."""
        token, self._token = self._token, None
        if token is not None:
            detach_own(token)
