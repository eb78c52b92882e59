"""Parts of a stage that a server names by itself: a child span each, and no state moves.

How it works.  Entering starts a span under the current one and makes it current; leaving ends it.  Nothing is kept in
the request, so phases may nest, repeat and overlap.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from opentelemetry.context import attach, get_current
from opentelemetry.trace import Span, set_span_in_context

from otel_lifecycle._request.blocks import Block
from otel_lifecycle._request.conditions import read_text
from otel_lifecycle._request.context import context_of, detach_own, is_current
from otel_lifecycle._request.tracked import TrackedRequest
from otel_lifecycle.errors import InvalidValue


class Phase(Block):
    """``with request.phase("vae_decode"):`` and ``async with``.  One object is one block."""

    __slots__ = ("_name", "_span", "_token", "_tracked")

    def __init__(self, tracked: TrackedRequest | None, name: object) -> None:
        self._tracked = tracked
        self._name = name
        self._span: Span | None = None
        self._token: Any = None

    def __enter__(self) -> None:
        tracked = self._tracked
        if tracked is None or tracked.ended:
            return
        try:
            name = read_text("phase", self._name)
        except InvalidValue as error:
            tracked.violate(error)
            return
        # Where the request is current, whatever span is current belongs to it: a phase may lie in a phase.
        here = get_current() if is_current(tracked) else context_of(tracked, get_current())
        self._span = tracked.writer.start_phase(name, here)
        self._token = attach(set_span_in_context(self._span, here))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        token, self._token = self._token, None
        span, self._span = self._span, None
        if token is not None:
            detach_own(token)
        if span is not None and self._tracked is not None:
            self._tracked.writer.end_phase(span, error)
            if error is not None:
                self._tracked.passed(error)
