"""One preemption of a request."""

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
