"""``stage``, ``step``, ``stream`` and ``current``: which request they act on, and what leaving them means."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan

import otel_lifecycle as lifecycle
from otel_lifecycle.errors import ConfigurationError, InvalidValue
from tests.support.telemetry import Telemetry


def events(telemetry: Telemetry) -> list[str]:
    """The events of the one request span."""
    (span,) = telemetry.spans("chat")
    return [event["name"] for event in span["events"]]


def outcome(telemetry: Telemetry) -> Any:
    """The outcome of the one request span."""
    return telemetry.span("chat")["attributes"]["inference.outcome"]


def test_stages_emit_what_leaves_them(telemetry: Telemetry) -> None:
    """Queue, preprocessing and prefill end with admit, input_ready and first_token."""
    with telemetry.request() as request:
        for name in ("queue", "preprocessing", "prefill"):
            with request.stage(name):
                pass
    assert events(telemetry) == ["arrive", "admit", "input_ready", "first_token", "complete"]


def test_stages_of_the_other_order(telemetry: Telemetry) -> None:
    """In preprocess_first the same blocks come in that shape's order."""
    with telemetry.request(shape="preprocess_first") as request:
        for name in ("preprocessing", "queue", "prefill"):
            with request.stage(name):
                pass
    assert events(telemetry) == ["arrive", "input_ready", "admit", "first_token", "complete"]
    assert telemetry.span("chat")["attributes"]["inference.legal"] is True


def test_prefill_of_pooling_completes(telemetry: Telemetry) -> None:
    """A pooling request's prefill block is its one pass."""
    request = telemetry.request(operation="chat", shape="pooling")
    with request.stage("prefill"):
        pass
    assert (events(telemetry), outcome(telemetry)) == (["arrive", "complete"], "completed")


def test_body_that_marks_by_itself(telemetry: Telemetry) -> None:
    """A block whose body emitted the event does not emit it again."""
    with telemetry.request() as request:
        with request.stage("queue"):
            request.admit()
        with request.stage("prefill"):
            request.token()
    assert events(telemetry) == ["arrive", "admit", "first_token", "complete"]


def test_abnormal_exit_emits_nothing(telemetry: Telemetry) -> None:
    """An exception that leaves a block leaves the request in its stage, and goes on unchanged."""
    error = KeyError("a")
    with pytest.raises(KeyError) as caught, telemetry.request() as request, request.stage("queue"):
        raise error
    assert (caught.value, events(telemetry)) == (error, ["arrive", "fail"])
    assert telemetry.span("chat")["attributes"]["inference.failure.stage"] == "queue"


