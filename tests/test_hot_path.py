"""What a token costs, counted: bytecodes executed, functions called, blocks allocated.  No time is measured here.

`make bench` measures time; this fails on a change that makes the path longer, on a machine of any speed.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from time import time_ns
from types import CodeType, FrameType
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from tests.support.telemetry import Telemetry

MAKE = Callable[..., Telemetry]


class Method:
    """The one-line method that the contract holds a token against."""

    __slots__ = ("_ts",)

    def __init__(self) -> None:
        self._ts: list[int] = []

    def token(self) -> None:
        """Append the time."""
        self._ts.append(time_ns())


@pytest.fixture
def open_request(telemetry: Telemetry) -> Callable[[], Any]:
    """Return a function that opens a request which is in decode already."""

    def make() -> Any:
        request = telemetry.request()
        request.admit()
        request.input_ready()
        request.first_token()
        return request

    return make


def bytecodes(action: Callable[[], object]) -> int:
    """Count the bytecodes that ``action`` executes in Python code."""
    return _monitored(action) if sys.version_info >= (3, 12) else _traced(action)


def _traced(action: Callable[[], object]) -> int:
    executed = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal executed
        frame.f_trace_opcodes = True
        executed += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return executed


def _monitored(action: Callable[[], object]) -> int:
    # Opcode tracing misses the bytecodes of functions that ran before, in some releases that have monitoring.
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]  # from 3.12 on
    executed, tool = 0, 4

    def instruction(code: CodeType, offset: int) -> None:
        nonlocal executed
        executed += code is not bytecodes.__code__ and code is not _monitored.__code__

    monitoring.use_tool_id(tool, "bytecodes")
    monitoring.register_callback(tool, monitoring.events.INSTRUCTION, instruction)
    monitoring.set_events(tool, monitoring.events.INSTRUCTION)
    try:
        action()
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
    return executed


def calls(action: Callable[[], object]) -> Counter[str]:
    """Count what ``action`` calls, by name: Python functions and those of C alike."""
    called: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            called[frame.f_code.co_name] += 1
        elif event == "c_call":
            called[argument.__name__] += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(before)
    # How the profiler itself is taken off is the last call it sees.
    called["setprofile"] -= 1
    return +called


def blocks(action: Callable[[], object]) -> int:
    """Count the blocks of memory that stay allocated after ``action``, the least of several runs.

    Other threads and handles that an earlier test dropped can only add to it.
    """
    gc.collect()
    gc.disable()
    try:
        return min(_kept_by(action) for _ in range(5))
    finally:
        gc.enable()


def _kept_by(action: Callable[[], object]) -> int:
    before = sys.getallocatedblocks()
    action()
    return sys.getallocatedblocks() - before


def test_a_token_is_a_clock_read_and_an_append(open_request: Callable[[], Any]) -> None:
    """No lock, no other function: the path holds two calls besides its own."""
    assert calls(open_request().token) == {"token": 1, "perf_counter_ns": 1, "append": 1}


def test_a_token_executes_few_bytecodes(open_request: Callable[[], Any]) -> None:
    """Its three arguments are compared with their defaults, and that is all it does beyond the one-line method."""
    token, method = bytecodes(open_request().token), bytecodes(Method().token)
    assert 0 < method < token <= method + 15


def test_a_token_allocates_its_time_and_nothing_else(open_request: Callable[[], Any]) -> None:
    """A thousand tokens leave a thousand integers; the list's own growth is one block again and again."""
    request = open_request()

    def thousand() -> None:
        for _ in range(1000):
            request.token()

    assert 1000 <= blocks(thousand) <= 1010


def test_a_step_reads_the_clock_once(open_request: Callable[[], Any]) -> None:
    """Every request of the batch costs an append and no call of its own."""
    batch = [open_request() for _ in range(64)]
    called = calls(lambda: lifecycle.step(batch))
    assert (called["perf_counter_ns"], called["append"], called["token"]) == (1, 64, 0)


def test_a_step_executes_few_bytecodes_a_request(open_request: Callable[[], Any]) -> None:
    """What one more request in the batch adds is fewer than the one-line method takes with its call."""
    batch = [open_request() for _ in range(64)]
    lifecycle.step(batch)
    added = bytecodes(lambda: lifecycle.step(batch)) - bytecodes(lambda: lifecycle.step(batch[:32]))
    assert 0 < added / 32 <= 12


def test_a_step_allocates_one_time_for_the_whole_batch(open_request: Callable[[], Any]) -> None:
    """The requests of a batch share the integer: a hundred steps leave a hundred, and the lists' growth."""
    batch = [open_request() for _ in range(64)]

    def hundred() -> None:
        for _ in range(100):
            lifecycle.step(batch)

    hundred()
    assert blocks(hundred) <= 110


def test_no_request_takes_tokens_without_keeping_them() -> None:
    """Outside a request a token allocates nothing that stays."""
    nobody = lifecycle.current()

    def thousand() -> None:
        for _ in range(1000):
            nobody.token()
            lifecycle.step([nobody])

    thousand()
    assert blocks(thousand) <= 10
