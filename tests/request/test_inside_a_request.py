"""What is current inside a request: spans of stages and phases, contexts of generators, parents from outside."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

import otel_lifecycle as lifecycle
from tests.support.plain import plain_id
from tests.support.telemetry import Telemetry

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0x00F067AA0BA902B7
HEADER = f"00-{TRACE:032x}-{SPAN:016x}-01"


def parents(telemetry: Telemetry) -> dict[str, str | None]:
    """The name of each span's parent."""
    finished = telemetry.exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in finished if span.context is not None}
    return {span.name: names.get(span.parent.span_id) if span.parent else None for span in finished}


def test_c109_a_span_inside_a_stage_is_its_child(telemetry: Telemetry) -> None:
    """The stage's span is live and current in its block; attributes that are set there are on it."""
    tracer = telemetry.tracer()
    with telemetry.request() as request:
        with request.stage("queue"):
            pass
        with request.stage("preprocessing"), tracer.start_as_current_span("tokenizer"):
            pass
        with request.stage("prefill"):
            trace.get_current_span().set_attribute("kernel", "flash")
            with tracer.start_as_current_span("database"):
                pass
    found = parents(telemetry)
    assert {name: found[name] for name in ("tokenizer", "database", "preprocessing", "decode")} == {
        "tokenizer": "preprocessing",
        "database": "prefill",
        "preprocessing": "chat",
        "decode": "chat",
    }
    assert telemetry.span("prefill")["attributes"] == {"inference.stage": "prefill", "kernel": "flash"}


def test_c109_stage_spans_have_the_times_of_the_boundaries(telemetry: Telemetry) -> None:
    """Stages in blocks and bare marks make the same spans: each begins where the one before ended."""
    with telemetry.request() as request:
        for name in ("queue", "preprocessing", "prefill"):
            with request.stage(name):
                pass
    spans = [telemetry.span(name) for name in ("queue", "preprocessing", "prefill", "decode")]
    whole = telemetry.span("chat")
    edges = [span["start_ns"] for span in spans] + [spans[-1]["end_ns"]]
    assert [span["end_ns"] for span in spans[:-1]] == edges[1:-1]
    assert (edges[0], edges[-1]) == (whole["start_ns"], whole["end_ns"])


@pytest.mark.parametrize("entered", ["queue", "prefill"])
def test_c109_a_stage_that_is_cut_off_has_one_span(telemetry: Telemetry, entered: str) -> None:
    """Its block was left by an exception: the span ends with the request, and nothing is orphaned."""
    tracer = telemetry.tracer()

    def serve() -> None:
        with telemetry.request() as request, request.stage(entered), tracer.start_as_current_span("inner"):
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011  # its own
        serve()
    found = parents(telemetry)
    assert (found["inner"], found[entered], telemetry.span(entered)["end_ns"] <= telemetry.span("chat")["end_ns"]) == (
        entered,
        "chat",
        True,
    )


def test_phases_are_children_of_the_stage(telemetry: Telemetry) -> None:
    """A phase is a span of the server's own name; it moves no state, and its exception goes on."""
    with telemetry.request() as request:
        with request.stage("prefill"), request.phase("vae_decode"), request.phase("tile"):
            pass
        with pytest.raises(KeyError), request.phase("broken"):
            raise KeyError
        request.complete()
    found = parents(telemetry)
    assert (found["vae_decode"], found["tile"], found["broken"]) == ("prefill", "vae_decode", "chat")
    assert telemetry.span("broken")["attributes"] == {"error.type": "KeyError"}


def test_active_makes_a_request_current(telemetry: Telemetry) -> None:
    """In its block the request is found; afterwards what was current before is current again."""
    request = telemetry.request()
    nobody = lifecycle.current()

    async def asynchronous() -> bool:
        async with request.active():
            return lifecycle.current() is request

    with request.active():
        assert lifecycle.current() is request
    assert asyncio.run(asynchronous())
    assert (lifecycle.current() is nobody, request.ended) == (True, False)
    with nobody.active():
        assert lifecycle.current() is nobody
    request.cancel()


