"""Tokens in a row that a worker recorded, and tokens of further choices: appended, and judged as if one by one."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import otel_lifecycle as lifecycle
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._request import recorded
from otel_lifecycle._request.recorded_tokens import NO_TOKENS
from tests.support.calls import entered
from tests.support.telemetry import Telemetry
from tests.test_hot_path import bytecodes

MS = 1_000_000
SECOND = 10**9

TIMES = st.one_of(
    st.integers(0, 500).map(lambda ms: ms * MS),
    st.integers(0, 500).map(lambda ms: ms * MS),
    st.sampled_from([None, "soon", True, 12.5, -(10**18), 10**18, 20 * SECOND, 2**70]),
)
TOKENS = st.fixed_dictionaries(
    {"event": st.just("token"), "timestamp": TIMES},
    optional={
        "count": st.sampled_from([1, 1, 1, 3, 0, None, True, -1, 2**17, 2.0]),
        "choice": st.sampled_from([0, 0, 1, 2, True, -1, 5000, None, "first"]),
        "further": st.just(1),
    },
)
OTHERS = st.sampled_from(
    [
        {"event": "preempt", "timestamp": None},
        {"event": "resume", "timestamp": None},
        {"event": "usage", "output_tokens": 7},
        {"event": "token"},
        {"event": "complete", "timestamp": 600 * MS},
        {"event": "prefill_chunk", "timestamp": 5},
        None,
        {},
    ]
)
PLAIN = st.lists(st.integers(0, 50), min_size=1, max_size=20).map(
    lambda steps: [{"event": "token", "timestamp": at * MS} for at in itertools.accumulate(steps)]
)
EVENTS = st.lists(st.one_of(PLAIN, TOKENS.map(lambda one: [one]), OTHERS.map(lambda one: [one])), max_size=12)


def placed(event: Any, base: int) -> Any:
    """Move the time of an event, where it is a plain number, to the time of the test."""
    at = event.get("timestamp") if isinstance(event, dict) else None
    return {**event, "timestamp": at + base} if type(at) is int else event


def told(telemetry: Telemetry, request: Any, ended_at: int) -> dict[str, Any]:
    """Return all that a request says of what was recorded, once it has ended."""
    timeline = request._tracked.state.timeline
    if not request.ended:
        request.record([{"event": "cancel", "timestamp": ended_at}])
    attributes = dict(telemetry.span("chat")["attributes"])
    # The clock of the engine may prove its own times impossible: then the end is a reading of ours.
    clocks = ("e2e", "decode_time", "share", "bottleneck", "dominant")
    return {
        "report": request.report,
        "attributes": {name: value for name, value in attributes.items() if not any(word in name for word in clocks)},
        "violations": dict(request._tracked.state.checker.counts),
        "plain": timeline.plain,
        "apart": timeline.clocks_apart(),
        "state": request.state,
    }


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[bool, Telemetry]]:
    """Return a lenient and a strict set of providers, for all examples."""
    made = {strict: Telemetry(strict=strict, interference=False) for strict in (False, True)}
    yield made
    for telemetry in made.values():
        telemetry.tracer_provider.shutdown()


@pytest.mark.long
@given(parts=EVENTS, cut=st.integers(1, 4), strict=st.booleans())
def test_a_row_says_what_its_tokens_say_one_by_one(
    servers: dict[bool, Telemetry], parts: list[list[Any]], cut: int, strict: bool
) -> None:
    """Reports, attributes and violations do not depend on whether tokens were appended together."""
    telemetry = servers[strict]
    base = time.time_ns() - 5 * SECOND
    events = [placed(event, base) for part in parts for event in part]
    found: list[Any] = []
    for together in (True, False):
        # A request whose end was refused is ended now, and not by a sweep while the next one is looked at.
        request = None
        telemetry.processor.force_flush()
        telemetry.exporter.clear()
        request = telemetry.request(arrived_at_ns=base - SECOND)
        request.record([{"event": name, "timestamp": base} for name in ("admit", "input_ready", "first_token")])
        raised = []
        with pytest.MonkeyPatch.context() as patched:
            if not together:
                patched.setattr(recorded, "read_tokens", lambda *_: NO_TOKENS)
            for calls in itertools.zip_longest(*[iter(events)] * (len(events) // cut + 1), fillvalue=None):
                try:
                    request.record([event for event in calls if event is not None])
                except lifecycle.errors.LifecycleError as error:
                    raised.append(type(error))
        try:
            found.append((told(telemetry, request, base + 4 * SECOND), raised))
        except lifecycle.errors.LifecycleError as error:
            found.append((type(error), raised))
    assert found[0] == found[1]


def in_decode(telemetry: Telemetry) -> Any:
    """Return a request that has put out the first tokens of two choices."""
    request = telemetry.request()
    request.admit()
    request.input_ready()
    request.first_token()
    request.token(1, 1)
    return request


def recorded_tokens(tokens: int) -> list[dict[str, Any]]:
    """Return tokens as a worker records them."""
    began = time.time_ns() - SECOND
    return [{"event": "token", "timestamp": began + number} for number in range(tokens)]


def test_a_recorded_token_executes_few_bytecodes(telemetry: Telemetry) -> None:
    """What one more token in a row costs is a few comparisons and two appends."""
    events, request = recorded_tokens(2000), in_decode(telemetry)
    request.record(events[:5])
    few = bytecodes(lambda: request.record(events[5:105]))
    many = bytecodes(lambda: request.record(events[105:1105]))
    assert 0 < (many - few) / 900 <= 90
    request.complete()


def test_a_row_out_of_order_is_read_once(telemetry: Telemetry) -> None:
    """A worker whose clock went back costs each event the slow path, and not the square of their number."""
    request = in_decode(telemetry)
    request.record([{"event": "token", "timestamp": time.time_ns()}])
    back = recorded_tokens(300)
    one = bytecodes(lambda: request.record(back[:30]))
    assert bytecodes(lambda: request.record(back)) <= 12 * one
    request.complete()
    assert telemetry.point("inference.transition.violations")["value"] == 330


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["choice", "first", "chunk", "bare"]),
        st.sampled_from([0, 1, 1, 2]),
        st.one_of(st.none(), st.integers(0, 50)),
    ),
    max_size=20,
)


@given(steps=STEPS)
def test_choices_say_what_they_say_under_the_lock(
    servers: dict[bool, Telemetry], steps: list[tuple[str, int, int | None]]
) -> None:
    """Tokens of several choices, live and at given times in any order, count the same whichever way they take."""
    found = []
    base = time.time_ns() - 5 * SECOND
    for short in (True, False):
        request = servers[False].request(arrived_at_ns=base - SECOND)
        for boundary in (request.admit, request.input_ready, request.first_token):
            boundary(at_ns=base)
        with pytest.MonkeyPatch.context() as patched:
            if not short:
                patched.setattr(Timeline, "takes", lambda *_, **__: False)
            for kind, choice, at in steps:
                when = {} if at is None else {"at_ns": base + at * MS}
                if kind == "bare":
                    request.token()
                else:
                    request.token(3 if kind == "chunk" else 1, 0 if kind == "first" else choice, **when)
        tokens = {number: choice["tokens"] for number, choice in _report(request)["choices"].items()}
        counts = dict(request._tracked.state.checker.counts)
        given_times = [at for at in request.report["token_times"] if at is None or at < base + SECOND]
        found.append((tokens, counts, given_times, request.report["output_tokens"]))
    assert found[0] == found[1]


def _report(request: Any) -> dict[str, Any]:
    request.complete()
    return dict(request.report)


def test_a_token_of_a_second_choice_makes_few_calls(telemetry: Telemetry) -> None:
    """It is appended as the first choice's are: the handle, the check, the clock's comparison."""
    request = in_decode(telemetry)
    assert entered(lambda: request.token(1, 1)) <= 4
    request.complete()


def test_tokens_of_a_choice_from_a_thread_that_is_late_are_wasted(telemetry: Telemetry) -> None:
    """A thread that was in the middle of ``token(choice=1)`` at the end still has the list; the report does not."""
    request = in_decode(telemetry)
    log = request._tracked.state.timeline.tokens[1]
    request.complete()
    log.append(time.perf_counter_ns())
    assert request.report["choices"][1]["tokens"] == 1
    request.token(2, 1)
    del request
    telemetry.processor.force_flush()
    assert telemetry.point("inference.tokens", inference__token__direction="wasted")["value"] == 3


def test_threads_of_several_choices_lose_no_token(telemetry: Telemetry) -> None:
    """Four threads mark four choices of one request while it runs, and it counts all of them."""
    request = in_decode(telemetry)

    def mark(choice: int) -> None:
        for _ in range(500):
            request.token(1, choice)

    threads = [threading.Thread(target=mark, args=(choice,)) for choice in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    request.complete()
    counted = [choice["tokens"] for choice in request.report["choices"].values()]
    assert counted == [501, 501, 500, 500]
    assert telemetry.span("chat")["attributes"]["inference.legal"] is True


@pytest.mark.parametrize(
    "mark",
    [
        lambda request: request.token(1, [1]),
        lambda request: request.token(1, True),
        lambda request: request.token(1, -1),
    ],
    ids=["a list", "a boolean", "negative"],
)
def test_a_choice_that_is_none_is_judged(telemetry: Telemetry, mark: Callable[[Any], None]) -> None:
    """What is no index takes the slow path, which counts it."""
    request = in_decode(telemetry)
    mark(request)
    request.complete()
    assert telemetry.point("inference.transition.violations")["value"] == 1
