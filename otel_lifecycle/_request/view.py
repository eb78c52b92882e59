"""What is known of a request, read without changing anything.

How it works.  A view may stand for no request.  Each property then gives the answer that makes its reader do nothing,
so drop-ins need no test of their own.
"""

from __future__ import annotations

from opentelemetry.trace import INVALID_SPAN, Span

from otel_lifecycle._core.endings import Terminal
from otel_lifecycle._core.lifecycle import NOT_ARRIVED
from otel_lifecycle._request.handle import Request, tracked_of


class RequestView:
    """A request as code that acts for its server sees it.  ``request``: its handle; falsy: there is nothing to do."""

    __slots__ = ("_tracked", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self._tracked = tracked_of(request)

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return self._tracked is not None

    @property
    def state(self) -> str:
        """The state of the lifecycle table it is in; once it has ended, its outcome."""
        return NOT_ARRIVED if self._tracked is None else self._tracked.state.name

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._tracked is not None and self._tracked.ended

    @property
    def awaits_output(self) -> bool:
        """Whether it is open and nothing has come out of it yet."""
        return self._tracked is not None and self._tracked.state.awaits_output

    @property
    def marked(self) -> bool:
        """Whether somebody has marked a boundary of it."""
        return self._tracked is not None and not self._tracked.state.unmarked

    @property
    def client_left(self) -> bool:
        """Whether ``client_disconnected`` was noted."""
        return self._tracked is not None and self._tracked.state.disconnected

    @property
    def exhausted(self) -> bool:
        """Whether a stream of it ran to its end."""
        return self._tracked is not None and self._tracked.state.exhausted

    @property
    def raised(self) -> Terminal | None:
        """How the first fault that came out of a stream or a block would end it; None if there was none.

        A cancellation is not a fault: what the server made of it says more.
        """
        passed = None if self._tracked is None else self._tracked.state.passed
        return None if passed is None or passed.event == "cancel" else passed

    @property
    def token_marks(self) -> int:
        """The number of its token marks so far."""
        return 0 if self._tracked is None else self._tracked.state.timeline.token_marks()

    @property
    def output_tokens(self) -> int | None:
        """The output tokens that a usage figure gave; None if there was none."""
        return None if self._tracked is None else self._tracked.conditions.usage.get("output_tokens")

    @property
    def span(self) -> Span:
        """Its span; an invalid one where there is nothing to do."""
        return INVALID_SPAN if self._tracked is None else self._tracked.span

    def has(self, condition: str) -> bool:
        """Return whether a condition of it is known."""
        return self._tracked is not None and self._tracked.conditions.has(condition)

    def since_arrival_ns(self) -> int:
        """Return the nanoseconds since its arrival."""
        return 0 if self._tracked is None else self._tracked.state.elapsed()
