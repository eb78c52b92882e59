"""Marks at a given time and chunks take the path of single tokens where nothing about them has to be judged."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle._core.timeline import Timeline
from tests.support.calls import entered
from tests.support.telemetry import Telemetry

MS = 1_000_000
DAY = 86_400 * 10**9


def in_decode(telemetry: Telemetry) -> Any:
    """Return a request that has put out its first token."""
    request = telemetry.request()
    request.admit()
    request.input_ready()
    request.first_token()
    return request


def told(telemetry: Telemetry) -> dict[str, Any]:
    """What the one request span says of the tokens, without times."""
    attributes = telemetry.span("chat")["attributes"]
    names = ("streamed_tokens", "legal", "violations", "itl.count", "outcome")
    return {name: attributes.get(f"inference.{name}") for name in names}


MARKS: dict[str, Callable[[Any], None]] = {
    "now": lambda request: request.token(3),
    "choices": lambda request: request.token(2, 1),
    "epoch": lambda request: request.token(at_ns=time.time_ns() - MS),
    "monotonic": lambda request: request.token(1, at_ns=lifecycle.monotonic(time.monotonic())),
    "monotonic ns": lambda request: request.token(2, at_ns=lifecycle.monotonic(ns=time.monotonic_ns())),
    "in the future": lambda request: request.token(at_ns=time.time_ns() + 3600 * 10**9),
    "another clock": lambda request: request.token(at_ns=12),
    "days ahead": lambda request: request.token(at_ns=time.time_ns() + 3 * DAY),
    "not a number": lambda request: request.token(at_ns=lifecycle.monotonic(float("nan"))),
    "back": lambda request: request.token(2, at_ns=time.time_ns() - 3600 * 10**9),
    "too many": lambda request: request.token(2**17),
    "a boolean": lambda request: request.token(True),
    "unknown": lambda request: request.token(None),
    "nothing": lambda request: request.token(0),
    "negative": lambda request: request.token(-2),
}


@pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS)
def test_the_short_way_says_what_the_long_one_says(
    mark: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch, make_telemetry: Callable[..., Telemetry]
) -> None:
    """Counts, samples and violations of a request do not depend on the way that its tokens took."""
    found = []
    for short in (True, False):
        telemetry = make_telemetry()
        with monkeypatch.context() as patched, in_decode(telemetry) as request:
            if not short:
                patched.setattr(Timeline, "takes", lambda *_, **__: False)
            # The epoch time above must not lie before the first token.
            time.sleep(0.002)
            mark(request)
            request.token()
        found.append(told(telemetry))
    assert found[0] == found[1]


@pytest.mark.parametrize("clock", ["epoch", "monotonic"])
def test_a_step_at_a_time_keeps_that_time(telemetry: Telemetry, clock: str) -> None:
    """The report has the very times that were given, those of an epoch clock on each request's own anchor."""
    requests = [in_decode(telemetry) for _ in range(3)]
    given = []
    for _ in range(4):
        given.append(time.time_ns() if clock == "epoch" else time.monotonic_ns())
        lifecycle.step(requests, at_ns=given[-1] if clock == "epoch" else lifecycle.monotonic(ns=given[-1]))
    for request in requests:
        request.complete()
    gaps = [later - earlier for earlier, later in itertools.pairwise(given)]
    for request in requests:
        times = request.report["token_times"][1:]
        assert [later - earlier for earlier, later in itertools.pairwise(times)] == gaps
        assert clock == "monotonic" or times == given
    assert [span["attributes"]["inference.legal"] for span in telemetry.spans("chat")] == [True] * 3


def test_a_step_that_goes_back_is_a_violation(telemetry: Telemetry) -> None:
    """A time before the last token is judged: the token counts and its time is lost."""
    with in_decode(telemetry) as request:
        lifecycle.step([request], at_ns=lifecycle.monotonic(ns=time.monotonic_ns() - 10**9))
    assert told(telemetry)["violations"] == 1
    assert telemetry.point("inference.transition.violations")["value"] == 1
    assert told(telemetry)["streamed_tokens"] == 2


def test_a_step_takes_what_is_no_request(telemetry: Telemetry) -> None:
    """Things that are no request, no-op handles and ended requests do not break a batch off."""
    request, over = in_decode(telemetry), in_decode(telemetry)
    over.complete()
    lifecycle.step([None, lifecycle.current(), over, request], at_ns=lifecycle.monotonic(time.monotonic()))  # type: ignore[list-item]
    request.complete()
    assert request.report["output_tokens"] == 2
    assert telemetry.point("inference.tokens", inference__token__direction="wasted")["value"] == 1


def test_chunks_of_a_thread_that_is_late_are_wasted_tokens(telemetry: Telemetry) -> None:
    """A thread that was in the middle of ``token(n)`` at the end appends a chunk: each of its tokens is wasted."""
    request = in_decode(telemetry)
    log = request._ts
    request.complete()
    log.append((time.perf_counter_ns(), 5))
    log.append(time.perf_counter_ns())
    del request
    telemetry.processor.force_flush()
    assert telemetry.point("inference.tokens", inference__token__direction="wasted")["value"] == 6


@pytest.mark.parametrize(
    ("most", "mark"),
    [
        (5, lambda request: request.token(5)),
        (6, lambda request: request.token(at_ns=time.time_ns())),
        (9, lambda request: request.token(at_ns=lifecycle.monotonic(ns=time.monotonic_ns()))),
    ],
    ids=["chunk", "epoch", "monotonic"],
)
def test_marks_make_few_calls(telemetry: Telemetry, most: int, mark: Callable[[Any], None]) -> None:
    """A guard of the cost by counts: engines live on these marks."""
    with in_decode(telemetry) as request:
        mark(request)
        assert entered(lambda: mark(request)) <= most


def test_a_step_makes_no_call_for_a_token(telemetry: Telemetry) -> None:
    """A batch of a hundred at a time enters as many functions as a batch of one."""
    requests = [in_decode(telemetry) for _ in range(100)]
    at = lifecycle.monotonic(ns=time.monotonic_ns())
    one = entered(lambda: lifecycle.step(requests[:1], at_ns=at))
    assert entered(lambda: lifecycle.step(requests, at_ns=at)) == one
    for request in requests:
        request.complete()
