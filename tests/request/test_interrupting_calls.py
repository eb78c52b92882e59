"""Calls that interrupt each other on one thread: a signal handler may call anything at any line of ours."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any, Final

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle._runtime import MAX_FOREIGN_SEEN, Runtime, runtime
from tests.support.plain import Point
from tests.support.telemetry import Telemetry

OURS: Final = str(Path(lifecycle.__file__).parent)

Call = Callable[[Any], object]

CALLS: Final[dict[str, Call]] = {
    "token": lambda request: request.token(),
    "tokens": lambda request: request.token(3, 1),
    "preempt": lambda request: request.preempt(),
    "step": lambda request: lifecycle.step([request]),
    "usage": lambda request: request.usage(input_tokens=7),
    "note": lambda request: request.client_disconnected(),
    "complete": lambda request: request.complete(if_open=True),
    "cancel": lambda request: request.cancel(if_open=True),
    "leave": lambda request: request.__exit__(None, None, None),
    "housekeep": lambda request: runtime().housekeep(now=True),
    "report": lambda request: (request.report, request.state, request.ended),
}


class Injector:
    """Makes one call at the n-th line of our code that runs; the handler's own lines are not counted."""

    def __init__(self, number: int, call: Callable[[], object]) -> None:
        self.left = number
        self.call = call
        self.done = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Be the trace function."""
        if self.done or not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.done = True
                sys.settrace(None)
                self.call()
        return self


def interrupted(telemetry: Telemetry, outer: Call, inner: Call, number: int) -> tuple[bool, Any]:
    """Make the outer call with the inner one at that line; return whether it was made, and the request."""
    request = telemetry.request()
    request.admit()
    request.input_ready()
    request.first_token()
    injector = Injector(number, lambda: inner(request))
    before = sys.gettrace()
    sys.settrace(injector)
    try:
        outer(request)
    finally:
        sys.settrace(before)
    return injector.done, request


def check(telemetry: Telemetry, request: Any) -> None:
    """One outcome, no token lost, nothing open, and the token path closed."""
    request.cancel(if_open=True)
    request.token()
    runtime().housekeep(now=True)
    assert request._ts is None
    assert [span.name for span in telemetry.exporter.get_finished_spans()].count("chat") == 1
    # One collection for all figures: it costs more than the calls under test, and there are 900 lines in a pair.
    report, points = request.report, telemetry.points()
    requests = [point["value"] for point in points if point["metric"] == "inference.requests"]
    assert (requests, request.outcome) == ([1], report["status"])
    assert tokens(points, "output") == report["output_tokens"]
    assert tokens(points, "wasted") >= 1
    del request
    runtime().housekeep(now=True)


def tokens(points: list[Point], direction: str) -> int:
    """Return the tokens counted in a direction."""
    counted = [point for point in points if point["metric"] == "inference.tokens"]
    return sum(
        int(point["value"] or 0) for point in counted if point["attributes"]["inference.token.direction"] == direction
    )


PAIRS = list(itertools.product(CALLS, ["cancel", "complete", "token", "tokens", "leave", "housekeep"]))
QUICK = {("token", "cancel"), ("tokens", "cancel")}


@pytest.mark.parametrize(
    ("outer", "inner"),
    [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in PAIRS],
)
def test_a_call_at_every_line_of_another(make_telemetry: Callable[..., Telemetry], outer: str, inner: str) -> None:
    """Each of our calls is interrupted at each of its lines by each other call: nothing is lost or counted twice."""
    for number in itertools.count(1):
        telemetry = make_telemetry()
        done, request = interrupted(telemetry, CALLS[outer], CALLS[inner], number)
        if not done:
            break
        check(telemetry, request)
        telemetry.shutdown()
    # The fast path of a token has two lines.
    assert number > 1


BOUNDARIES: Final[dict[str, Call]] = {
    "admit": lambda request: request.admit(),
    "input_ready": lambda request: request.input_ready(),
    "first_token": lambda request: request.first_token(),
}
WITHIN = ["token", "complete", "cancel", "leave", "housekeep", "preempt"]


@pytest.mark.parametrize(
    ("boundary", "inner"),
    [
        pytest.param(*pair, marks=() if pair[1] in {"cancel", "leave"} else pytest.mark.slow)
        for pair in itertools.product(BOUNDARIES, WITHIN)
    ],
)
def test_a_call_at_every_line_of_a_boundary(
    make_telemetry: Callable[..., Telemetry], boundary: str, inner: str
) -> None:
    """A boundary is marked by a way of its own: whatever interrupts it comes before it or after it, and is not lost."""
    call, mark = CALLS[inner], BOUNDARIES[boundary]
    alone = [states_of(make_telemetry(), boundary, calls) for calls in ([call, mark], [mark, call])]
    if inner == "leave":
        # How it ends was read from the state before the boundary; it ends after it.
        alone.append(states_of(make_telemetry(), boundary, [mark, lambda request: request._tracked.end_incomplete()]))
    for number in itertools.count(1):
        telemetry = make_telemetry()
        request = telemetry.request()
        for name in itertools.takewhile(lambda name: name != boundary, BOUNDARIES):
            BOUNDARIES[name](request)
        injector = Injector(number, lambda request=request: call(request))  # type: ignore[misc]  # bound now
        before = sys.gettrace()
        sys.settrace(injector)
        try:
            mark(request)
        finally:
            sys.settrace(before)
        if not injector.done:
            break
        assert told(telemetry, request) in alone, number
        telemetry.shutdown()
    assert number > 10


def states_of(telemetry: Telemetry, boundary: str, calls: list[Call]) -> tuple[Any, ...]:
    """Return what is told where calls come one after the other, the first before a boundary."""
    request = telemetry.request()
    for name in itertools.takewhile(lambda name: name != boundary, BOUNDARIES):
        BOUNDARIES[name](request)
    for call in calls:
        call(request)
    return told(telemetry, request)


def told(telemetry: Telemetry, request: Any) -> tuple[Any, ...]:
    """Return the state it is in, how it ends, its violations, and how many tokens came out and were wasted."""
    state, counts = request.state, dict(request._tracked.state.checker.counts)
    request.cancel(if_open=True)
    runtime().housekeep(now=True)
    points = telemetry.points()
    late = sum(point["value"] or 0 for point in points if point["metric"] == "inference.violations")
    return state, request.outcome, counts, tokens(points, "output"), tokens(points, "wasted"), late


def marked(outer: str, inner: str) -> int:
    """How many tokens the two calls mark, and the first one."""
    sizes = {"token": 1, "tokens": 3, "step": 1}
    return 1 + sizes.get(outer, 0) + sizes.get(inner, 0)


@pytest.mark.long
@pytest.mark.parametrize(("outer", "inner"), [("token", "cancel"), ("tokens", "cancel"), ("tokens", "token")])
def test_every_token_is_counted_once(make_telemetry: Callable[..., Telemetry], outer: str, inner: str) -> None:
    """A token is output or wasted, never both and never lost, wherever the end comes in between."""
    for number in itertools.count(1):
        telemetry = make_telemetry()
        done, request = interrupted(telemetry, CALLS[outer], CALLS[inner], number)
        if not done:
            break
        request.cancel(if_open=True)
        runtime().housekeep(now=True)
        total = sum(point["value"] or 0 for point in telemetry.points("inference.tokens"))
        assert total == marked(outer, inner), number
        telemetry.shutdown()


class Elsewhere:
    """Makes a call on another thread, and goes on after a moment if that thread waits for this one."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.threads: list[Thread] = []

    def __call__(self, request: Any) -> None:
        """Call."""
        thread = Thread(target=self.call, args=(request,), daemon=True)
        self.threads.append(thread)
        thread.start()
        thread.join(0.2)

    def wait(self) -> None:
        """Wait for every call."""
        for thread in self.threads:
            thread.join(60)


