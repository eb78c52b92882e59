"""One preemption of a request.

How it works.  ``preempt`` makes one and ``resume``, or the end of the request, sets its end.  A bound without a time
leaves the length unknown, and with it every figure that preempted time is taken off.  ``remote`` and ``across`` say
that the clock of another process gave its start, or one of its two bounds: then its length is no difference of two
readings of one clock.
"""

from __future__ import annotations

from otel_lifecycle._core.tokens import Time


class Interruption:
    """A time in which a state was preempted; ``start`` or ``end`` None where unknown."""

    __slots__ = ("across", "end", "remote", "start", "state")

    def __init__(self, state: str, start: Time | None, remote: bool) -> None:
        self.state = state
        self.start = start
        self.end: Time | None = None
        self.remote = remote
        self.across = False

    @property
    def duration(self) -> Time | None:
        """How long it lasted; None where either end is unknown."""
        return None if self.start is None or self.end is None else self.end - self.start
