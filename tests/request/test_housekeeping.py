"""Keeping house on a serving thread: a slice a call, however much there is to do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from otel_lifecycle._runtime import DROPPED_SLICE, SWEEP_SLICE, runtime


def done_by(call: Callable[[], None], done: list[int]) -> int:
    """Return how many were done by one call."""
    before = len(done)
    call()
    return len(done) - before


def start_sweep(monkeypatch: pytest.MonkeyPatch) -> deque[int]:
    """Make a sweep due that has visited nobody; return what it has yet to visit."""
    left: deque[int] = deque()
    monkeypatch.setattr(runtime(), "sweep_due", 0)
    monkeypatch.setattr(runtime(), "_to_sweep", left)
    return left


def test_serving_thread_sweeps_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand open requests: each has its turn once, no call sweeps more than a slice, and then nothing is due."""
    swept: list[int] = []
    opened = {
        number: SimpleNamespace(sweep=lambda now, *, thorough, number=number: swept.append(number))
        for number in range(1000)
    }
    monkeypatch.setattr(runtime(), "open_requests", opened)
    start_sweep(monkeypatch)
    assert [done_by(runtime().housekeep, swept) for _ in range(9)] == [*[SWEEP_SLICE] * 7, 104, 0]
    assert sorted(swept) == list(range(1000))


def test_collection_takes_over_a_sweep_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sweeps all of them, so nothing is left of the one before, and the next begins with those open then."""
    swept: list[int] = []
    opened = {
        number: SimpleNamespace(sweep=lambda now, *, thorough, number=number: swept.append(number))
        for number in range(200)
    }
    monkeypatch.setattr(runtime(), "open_requests", opened)
    left = start_sweep(monkeypatch)
    runtime().housekeep()
    runtime().housekeep(now=True)
    assert (len(swept), list(left)) == (SWEEP_SLICE + 200, [])


def test_serving_thread_ends_a_few_dropped_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand dropped at once it ends a slice a call; a collection ends the rest."""
    ended: list[int] = []
    dropped = deque(SimpleNamespace(abandoned=lambda: ended.append(1)) for _ in range(1000))
    monkeypatch.setattr(runtime(), "dropped", dropped)
    assert [done_by(runtime().housekeep, ended) for _ in range(3)] == [DROPPED_SLICE] * 3
    runtime().housekeep(now=True)
    assert len(ended) == 1000
