"""The short ways of a request, which nearly every one takes, say what the long ways say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, TraceIdRatioBased

from otel_lifecycle._core.engines import EngineLogs
from otel_lifecycle._core.lifecycle import get_shape
from otel_lifecycle._instruments import instruments
from otel_lifecycle._instruments.usual import fold_usual
from otel_lifecycle._request.conditions import CONDITIONS, RequestConditions
from otel_lifecycle._request.kinds import MAX_SETS, Kinds, own_conditions
from otel_lifecycle._request.state import RequestState
from otel_lifecycle._runtime import runtime
from otel_lifecycle.errors import InvalidValue, LifecycleError
from tests.request.manual_clock import Clock, opened_at
from tests.support.telemetry import Telemetry

US = 1_000

MARKS: dict[str, Callable[[Any], object]] = {
    "admit": lambda request: request.admit(),
    "input_ready": lambda request: request.input_ready(),
    "first_token": lambda request: request.first_token(),
    "chunk": lambda request: request.first_token(3),
    "further": lambda request: request.first_token(1, 1),
    "nothing": lambda request: request.first_token(0),
    "token": lambda request: request.token(),
    "output": lambda request: request.output(),
    "preempt": lambda request: request.preempt(),
    "resume": lambda request: request.resume(),
    "admit ahead": lambda request: request.admit(at_ns=opened_at(request) + 50 * US),
    "input ready then": lambda request: request.input_ready(at_ns=opened_at(request) + 5 * US),
    "token of an engine": lambda request: request.record(
        [{"event": "token", "timestamp": opened_at(request) + 20 * US}]
    ),
    "queue block": lambda request: spend(request, "queue"),
    "preprocessing block": lambda request: spend(request, "preprocessing"),
    "prefill block": lambda request: spend(request, "prefill"),
    "stream": lambda request: list(request.stream(range(2))),
    "usage": lambda request: request.usage(input_tokens=3, output_tokens=9),
    "impossible usage": lambda request: request.usage(input_tokens=-3, cached_tokens=1),
    "complete": lambda request: request.complete(),
    "cancel": lambda request: request.cancel(),
}
USUAL = ("admit", "input_ready", "first_token", "queue block", "preprocessing block", "usage")


def spend(request: Any, stage: str) -> None:
    """Spend a block in a stage."""
    with request.stage(stage):
        pass


STEPS = st.lists(st.tuples(st.sampled_from([*MARKS, *USUAL * 5]), st.integers(0, 20)), min_size=2, max_size=12)
SKIPPED = [("admit", 1), ("first_token", 2), ("complete", 1)]
AHEAD = [("admit ahead", 1), ("input_ready", 2), ("first_token", 60), ("complete", 1)]
BLOCKS = [("queue block", 1), ("preprocessing block", 1), ("usage", 1), ("stream", 1), ("complete", 1)]
WHOLE = [("admit", 1), ("input_ready", 2), ("first_token", 2), ("token", 1), ("complete", 1), ("admit", 1)]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[tuple[bool, bool], Telemetry]]:
    """Return providers for all examples: by whether they are strict, and whether requests are sampled."""
    made = {
        (strict, sampled): Telemetry(strict=strict, sampler=ALWAYS_ON if sampled else ALWAYS_OFF)
        for strict in (False, True)
        for sampled in (False, True)
    }
    for telemetry in made.values():
        runtime().seen_with(telemetry.tracer_provider, telemetry.processor)
    yield made
    for telemetry in made.values():
        telemetry.tracer_provider.shutdown()


def served(
    telemetry: Telemetry, clock: Clock, shape: str, steps: list[tuple[str, int]], *, whole: bool
) -> tuple[list[Any], list[Any]]:
    """Mark a request; return all that it says, and what it hands over; ``whole``: it is made so before it is marked."""
    clock.now, runtime().engines = 10**15, EngineLogs()
    request, raised = telemetry.request(shape=shape), []
    assert not whole or request.state == "queued"
    taken: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(telemetry.processor, "take_usual", lambda end, _: taken.append(end[:8]))
        for name, later in steps:
            clock.now += later * US
            try:
                MARKS[name](request)
            except LifecycleError as error:
                raised.append((name, error.kind))
        state = request.state
        # After every time that was given.
        clock.now += 100 * US
        if not request.ended:
            request.cancel()
    spans = telemetry.spans("chat" if shape == "default" else "embeddings")
    events = [[(event["name"], event["time_ns"], event["attributes"]) for event in span["events"]] for span in spans]
    told = [request.report, state, raised, dict(request._tracked.state.checker.counts), request._ts]
    named = sorted(span["name"] for span in telemetry.spans())
    telemetry.exporter.clear()
    return [*told, [span["attributes"] for span in spans], events, named], taken


@example(shape="default", strict=False, sampled=True, steps=SKIPPED)
@example(shape="default", strict=False, sampled=True, steps=AHEAD)
@example(shape="default", strict=True, sampled=True, steps=WHOLE)
@example(shape="default", strict=False, sampled=False, steps=WHOLE)
@example(shape="default", strict=False, sampled=True, steps=BLOCKS)
@example(shape="default", strict=False, sampled=False, steps=BLOCKS)
@given(shape=st.sampled_from(["default", "pooling"]), strict=st.booleans(), sampled=st.booleans(), steps=STEPS)
def test_a_mark_by_the_short_ways_says_what_the_long_way_says(
    servers: dict[tuple[bool, bool], Telemetry],
    shape: str,
    strict: bool,
    sampled: bool,
    steps: list[tuple[str, int]],
) -> None:
    """Reports, states, violations, spans and what is handed over do not depend on which of three ways a mark takes."""
    telemetry = servers[strict, sampled]
    with pytest.MonkeyPatch.context() as patched:
        clock = Clock.instead(patched)
        patched.setattr(runtime(), "engines", runtime().engines)
        plain = served(telemetry, clock, shape, steps, whole=False)
        assert served(telemetry, clock, shape, steps, whole=True) == plain
        patched.setattr(RequestState, "advance", lambda *_: False)
        # What goes the long way is judged at its end, so nothing of it is handed over.
        assert served(telemetry, clock, shape, steps, whole=True)[0] == plain[0]
    runtime().clock_offset.forget()


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("shape", ["default", "pooling"])
def test_a_request_that_goes_its_course_is_never_made_whole(
    make_telemetry: Callable[..., Telemetry], shape: str, sampled: bool
) -> None:
    """By marks, by blocks and a stream, and while metrics are collected: this is what keeps it cheap."""
    telemetry = make_telemetry(sampler=ALWAYS_ON if sampled else ALWAYS_OFF)
    runtime().seen_with(telemetry.tracer_provider, telemetry.processor)
    with telemetry.request(shape=shape) as request:
        request.admit()
        request.input_ready()
        if shape == "default":
            request.token()
            request.token()
    assert (request._tracked.whole, request.ended) == (None, True)
    with telemetry.request(shape=shape) as request:
        for stage in ("queue", "preprocessing"):
            with request.stage(stage):
                telemetry.points()
        request.usage(input_tokens=3)
        if shape == "default":
            for _ in request.stream(range(3)):
                telemetry.points()
    assert (request._tracked.whole, request.ended) == (None, True)
    assert request.outcome == "completed"
    counted = sum(int(point["value"] or 0) for point in telemetry.points("inference.requests"))
    read = [point for point in telemetry.points("inference.tokens") if "input" in point["attributes"].values()]
    assert (counted, [point["value"] for point in read]) == (2, [3])


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("shape", ["default", "pooling"])
@pytest.mark.parametrize("look", [False, True])
def test_a_request_that_is_looked_at_is_counted_as_any_other(
    make_telemetry: Callable[..., Telemetry], shape: str, sampled: bool, look: bool
) -> None:
    """What makes it whole changes nothing of what its processor is handed."""
    telemetry = make_telemetry(sampler=ALWAYS_ON if sampled else ALWAYS_OFF)
    runtime().seen_with(telemetry.tracer_provider, telemetry.processor)
    for _ in range(3):
        with telemetry.request(shape=shape) as request:
            request.admit()
            assert not look or request.state == "preprocessing"
            request.input_ready()
            for _ in range(2 if shape == "default" else 0):
                request.token()
    requests, tokens = (
        sum(int(point["value"] or 0) for point in telemetry.points(name))
        for name in ("inference.requests", "inference.tokens")
    )
    ended = sum(point["count"] or 0 for point in telemetry.points("inference.request.duration"))
    assert (requests, tokens, ended) == (3, 6 if shape == "default" else 0, 3)


def test_usual_requests_of_every_kind_are_folded_together(
    make_telemetry: Callable[..., Telemetry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is paid once for a fold would be paid for each request where recorded ones alternate with others."""
    telemetry = make_telemetry(sampler=TraceIdRatioBased(0.5))
    runtime().seen_with(telemetry.tracer_provider, telemetry.processor)
    folded: list[int] = []

    def counting(ends: Any, sets: Any) -> None:
        folded.append(len(ends))
        fold_usual(ends, sets)

    monkeypatch.setattr(instruments, "fold_usual", counting)
    for number in range(60):
        with telemetry.request() as request:
            request.admit()
            assert number % 3 or request.state == "preprocessing"
            request.input_ready()
            request.token()
    telemetry.processor.force_flush()
    assert folded == [60]