def test_events_and_attributes_of_the_servers_own(telemetry: Telemetry) -> None:
    """They are on the span, bounded and cleaned, and label no metric; reserved names are refused."""
    with telemetry.request() as request:
        request.event("cache_miss", {"blocks": 3})
        request.event("admit")
        request.set(attributes={"tenant.plan": "gold", "inference.outcome": "mine", "odd": [1]})
        request.set(attributes={f"n{number}": number for number in range(100)})
        list(request.stream([1]))
    span = telemetry.span("chat")
    told = [(event["name"], event["attributes"]) for event in span["events"]]
    assert ("cache_miss", {"blocks": 3}) in told
    assert ("event.admit", {}) in told
    attributes = span["attributes"]
    assert (attributes["tenant.plan"], attributes["odd"], attributes["inference.outcome"]) == (
        "gold",
        "[1]",
        "completed",
    )
    assert (sum(name.startswith("n") for name in attributes), attributes["inference.legal"]) == (30, False)
    assert all("tenant.plan" not in point["attributes"] for point in telemetry.points())


def numbers(tracer: trace.Tracer, seen: list[Any]) -> Iterator[int]:
    """Set baggage and a span at the first item and keep them for the rest."""
    attach(baggage.set_baggage("user", "ann"))
    with tracer.start_as_current_span("work"):
        for number in range(3):
            with tracer.start_as_current_span(f"item{number}"):
                pass
            seen.append(baggage.get_baggage("user"))
            yield number


async def async_numbers(tracer: trace.Tracer, seen: list[Any]) -> AsyncIterator[int]:
    """Do the same asynchronously."""
    attach(baggage.set_baggage("user", "ann"))
    with tracer.start_as_current_span("work"):
        for number in range(3):
            await asyncio.sleep(0)
            with tracer.start_as_current_span(f"item{number}"):
                pass
            seen.append(baggage.get_baggage("user"))
            yield number