# A prime: the lines tried are not those of one loop.
@pytest.mark.parametrize("every", [37, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("end", ["complete", "cancel"])
def test_a_mark_of_another_thread_at_a_line_of_an_end(
    make_telemetry: Callable[..., Telemetry], end: str, every: int
) -> None:
    """A backend marks a choice of its own while the server ends the request: it is counted, and so is each token."""
    for number in itertools.count(1, every):
        telemetry, mark = make_telemetry(), Elsewhere(lambda request: request.token(2, 1))
        done, _ = interrupted(telemetry, CALLS[end], mark, number)
        mark.wait()
        if not done:
            break
        runtime().housekeep(now=True)
        points = telemetry.points()
        counted = [point["value"] for point in points if point["metric"] == "inference.requests"]
        assert (counted, tokens(points, "output") + tokens(points, "wasted")) == ([1], 3), number
        telemetry.shutdown()
    assert number > 1


def injected(number: int, outer: Callable[[], bool], inner: Callable[[], bool]) -> tuple[bool, list[bool]]:
    """Make the outer call with the inner one at that line; return whether it was made, and what both returned."""
    found: list[bool] = []
    injector = Injector(number, lambda: found.append(inner()))
    before = sys.gettrace()
    sys.settrace(injector)
    try:
        found.append(outer())
    finally:
        sys.settrace(before)
    return injector.done, found


@pytest.mark.parametrize("remembered", [0, MAX_FOREIGN_SEEN], ids=["empty", "full"])
def test_two_who_see_a_foreign_span_at_once(remembered: int) -> None:
    """At whatever line they meet, one of them is the first; two spans at once are both new, and memory is bounded."""
    for number in itertools.count(1):
        seen = Runtime()
        for span in range(remembered):
            seen.first_sight(1, span)
        done, found = injected(number, partial(seen.first_sight, 2, 7), partial(seen.first_sight, 2, 7))
        if not done:
            break
        assert sorted(found) == [False, True], number
        _, found = injected(number, partial(seen.first_sight, 3, 1), partial(seen.first_sight, 3, 2))
        assert found == [True, True], number
        assert len(seen._foreign_seen) == len(seen._foreign_order) <= MAX_FOREIGN_SEEN
    assert number > 3