VALUES = st.one_of(
    st.sampled_from(["a", "b", "whole", "live", "prefill", "", " a ", "x" * 999, "a\x00b"]),
    st.sampled_from([None, True, 3, 0, -1, 2.5, b"a", ["a"], 2**70]),
)


@given(values=st.dictionaries(st.sampled_from([*CONDITIONS, "unknown"]), VALUES, max_size=6), operation=VALUES)
def test_conditions_that_are_known_are_what_is_read(values: dict[str, object], operation: object) -> None:
    """Whatever was read before, and in which order: labels, attributes, counts and faults are those of a first look."""
    kinds, shape = Kinds(), replace(get_shape("default"), operation=operation if isinstance(operation, str) else "chat")
    told = []
    for _ in range(3):
        kind, wrong = kinds.read(shape, values, lambda operation, model: f"{operation} {model}")
        known = kind.conditions
        found = known if isinstance(known, RequestConditions) else own_conditions(known)
        told.append(
            (
                kind.span_name,
                found.labels,
                found.attributes,
                found.usage,
                found.deadline,
                [str(error) for error in wrong],
            )
        )
        # What one request changes of its own is not what the next one finds.
        found.attributes["changed"] = found.usage["changed"] = 1
    kind, wrong = Kinds().read(shape, values, lambda operation, model: f"{operation} {model}")
    first = kind.conditions
    expected = (
        kind.span_name,
        first.labels,
        first.attributes,
        first.usage,
        first.deadline,
        [str(error) for error in wrong],
    )
    assert [tuple(without(part) for part in one) for one in told] == [expected] * 3


