"""Values handed over are folded once: at a collection, or when the buffer is full."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from otel_lifecycle._instruments.buffer import GAPS, HARD_FACTOR, SLOW_FACTOR, VALUES, FoldBuffer


class Folded:
    """A fold that keeps what it was given, and knows which thread gave it."""

    def __init__(self, *, cheap: bool) -> None:
        self.values: list[Any] = []
        self.threads: set[str] = set()
        self.folds = 0
        self.buffer: FoldBuffer[Any] = FoldBuffer(self.fold, lambda: cheap)

    def fold(self, values: list[Any]) -> None:
        """Keep the values; ``error`` stands for what breaks the fold off."""
        self.threads.add(threading.current_thread().name)
        self.folds += 1
        while values:
            value = values.pop(0)
            self.values.append(value)
            if value == "error":
                raise ValueError(value)


def test_values_wait_until_somebody_folds_them_and_are_folded_once() -> None:
    """Below the limit nothing is folded; a fold takes all of them, and the next one none."""
    folded = Folded(cheap=True)
    for value in range(VALUES):
        folded.buffer.put(value)
    assert (folded.values, len(folded.buffer)) == ([], VALUES)
    folded.buffer.fold()
    folded.buffer.fold()
    assert (folded.values, len(folded.buffer)) == ([*range(VALUES)], 0)


@pytest.mark.parametrize("gaps", [0, GAPS // 4])
def test_a_full_buffer_is_folded_by_the_thread_that_fills_it(gaps: int) -> None:
    """Whether it is full of values or of gaps, one fold takes them all."""
    folded = Folded(cheap=True)
    fit = VALUES if not gaps else 4
    for value in range(fit + 1):
        folded.buffer.put(value, gaps)
    assert (folded.values, folded.folds) == ([*range(fit + 1)], 1)


def test_gaps_already_folded_do_not_count_again() -> None:
    """After a fold the buffer has room for as many gaps as before."""
    folded = Folded(cheap=True)
    for _ in range(3):
        folded.buffer.put("gaps", GAPS)
        assert len(folded.buffer) == 1
        folded.buffer.fold()


def test_where_folding_is_slow_a_helper_thread_does_it() -> None:
    """The serving thread folds nothing; it starts a thread, which ends when the buffer is empty."""
    folded = Folded(cheap=False)
    for value in range(SLOW_FACTOR * VALUES + 1):
        folded.buffer.put(value)
    helper = folded.buffer._helper
    assert helper is not None
    helper.join(10)
    assert (folded.values, folded.threads) == ([*range(SLOW_FACTOR * VALUES + 1)], {"otel-lifecycle-fold"})
    assert not helper.is_alive()


def test_a_helper_that_cannot_keep_up_is_helped_and_memory_stays_bounded() -> None:
    """Beyond twice the limit each further value is paid for by folding the oldest."""
    folded = Folded(cheap=False)
    limit = SLOW_FACTOR * HARD_FACTOR * VALUES
    with folded.buffer._lock:  # The helper waits; this thread may enter.
        for value in range(limit + 50):
            folded.buffer.put(value)
        assert len(folded.buffer) == limit
        assert folded.values == [*range(50)]
    assert folded.buffer._helper is not None
    folded.buffer._helper.join(10)
    assert folded.values == [*range(limit + 50)]


def test_no_thread_can_be_started_and_still_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the exit of the interpreter a thread cannot start; the serving thread folds then."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    folded = Folded(cheap=False)
    for value in range(SLOW_FACTOR * VALUES + 20):
        folded.buffer.put(value)
    assert len(folded.buffer) == SLOW_FACTOR * VALUES
    folded.buffer.fold()
    assert folded.values == [*range(SLOW_FACTOR * VALUES + 20)]


@pytest.mark.parametrize("gaps", [0, 3])
def test_a_fold_that_is_broken_off_costs_no_other_value(gaps: int) -> None:
    """What it had not begun waits for the next one, before what has come since."""
    folded = Folded(cheap=True)
    for value in ("first", "error", "third", "fourth"):
        folded.buffer.put(value, gaps)
    with pytest.raises(ValueError, match="error"):
        folded.buffer.fold()
    assert (folded.values, len(folded.buffer)) == (["first", "error"], 2)
    folded.buffer.put("last")
    folded.buffer.fold()
    assert (folded.values, len(folded.buffer)) == (["first", "error", "third", "fourth", "last"], 0)


def test_a_collection_waits_for_a_fold_under_way() -> None:
    """What was handed over before the collection is in it, also what another thread has taken off already."""
    entered, go = threading.Event(), threading.Event()

    def fold(values: list[str]) -> None:
        entered.set()
        go.wait(10)
        done.extend(values)
        values.clear()

    done: list[str] = []
    buffer: FoldBuffer[str] = FoldBuffer(fold, lambda: True)
    buffer.put("one")
    other, collecting = (threading.Thread(target=buffer.fold) for _ in range(2))
    other.start()
    assert entered.wait(10)
    collecting.start()
    collecting.join(0.1)
    assert (collecting.is_alive(), done) == (True, [])
    go.set()
    collecting.join(10)
    other.join(10)
    assert done == ["one"]


def test_threads_that_race_lose_and_double_nothing() -> None:
    """Four threads hand over while one folds all the time: each value arrives once."""
    folded = Folded(cheap=True)
    stop = threading.Event()

    def hand_over(number: int) -> None:
        for value in range(2000):
            folded.buffer.put((number, value), 40)

    def keep_folding() -> None:
        while not stop.is_set():
            folded.buffer.fold()

    threads = [threading.Thread(target=hand_over, args=(number,)) for number in range(4)]
    folding = threading.Thread(target=keep_folding)
    for thread in (folding, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    folding.join()
    folded.buffer.fold()
    assert sorted(folded.values) == sorted((number, value) for number in range(4) for value in range(2000))


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no such signal")
def test_a_signal_handler_that_folds_inside_a_fold_counts_nothing_twice() -> None:
    """The lock is re-entrant: the handler folds what has come since, and the interrupted fold goes on."""
    seen: list[int] = []

    def fold(values: list[int]) -> None:
        while values:
            value = values.pop(0)
            if value == 1:
                buffer.put(4)
                signal.raise_signal(signal.SIGUSR1)
            seen.append(value)

    buffer: FoldBuffer[int] = FoldBuffer(fold, lambda: True)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: buffer.fold())
    try:
        for value in range(4):
            buffer.put(value)
        buffer.fold()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert sorted(seen) == [0, 1, 2, 3, 4]
