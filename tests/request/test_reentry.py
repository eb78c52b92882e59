"""Handles in odd hands: re-entered ends, copies, one block in many tasks, counters of other libraries."""

from __future__ import annotations

import asyncio
import base64
import copy
import pickle
import struct
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider

import otel_lifecycle as lifecycle
from otel_lifecycle._runtime import runtime
from otel_lifecycle.errors import ConfigurationError
from otel_lifecycle.processor import LifecycleSpanProcessor
from tests.request.manual_clock import opened_at
from tests.support.telemetry import Telemetry

NS = 10**9


def test_end_within_the_end(telemetry: Telemetry) -> None:
    """A signal handler that cancels every request may land inside an end of ours: it does not wait for itself."""
    handles: list[Any] = []

    class Cancels(SpanProcessor):
        """Stands for whatever calls back in while a span ends."""

        def on_end(self, span: ReadableSpan) -> None:
            for handle in handles:
                handle.cancel()

    telemetry.tracer_provider.add_span_processor(Cancels())
    with telemetry.request() as request:
        handles.append(request)
        list(request.stream([1]))
    assert telemetry.span("chat")["attributes"]["inference.outcome"] == "completed"
    assert telemetry.point("inference.requests")["value"] == 1


def test_copies_are_the_same_request(telemetry: Telemetry) -> None:
    """Engines copy the structs that hold a handle; a copy is the handle, and pickling says what to do instead."""
    request = telemetry.request()
    assert copy.copy(request) is copy.deepcopy({"a": request})["a"] is request
    assert copy.deepcopy(lifecycle.current()) is lifecycle.current()
    with pytest.raises(TypeError, match="carrier"):
        pickle.dumps(request)
    request.cancel()


def test_one_block_in_many_tasks(telemetry: Telemetry) -> None:
    """A lifecycle.stage() made once serves tasks at the same time, each its own request."""
    queue = lifecycle.stage("queue")

    @lifecycle.traced(tracer_provider=telemetry.tracer_provider)
    async def serve(turns: int) -> None:
        with queue:
            for _ in range(turns):
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(serve(turns) for turns in range(9, 0, -1)))

    asyncio.run(main())
    legal = [span["attributes"]["inference.legal"] for span in telemetry.spans("chat")]
    assert legal == [True] * 9


class Whole:
    """An integer of another library."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class Hostile:
    """A value whose every method raises, as an array's comparison does."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("ambiguous")

    def __hash__(self) -> int:
        raise RuntimeError("unhashable")

    def __repr__(self) -> str:
        raise RuntimeError("unshowable")


def test_counters_of_other_libraries(telemetry: Telemetry) -> None:
    """A truth value and a foreign integer are counts; an empty frame before the first token is nothing."""
    with telemetry.request() as request:
        list(request.stream(["", "a", "", "b"], tokens=bool))
    with telemetry.request(operation="other") as request:
        list(request.stream([0, 0, 2, 3], tokens=Whole))
    first, other = telemetry.span("chat"), telemetry.span("other")
    assert [span["attributes"]["inference.streamed_tokens"] for span in (first, other)] == [2, 5]
    assert [event["name"] for event in other["events"]].count("first_token") == 1
    assert telemetry.points("inference.transition.violations") == []


def test_values_whose_methods_raise(telemetry: Telemetry) -> None:
    """Nothing of them comes out into the server; each is a violation, and the request ends normally."""
    odd: Any = Hostile()
    with telemetry.request(model=odd, max_tokens=odd) as request:
        request.set(role=odd, workload=odd)
        request.admit(at_ns=odd)
        request.input_ready()
        request.token(odd)
        request.token(1, odd)
        list(request.stream([1], tokens=lambda item: odd))
        request.usage(output_tokens=odd)
        request.response(finish_reasons=(1 / 0 for _ in "a"))
        request.record({"event": odd == 1} for _ in "a")
        request.fail(odd)
    attributes = telemetry.span("chat")["attributes"]
    assert (attributes["inference.outcome"], attributes["error.type"]) == ("failed", "_OTHER")
    assert attributes["inference.violations"] == 11