class HostileName(str):
    """A name that cannot be compared."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError


@pytest.mark.parametrize("name", ["lunch", "decode", "", None, 3, HostileName("lunch")])
def test_an_unknown_stage_is_a_violation_and_its_body_runs(telemetry: Telemetry, name: Any) -> None:
    """By the handle, the block of the current request, or its decorator: the boundaries stay right."""

    @lifecycle.stage(name)
    def decorated() -> None:
        ran.append("decorated")

    ran = []
    with telemetry.request() as request:
        with request.stage(name):
            ran.append("handle")
        with request.stage("queue"), lifecycle.stage(name):
            ran.append("current")
            decorated()
        request.input_ready()
        request.token()
    attributes = telemetry.span("chat")["attributes"]
    assert ran == ["handle", "current", "decorated"]
    assert (attributes["inference.legal"], attributes["inference.outcome"]) == (False, "completed")
    point = telemetry.point("inference.transition.violations")
    assert (point["attributes"]["inference.violation.kind"], point["value"]) == ("invalid_value", 3)


def test_an_unknown_stage_of_no_request_runs_its_body(telemetry: Telemetry) -> None:
    """Without a request there is nothing to count, and nothing is raised."""
    ran = []
    with lifecycle.stage("lunch"), lifecycle.current().stage("lunch"):
        ran.append(True)
    assert ran == [True]


def test_strict_refuses_an_unknown_stage(make_telemetry: Callable[..., Telemetry]) -> None:
    """In strict mode it raises before the body, and the request can go on."""
    with make_telemetry(strict=True).request() as request:
        with request.stage("queue"):
            for enter in (lambda: request.stage("lunch"), lifecycle.stage("lunch").__enter__):
                with pytest.raises(InvalidValue, match="no stage 'lunch' to enter; there are queue, preproc"):
                    enter()
        request.input_ready()
        request.token()


def test_block_of_an_earlier_stage_runs(telemetry: Telemetry) -> None:
    """Entered from a later stage it is one violation, its body runs, and it emits nothing."""
    ran = []
    with telemetry.request() as request:
        request.admit()
        request.input_ready()
        with request.stage("queue"):
            ran.append(True)
        request.token()
    assert (ran, events(telemetry)) == (
        [True],
        ["arrive", "admit", "input_ready", "inference.violation", "first_token", "complete"],
    )


def test_block_after_the_end(telemetry: Telemetry) -> None:
    """After the end it is one event_after_terminal, and its body runs."""
    request = telemetry.request()
    request.cancel()
    with request.stage("queue"):
        pass
    assert telemetry.point("inference.transition.violations")["attributes"]["inference.violation.kind"] == (
        "event_after_terminal"
    )


def test_skipped_stages_pass_with_unknown_times(telemetry: Telemetry) -> None:
    """Who enters prefill at once has no queue wait, no shares and no bottleneck; TTFT stands."""
    with telemetry.request() as request, request.stage("prefill"):
        pass
    known = telemetry.span("chat")["attributes"].keys()
    absent = {"inference.queue_wait", "inference.preprocessing", "inference.prefill", "inference.bottleneck"}
    assert (known & absent, "inference.ttft" in known) == (set(), True)
    # The block of prefill has a span from its entry: what was done inside needs a parent.
    assert [span["name"] for span in telemetry.spans()] == ["decode", "prefill", "chat"]


def test_current_inside_and_outside(telemetry: Telemetry) -> None:
    """A request is current inside its blocks and steps, nowhere else, and no longer once it has ended."""
    nobody = lifecycle.current()
    seen: list[bool] = []

    def tokens() -> Iterator[int]:
        seen.append(lifecycle.current() is request)
        yield 1

    with telemetry.request() as request:
        assert lifecycle.current() is nobody
        with request.stage("queue"):
            assert lifecycle.current() is request
            here = trace.get_current_span()
            assert isinstance(here, ReadableSpan)
            assert (here.name, here.parent) == ("queue", request._tracked.writer.span.get_span_context())
        for _ in request.stream(tokens()):
            assert lifecycle.current() is nobody
        with request.stage("preprocessing"):
            request.complete()
            assert lifecycle.current() is nobody
    assert seen == [True]


def test_module_level_stage_is_block_and_decorator(telemetry: Telemetry) -> None:
    """It acts on whichever request is current: of a function, a coroutine, or a block."""

    @lifecycle.stage("queue")
    def wait() -> str:
        return "waited"

    @lifecycle.stage("preprocessing")
    async def prepare() -> str:
        return "prepared"

    @lifecycle.traced(tracer_provider=telemetry.tracer_provider)
    async def serve() -> list[str]:
        answers = [wait(), await prepare()]
        with lifecycle.stage("prefill"):
            pass
        return answers

    assert asyncio.run(serve()) == ["waited", "prepared"]
    assert events(telemetry) == ["arrive", "admit", "input_ready", "first_token", "complete"]
    assert (wait.__name__, asyncio.run(prepare())) == ("wait", "prepared")


def test_stage_of_a_generator_is_refused() -> None:
    """A stage cannot be left at a yield and taken up again."""

    def generator() -> Iterator[int]:
        yield 1

    with pytest.raises(ConfigurationError, match="generator"):
        lifecycle.stage("queue")(generator)


def test_decorated_function_is_used_concurrently(telemetry: Telemetry) -> None:
    """One decorator serves many requests at once: nothing of a call is kept in it."""

    @lifecycle.stage("queue")
    async def wait(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    @lifecycle.traced(tracer_provider=telemetry.tracer_provider)
    async def serve(turns: int) -> int:
        await wait(turns)
        return turns

    async def main() -> list[int]:
        return await asyncio.gather(*(serve(turns) for turns in range(20)))

    assert asyncio.run(main()) == list(range(20))
    assert {span["attributes"]["inference.legal"] for span in telemetry.spans("chat")} == {True}
    assert telemetry.point("inference.requests")["value"] == 20


def test_step_marks_one_instant(telemetry: Telemetry) -> None:
    """A batch gets one token each at one time; those in prefill get their first, ended ones a wasted one."""
    requests = [telemetry.request() for _ in range(4)]
    for request in requests:
        request.admit()
        request.input_ready()
    lifecycle.step(requests)
    lifecycle.step(requests)
    lifecycle.step([*requests, lifecycle.current()])
    requests[0].complete()
    lifecycle.step(requests)
    for request in requests[1:]:
        request.complete()
    # On the monotonic clock; each request turns that into wall time by its own anchor.
    last = {request._tracked.state.timeline.tokens[0][-1] for request in requests[1:]}
    assert ([request.report["output_tokens"] for request in requests], len(last)) == ([3, 4, 4, 4], 1)
    assert telemetry.point("inference.tokens", inference__token__direction="wasted")["value"] == 1


def test_step_of_something_else() -> None:
    """What is not a request is passed over; a batch is never broken off."""
    lifecycle.step([None, 3, lifecycle.current()])  # type: ignore[list-item]  # as a mistaken server would


def test_stream_counts_by_its_counter(telemetry: Telemetry) -> None:
    """Items are 0, 1, n or unknown tokens; a counter that raises makes the count unknown and is a violation."""
    with telemetry.request() as request:
        assert list(request.stream(["", "a", "bc"], tokens=len)) == ["", "a", "bc"]
    assert telemetry.span("chat")["attributes"]["inference.streamed_tokens"] == 3
    with telemetry.request(operation="other") as request:
        assert list(request.stream([1, 2], tokens=len)) == [1, 2]
    span = telemetry.span("other")
    assert ("inference.streamed_tokens" in span["attributes"], span["attributes"]["inference.violations"]) == (False, 2)


def test_stream_that_yields_nothing_is_an_empty_answer(telemetry: Telemetry) -> None:
    """It ended by itself: zero tokens, completed, no violation."""
    with telemetry.request() as request:
        assert list(request.stream([])) == []
    attributes = telemetry.span("chat")["attributes"]
    assert (attributes["inference.outcome"], attributes["inference.streamed_tokens"]) == ("completed", 0)
    assert "inference.ttft" not in attributes


def test_stream_closes_what_it_wraps(telemetry: Telemetry) -> None:
    """A consumer that stops early closes the engine's generator at once, sync and async."""
    closed = []

    def tokens() -> Iterator[int]:
        try:
            yield from range(9)
        finally:
            closed.append("sync")

    async def atokens() -> Any:
        try:
            for item in range(9):
                yield item
        finally:
            closed.append("async")

    with telemetry.request() as request:
        stream = request.stream(tokens())
        next(stream)
        stream.close()

    async def main() -> None:
        async with telemetry.request() as request:
            stream = request.stream(atokens())
            await anext(stream)
            await stream.aclose()

    asyncio.run(main())
    assert closed == ["sync", "async"]


