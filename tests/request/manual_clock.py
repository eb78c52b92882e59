"""A clock that a test sets by hand, in the place of the two that requests read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle._runtime import runtime

EPOCH = 1_700_000_000_000_000_000


class Clock:
    """A clock that is set by hand, in the place of the two that requests read."""

    def __init__(self) -> None:
        self.now = 10**15

    @classmethod
    def instead(cls, monkeypatch: pytest.MonkeyPatch) -> Clock:
        """Let requests read a new clock from now on; who undoes that forgets the offset that was measured."""
        made = cls()
        # The package loads its modules when a public name of it is used first; only then can all of them be found.
        assert lifecycle.request is not None
        for name, module in list(sys.modules.items()):
            if name.startswith("otel_lifecycle."):
                for read in ("perf_counter_ns", "time_ns"):
                    if hasattr(module, read):
                        monkeypatch.setattr(module, read, getattr(made, read))
        return made

    def perf_counter_ns(self) -> int:
        """Return the reading of the monotonic clock."""
        return self.now

    def time_ns(self) -> int:
        """Return the wall clock's time."""
        return self.now + EPOCH


def opened_at(request: Any) -> int:
    """Return when a request was opened, epoch nanoseconds by its own clock."""
    state = request._tracked.state
    return int(state.opened + state.offset)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """Let requests read a clock that the test sets."""
    yield Clock.instead(monkeypatch)
    # The offset between the two clocks is the process's: it was this clock's meanwhile.
    runtime().clock_offset.forget()