def test_late_tokens_of_an_engine_elsewhere(telemetry: Telemetry) -> None:
    """Tokens that come back by record() after the end are wasted: one violation, each counted, and the lag."""
    request = telemetry.request()
    request.admit()
    request.input_ready()
    request.cancel()
    ended = opened_at(request)
    request.record([{"event": "token", "timestamp": ended + NS, "count": 4}] * 3)
    request.first_token()
    violations = telemetry.point("inference.transition.violations")
    assert (violations["value"], violations["attributes"]["inference.violation.kind"]) == (1, "event_after_terminal")
    assert telemetry.point("inference.tokens", inference__token__direction="wasted")["value"] == 13
    del request
    assert telemetry.point("inference.cancel.lag")["count"] == 1


def test_recorded_tokens_are_bounded_too(telemetry: Telemetry) -> None:
    """An endless stream of recorded tokens is folded like a live one; totals stay exact."""
    request = telemetry.request()
    start = opened_at(request)
    request.record({"event": name, "timestamp": start + 1} for name in ("admit", "input_ready", "first_token"))
    for batch in range(4):
        times = range(start + batch * 10_000 + 2, start + batch * 10_000 + 10_002)
        request.record({"event": "token", "timestamp": time} for time in times)
        runtime().housekeep(now=True)
    held = len(request._tracked.state.timeline.remote_tokens[0])
    request.record([{"event": "complete", "timestamp": start + 50_000}])
    assert (held < 20_000, request.report["output_tokens"]) == (True, 40_001)
    assert telemetry.point("inference.inter_token_latency")["count"] == 40_000


def test_folded_stream_with_an_unknown_chunk_gives_no_itl(telemetry: Telemetry) -> None:
    """A chunk of unknown size leaves the request without ITL samples, folded or not."""
    with telemetry.request() as request:
        request.admit()
        request.input_ready()
        request.token(None)
        for _ in range(20_000):
            request.token()
        runtime().housekeep(now=True)
    assert telemetry.points("inference.inter_token_latency") == []


def test_foreign_end_says_why(telemetry: Telemetry) -> None:
    """The terminal event of a foreign span may bear the error type or the reason, as our own spans' do."""
    for end, told in (("fail", {"error.type": "OOM"}), ("cancel", {"inference.end.reason": "shutdown"})):
        span = telemetry.tracer().start_span("foreign")
        span.add_event("arrive")
        span.add_event(end, told)
        span.end()
    assert isinstance(telemetry.processor, LifecycleSpanProcessor)
    failed = telemetry.point("inference.requests", inference__outcome="failed")
    assert failed["attributes"]["error.type"] == "OOM"


def test_many_handles_dropped_at_once(telemetry: Telemetry) -> None:
    """An engine that clears its table drops thousands: each is one incomplete request, and none stays active."""
    handles = [telemetry.request() for _ in range(2000)]
    del handles
    telemetry.request(operation="other").cancel()
    incomplete = telemetry.point("inference.requests", inference__outcome="incomplete")
    assert (incomplete["value"], len(telemetry.spans("chat"))) == (2000, 2000)
    assert [point["value"] for point in telemetry.points("inference.active_requests")] in ([], [0])


@pytest.mark.parametrize("count", [2**16 + 1, 10**9, 2**60], ids=str)
def test_one_event_cannot_claim_the_memory(telemetry: Telemetry, count: int) -> None:
    """A count comes from outside; one that no event can have is a violation and unknown."""
    request = telemetry.request()
    now = opened_at(request)
    marks: list[dict[str, Any]] = [{"event": name, "timestamp": now} for name in ("admit", "input_ready")]
    request.record([*marks, {"event": "first_token", "timestamp": now, "count": count}])
    request.token(count)
    request.complete()
    assert telemetry.span("chat")["attributes"]["inference.violations"] == 2
    assert len(request.report["token_times"]) == 2


def test_numbers_no_float_can_hold(telemetry: Telemetry) -> None:
    """They are violations at run time and refused at set-up."""
    with telemetry.request(deadline=10**400) as request:
        request.set(deadline=10**400)
        list(request.stream([1]))
    assert telemetry.point("inference.transition.violations")["value"] == 2
    with pytest.raises(ConfigurationError):
        lifecycle.Slo(ttft=10**400)