def test_names_that_clients_make_up_keep_no_other_one_out() -> None:
    """What is remembered is bounded, and the model that is asked for now is in it."""
    kinds, shape = Kinds(), get_shape("default")
    for number in range(2 * MAX_SETS):
        kinds.read(shape, {"model": f"made up {number}"}, lambda operation, model: f"{operation} {model}")
    kept, _ = kinds.read(shape, {"model": "m"}, lambda operation, model: f"{operation} {model}")
    assert kinds.find(shape, {"model": "m"}) is kinds.find(shape, {"model": "m"}) is not None
    assert kept.conditions.labels.model == "m"
    found = [kinds.find(shape, {"model": f"made up {number}"}) for number in range(2 * MAX_SETS)]
    assert sum(one is not None for one in found) < MAX_SETS


def read_of(conditions: Any, wrong: list[InvalidValue]) -> tuple[Any, ...]:
    """Return what conditions say, and what was wrong with them."""
    return (
        conditions.labels,
        conditions.attributes,
        conditions.usage,
        conditions.deadline,
        [str(each) for each in wrong],
    )


def without(part: Any) -> Any:
    """Return a part of what was told without the changes that the test made afterwards."""
    return {name: value for name, value in part.items() if name != "changed"} if isinstance(part, dict) else part