def test_steps_of_a_sync_stream_in_many_threads(telemetry: Telemetry) -> None:
    """A web framework pulls a sync generator from a pool: each step from another thread, nothing leaks into them."""
    nobody = lifecycle.current()
    with telemetry.request() as request, ThreadPoolExecutor(4) as pool:
        stream = request.stream(iter(range(50)))
        assert [pool.submit(next, stream).result() for _ in range(50)] == list(range(50))
        assert {pool.submit(lifecycle.current).result() is nobody for _ in range(20)} == {True}
    assert telemetry.span("chat")["attributes"]["inference.streamed_tokens"] == 50


def test_dropped_handle(telemetry: Telemetry) -> None:
    """A handle that is dropped is incomplete, reason abandoned, whatever copied the context meanwhile."""
    import contextvars

    request = telemetry.request()
    with request.stage("queue"):
        kept = contextvars.copy_context()
    assert telemetry.point("inference.active_requests", inference__stage="preprocessing")["value"] == 1
    del request
    gc.collect()
    assert telemetry.point("inference.active_requests", inference__stage="preprocessing")["value"] == 0
    attributes = telemetry.span("chat")["attributes"]
    assert (attributes["inference.outcome"], attributes["inference.end.reason"]) == ("incomplete", "abandoned")
    assert kept.run(lifecycle.current) is lifecycle.current()