@pytest.mark.parametrize("way", ["stream", "traced"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_generator_finds_the_context_it_left(telemetry: Telemetry, way: str, kind: str) -> None:
    """Spans and baggage that it set are there at every item; the consumer keeps its own."""
    tracer, seen = telemetry.tracer(), list[Any]()
    outside: list[Any] = []
    request = telemetry.request(operation="stream")
    function: Callable[..., Any] = numbers if kind == "sync" else async_numbers

    def note() -> None:
        outside.append((baggage.get_baggage("user"), baggage.get_baggage("consumer"), lifecycle.current().state))

    def items() -> Any:
        if way == "traced":
            return lifecycle.traced(tracer_provider=telemetry.tracer_provider)(function)(tracer, seen)
        return request.stream(function(tracer, seen))

    async def consume() -> None:
        async for _ in items():
            note()

    token = attach(baggage.set_baggage("consumer", "bob"))
    try:
        if kind == "async":
            asyncio.run(consume())
        else:
            for _ in items():
                note()
    finally:
        detach(token)
    found = parents(telemetry)
    assert [found[f"item{number}"] for number in range(3)] == ["work"] * 3
    assert (seen, outside) == (["ann"] * 3, [(None, "bob", "not_arrived")] * 3)
    request.complete()
    assert parents(telemetry)["work"] == ("chat" if way == "traced" else "stream")


class Metadatum:
    """One entry of gRPC's metadata: a pair with names."""

    def __init__(self, key: str, value: str) -> None:
        self.key, self.value = key, value

    def __iter__(self) -> Iterator[str]:
        return iter((self.key, self.value))


REMOTE = NonRecordingSpan(SpanContext(TRACE, SPAN, is_remote=True, trace_flags=TraceFlags(1)))
PARENTS = {
    "mapping": {"traceparent": HEADER},
    "mapping in any case": {"TraceParent": HEADER},
    "values that are lists": {"Traceparent": [HEADER]},
    "pairs": [("Content-Type", "x"), ("Traceparent", HEADER)],
    "pairs of bytes": [(b"traceparent", HEADER.encode())],
    "WSGI environ": {"HTTP_TRACEPARENT": HEADER, "wsgi.input": object(), "REQUEST_METHOD": "POST"},
    "gRPC metadata": (Metadatum("user-agent", "x"), Metadatum("traceparent", HEADER)),
    "context": set_span_in_context(REMOTE, Context()),
}


@pytest.mark.parametrize("parent", PARENTS.values(), ids=PARENTS.keys())
def test_c119_parent_from_whatever_carries_it(telemetry: Telemetry, parent: Any) -> None:
    """The request joins the caller's trace, wherever it is opened."""
    telemetry.request(parent=parent).cancel()
    (span,) = (span for span in telemetry.exporter.get_finished_spans() if span.name == "chat")
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id, span.kind) == (TRACE, SPAN, trace.SpanKind.SERVER)


@pytest.mark.parametrize(
    "parent", [{}, {"traceparent": "junk"}, 5, [1, 2], {"traceparent": None}, [object()]], ids=plain_id
)
def test_parent_that_carries_nothing(telemetry: Telemetry, parent: Any) -> None:
    """The current span is the parent then; nothing raises."""
    with telemetry.tracer().start_as_current_span("outer"):
        telemetry.request(parent=parent).cancel()
    assert parents(telemetry)["chat"] == "outer"


def test_parent_below_an_instrumentation_of_the_same_trace(telemetry: Telemetry) -> None:
    """A span that went on from the same headers already stays the parent."""
    with telemetry.tracer().start_as_current_span("http", context=set_span_in_context(REMOTE, Context())):
        telemetry.request(parent={"traceparent": HEADER}).cancel()
    assert parents(telemetry)["chat"] == "http"


def broken() -> Iterator[int]:
    """Yield a token and break."""
    yield 1
    raise MemoryError


@pytest.mark.parametrize("wrapped", [False, True])
def test_c115_the_first_exception_is_the_end(telemetry: Telemetry, wrapped: bool) -> None:
    """A handler that catches what the engine raised has not completed; one that wraps it failed by the original."""

    def serve() -> None:
        with telemetry.request() as request:
            try:
                list(request.stream(broken()))
            except MemoryError as error:
                if wrapped:
                    raise RuntimeError("of the framework") from error

    with pytest.raises(RuntimeError) if wrapped else contextlib.nullcontext():
        serve()
    attributes = telemetry.span("chat")["attributes"]
    assert (attributes["inference.outcome"], attributes["error.type"]) == ("failed", "out_of_memory")


@pytest.mark.parametrize("block", ["stage", "phase"])
def test_c115_blocks_too(telemetry: Telemetry, block: str) -> None:
    """What left a stage or a phase counts; what the server marks itself counts more."""
    for end in (None, "cancel"):
        with telemetry.request() as request:
            with pytest.raises(KeyError), getattr(request, block)("prefill"):
                raise KeyError
            if end is not None:
                request.cancel()
    assert [span["attributes"]["inference.outcome"] for span in telemetry.spans("chat")] == ["failed", "cancelled"]


def test_c115_another_attempt_that_went_well_completes(telemetry: Telemetry) -> None:
    """A second stream that runs to its end is the answer, and a consumer that has had enough is not a fault."""
    with telemetry.request() as request:
        with pytest.raises(MemoryError):
            list(request.stream(broken()))
        list(request.stream([1, 2]))
    with telemetry.request() as request:
        for _ in request.stream([1, 2, 3]):
            break
    outcomes = [span["attributes"]["inference.outcome"] for span in telemetry.spans("chat")]
    assert outcomes == ["completed", "completed"]