def test_counter_finds_its_request(telemetry: Telemetry) -> None:
    """A counter is called in the step that made its item, where the request is current."""
    seen = []

    def count(item: int) -> int:
        seen.append(lifecycle.current() is request)
        return 1

    with telemetry.request() as request:
        assert list(request.stream([1, 2], tokens=count)) == [1, 2]
    assert seen == [True, True]


def test_startup_of_a_coroutine(telemetry: Telemetry) -> None:
    """As decorator of a coroutine, and as async block, it lasts until the work is done."""
    startup = lifecycle.startup("load_model", tracer_provider=telemetry.tracer_provider)

    @startup
    async def load() -> str:
        await asyncio.sleep(0.01)
        return "loaded"

    async def main() -> str:
        async with startup:
            return await load()

    assert asyncio.run(main()) == "loaded"
    point = telemetry.point("inference.startup.duration")
    # The sleep's own length is the only figure here that does not depend on the machine.
    assert (point["count"], (point["sum"] or 0) >= 0.02) == (2, True)
    with pytest.raises(ConfigurationError, match="generator"):

        @startup
        def generator() -> Any:
            yield 1


def test_engine_clock_that_is_ahead(telemetry: Telemetry) -> None:
    """Events that reach us before their own time prove the clocks apart, also where the engine records the end."""
    request = telemetry.request()
    ahead = opened_at(request) + 10 * NS
    names = ("admit", "input_ready", "first_token", "token", "complete")
    request.record({"event": name, "timestamp": ahead + number} for number, name in enumerate(names))
    attributes = telemetry.span("chat")["attributes"]
    known = {name for name in attributes if name in {"inference.queue_wait", "inference.ttft", "inference.e2e"}}
    assert (known, attributes["inference.violations"], "inference.prefill" in attributes) == (set(), 1, True)
    kind = telemetry.point("inference.transition.violations")["attributes"]["inference.violation.kind"]
    assert kind == "foreign_clock"


def test_recorded_notes(telemetry: Telemetry) -> None:
    """Notes that come by record() say the same as those that are called."""
    request = telemetry.request()
    arrival = opened_at(request)
    request.record(
        [{"event": "client_disconnected", "timestamp": arrival}, {"event": "delivered", "timestamp": arrival + 1000}]
    )
    request.cancel()
    attributes = telemetry.span("chat")["attributes"]
    told = {name: attributes[f"inference.{name}"] for name in ("client.disconnected", "delivered")}
    assert told == {"client.disconnected": True, "delivered": 1e-6}


def test_blocks_and_streams_are_alike_without_an_sdk(telemetry: Telemetry) -> None:
    """What works on the no-op handle works on the live one."""

    async def use(request: Any) -> list[int]:
        async with request.stage("queue"), lifecycle.stage("preprocessing"):
            pass
        stream = request.stream([1, 2])
        return [next(stream), *stream]

    nobody = lifecycle.current()
    live = telemetry.request()
    assert asyncio.run(use(nobody)) == asyncio.run(use(live)) == [1, 2]
    live.complete()


def test_token_offsets(make_telemetry: Callable[..., Telemetry]) -> None:
    """With token_times=True the span bears every token's offset from the first, in one attribute."""
    telemetry = make_telemetry(token_times=True)
    request = telemetry.request()
    start = opened_at(request) + NS
    marks = [("admit", 0), ("input_ready", 0), ("first_token", 0), ("token", 2_500), ("token", 90_000)]
    for name, microseconds in marks:
        getattr(request, name)(at_ns=start + microseconds * 1000)
    request.complete(at_ns=start + NS)
    told = telemetry.span("chat")["attributes"]["inference.token_offsets"]
    assert struct.unpack("<3I", base64.b64decode(told)) == (0, 2_500, 90_000)


def test_foreign_span_keeps_what_was_dropped(make_telemetry: Callable[..., Telemetry]) -> None:
    """A rebuilt span still says how many of its attributes and links the SDK dropped."""
    telemetry = make_telemetry(wrap=True)
    tracers = TracerProvider(span_limits=SpanLimits(max_span_attributes=3), shutdown_on_exit=False)
    tracers.add_span_processor(telemetry.processor)
    span = tracers.get_tracer("another").start_span("foreign", attributes={str(n): n for n in range(9)})
    span.add_event("arrive")
    span.add_event("cancel")
    span.end()
    assert telemetry.span("foreign")["dropped_attributes"] == 6
