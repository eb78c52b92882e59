"""Exceptions that come up inside our own code: a signal handler's may, at any line."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import otel_lifecycle
from otel_lifecycle._runtime import runtime
from tests.support.telemetry import Telemetry

OURS = str(Path(otel_lifecycle.__file__).parent)
ENDING_THE_SPAN = {"end_span", "span_end", "handed_on", "hand_on", "on_end", "_guard", "is_ours"}
"""Who is interrupted while the span ends has ended it, or not, and nobody can tell which."""


NO_SIGNAL_THERE = ("with ", "self._busy.here = ", "self._busy = ")
"""Python handles signals after calls and at jumps back.  A trace function can raise in between: where a with block has
been left and its lock has not, and before a finally block has put its one flag back."""


class Interruption(BaseException):
    """What a signal handler raises."""


class Interrupter:
    """Raises at the n-th line of our code that is run, once; remembers in which function that was."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.function = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Be the trace function."""
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not line.startswith(NO_SIGNAL_THERE):
            self.left -= 1
            if self.left == 0:
                self.function = frame.f_code.co_name
                raise Interruption
        return self


def leave_interrupted(telemetry: Telemetry, number: int) -> str:
    """Leave a request's block with an interruption at that line; return the function it was in, empty if in none."""
    interrupter = Interrupter(number)
    telemetry.exporter.clear()
    before = sys.gettrace()
    try:
        with telemetry.request(model="tiny") as request:
            request.admit()
            request.input_ready()
            request.first_token()
            sys.settrace(interrupter)
    except Interruption:
        pass
    finally:
        sys.settrace(before)
    return interrupter.function


def test_interrupted_end_still_ends_the_span(telemetry: Telemetry) -> None:
    """Raised at every line of ours in turn while a request ends: its span ends all the same, no record stays open."""
    lost, number = [], 0
    while True:
        number += 1
        function = leave_interrupted(telemetry, number)
        if not function:
            break
        # Interrupted before it was ended, it is an abandoned one.
        runtime().housekeep(now=True)
        if len(telemetry.spans("chat tiny")) != 1:
            lost.append(function)
    assert number > 100
    assert set(lost) <= ENDING_THE_SPAN
    assert list(runtime().snapshot()) == []
    assert all(not point["value"] for point in telemetry.points("inference.active_requests"))
