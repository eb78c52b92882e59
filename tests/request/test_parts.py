"""Parts of a request: they end by themselves, the request once, and every figure counts the request once."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

import otel_lifecycle as lifecycle
from otel_lifecycle._request.no_request import NO_REQUEST
from otel_lifecycle.types import Request
from tests.support.hostile import Raising
from tests.support.plain import Span
from tests.support.telemetry import Telemetry

BEGAN = time.time_ns() - 60_000_000_000


def at(seconds: float) -> int:
    """A time of the request, epoch nanoseconds."""
    return BEGAN + round(seconds * 1e9)


def whole_span(telemetry: Telemetry) -> Span:
    """The one span of the request itself."""
    return next(span for span in telemetry.spans("chat") if "inference.request.role" not in span["attributes"])


def part_spans(telemetry: Telemetry) -> list[Span]:
    """The spans of its parts, in the order they ended."""
    return [span for span in telemetry.spans("chat") if span["attributes"].get("inference.request.role") == "part"]


def two_answers(telemetry: Telemetry) -> Request:
    """Two answers that an engine runs apart: tokens at 3, 4, 5 and at 4, 6; the first is admitted a second earlier."""
    request: Request = telemetry.request(arrived_at_ns=at(0))
    one, two = request.part(arrived_at_ns=at(0)), request.part(arrived_at_ns=at(0))
    for part, admitted, tokens in ((one, 1, (3, 4, 5)), (two, 2, (4, 6))):
        part.admit(at_ns=at(admitted))
        part.input_ready(at_ns=at(admitted))
        for when in tokens:
            part.token(at_ns=at(when))
    one.complete(at_ns=at(5))
    two.complete(at_ns=at(6))
    request.complete(at_ns=at(7))
    return request


def test_the_request_moves_with_its_parts(telemetry: Telemetry) -> None:
    """Its queue ends with the first part that is admitted, and the first token of any part is its first."""
    two_answers(telemetry)
    attributes = whole_span(telemetry)["attributes"]
    told = {name: attributes[f"inference.{name}"] for name in ("queue_wait", "prefill", "ttft", "e2e", "token_span")}
    assert told == {"queue_wait": 1.0, "prefill": 2.0, "ttft": 3.0, "e2e": 7.0, "token_span": 3.0}
    assert (attributes["inference.outcome"], attributes["inference.violations"]) == ("completed", 0)


def test_tokens_and_gaps_are_those_of_its_choices(telemetry: Telemetry) -> None:
    """Tokens add up, and gaps lie within one part: TPOT is the spans summed over the gaps summed."""
    report = two_answers(telemetry).report
    assert report is not None
    attributes = whole_span(telemetry)["attributes"]
    assert (attributes["inference.streamed_tokens"], attributes["inference.itl.count"]) == (5, 3)
    assert attributes["inference.tpot"] == pytest.approx(4 / 3)
    assert {number: choice["tokens"] for number, choice in report["choices"].items()} == {0: 3, 1: 2}
    assert sorted(report["itl"]) == [1_000_000_000, 1_000_000_000, 2_000_000_000]


def test_each_part_is_a_child_with_stages_of_its_own(telemetry: Telemetry) -> None:
    """In a trace every part shows when it queued, ran and ended."""
    two_answers(telemetry)
    whole, parts = whole_span(telemetry), part_spans(telemetry)
    assert {(span["trace_id"], span["parent_id"]) for span in parts} == {(whole["trace_id"], whole["span_id"])}
    own = [
        (
            span["attributes"]["inference.choice"],
            span["attributes"]["inference.queue_wait"],
            span["attributes"]["inference.ttft"],
            span["attributes"]["inference.streamed_tokens"],
            span["attributes"]["inference.outcome"],
        )
        for span in parts
    ]
    assert own == [(0, 1.0, 3.0, 3, "completed"), (1, 2.0, 4.0, 2, "completed")]


def test_metrics_count_the_request_once(telemetry: Telemetry) -> None:
    """One request, one first token, its own stages; every token and every gap of its parts."""
    two_answers(telemetry)
    assert telemetry.point("inference.requests")["value"] == 1
    assert telemetry.point("inference.time_to_first_token")["count"] == 1
    assert telemetry.point("gen_ai.server.request.duration")["count"] == 1
    assert telemetry.point("inference.inter_token_latency")["count"] == 3
    assert telemetry.point("inference.tokens", inference__token__direction="output")["value"] == 5
    assert {point["count"] for point in telemetry.points("inference.stage.duration")} == {1}


def test_live_marks_of_threads(telemetry: Telemetry) -> None:
    """Parts run in threads of their own, by the hot path; nothing is lost and nothing is a violation."""

    def answer(part: Request) -> None:
        with part:
            with part.stage("queue"):
                pass
            assert list(part.stream(range(200))) == list(range(200))

    with telemetry.request() as request:
        threads = [threading.Thread(target=answer, args=(request.part(),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    attributes = whole_span(telemetry)["attributes"]
    assert (attributes["inference.streamed_tokens"], attributes["inference.itl.count"]) == (800, 796)
    assert (attributes["inference.outcome"], attributes["inference.violations"]) == ("completed", 0)
    assert [span["attributes"]["inference.violations"] for span in part_spans(telemetry)] == [0] * 4


def test_parts_that_threads_open(telemetry: Telemetry) -> None:
    """Each part has a number of its own, so that gaps lie within one part."""
    request: Request = telemetry.request()
    begin = threading.Barrier(8)

    def answer() -> None:
        begin.wait()
        for _ in range(20):
            with request.part() as part:
                part.token()

    threads = [threading.Thread(target=answer) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    request.complete()
    assert sorted(span["attributes"]["inference.choice"] for span in part_spans(telemetry)) == list(range(160))
    assert whole_span(telemetry)["attributes"]["inference.streamed_tokens"] == 160


def test_passes_of_a_pooling_request(telemetry: Telemetry) -> None:
    """A rerank of many documents in three batches: the passes complete, then the request does."""

    async def rerank() -> None:
        async with telemetry.request(shape="pooling", operation="rerank") as request:
            for _ in range(3):
                async with request.part() as part:
                    async with part.stage("queue"):
                        await asyncio.sleep(0)
                    async with part.stage("prefill"):
                        await asyncio.sleep(0)

    asyncio.run(rerank())
    spans = telemetry.spans("rerank")
    assert [span["attributes"]["inference.outcome"] for span in spans] == ["completed"] * 4
    assert spans[-1]["attributes"]["inference.violations"] == 0
    assert telemetry.point("inference.requests")["value"] == 1


def test_a_part_that_fails_and_a_request_that_goes_on(telemetry: Telemetry) -> None:
    """One of two answers breaks, and the server sends the other one."""
    with telemetry.request() as request:
        try:
            with request.part() as part:
                part.token()
                raise RuntimeError
        except RuntimeError:
            pass
        with request.part() as part:
            part.token()
            part.token()
    assert [span["attributes"]["inference.outcome"] for span in telemetry.spans("chat")] == [
        "failed",
        "completed",
        "completed",
    ]
    assert whole_span(telemetry)["attributes"]["inference.streamed_tokens"] == 3
    assert telemetry.point("inference.requests")["attributes"]["inference.outcome"] == "completed"


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (lambda request: request.cancel("client_disconnected"), ("cancelled", "client_disconnected")),
        (lambda request: request.timeout("deadline"), ("timed_out", "deadline")),
        (lambda request: request.complete(), ("cancelled", None)),
        (lambda request: request.__exit__(None, None, None), ("cancelled", None)),
    ],
    ids=["cancel", "timeout", "complete", "block"],
)
def test_open_parts_end_with_the_request(telemetry: Telemetry, end: Any, outcome: tuple[str, str | None]) -> None:
    """As it does, or cut off where it completed; their tokens so far are its tokens."""
    request: Request = telemetry.request()
    part = request.part()
    part.token()
    part.token()
    end(request)
    attributes = part_spans(telemetry)[0]["attributes"]
    assert (attributes["inference.outcome"], attributes.get("inference.end.reason")) == outcome
    assert part.ended
    assert whole_span(telemetry)["attributes"]["inference.streamed_tokens"] == 2


def test_tokens_after_the_end_are_wasted_once(telemetry: Telemetry) -> None:
    """An engine that goes on with one answer for a client that left."""
    request: Request = telemetry.request()
    part = request.part()
    part.token()
    request.cancel("client_disconnected")
    part.token()
    part.token()
    del part, request
    gc.collect()
    assert telemetry.point("inference.tokens", inference__token__direction="wasted")["value"] == 2
    assert telemetry.point("inference.tokens", inference__token__direction="output")["value"] == 1


def test_an_end_that_the_state_refuses_leaves_the_parts_open(telemetry: Telemetry) -> None:
    """complete() before any output is illegal; the parts go on."""
    request: Request = telemetry.request()
    part = request.part()
    request.complete()
    assert (request.ended, part.ended) == (False, False)
    part.token()
    part.complete()
    request.complete()
    assert whole_span(telemetry)["attributes"]["inference.outcome"] == "completed"


def test_recorded_by_another_process(telemetry: Telemetry) -> None:
    """A part that an engine in another process timed: its tokens are counted, its clock judges itself."""
    now = time.time_ns()
    with telemetry.request() as request:
        part = request.part()
        names = ("admit", "input_ready", "first_token", "token", "complete")
        part.record([{"event": name, "timestamp": now + index * 1000} for index, name in enumerate(names)])
    attributes = whole_span(telemetry)["attributes"]
    assert (attributes["inference.outcome"], attributes["inference.streamed_tokens"]) == ("completed", 2)


def test_a_whole_answer_of_a_part(telemetry: Telemetry) -> None:
    """An answer that is not streamed: its tokens add up, its first-token time stays unknown."""
    with telemetry.request() as request:
        for count in (3, 4):
            with request.part() as part:
                part.output(count)
    attributes = whole_span(telemetry)["attributes"]
    assert (attributes["gen_ai.usage.output_tokens"], "inference.ttft" in attributes) == (7, False)
    assert attributes["inference.outcome"] == "completed"


def test_parts_of_a_batch(telemetry: Telemetry) -> None:
    """``step`` takes parts as it takes requests, of several requests in one batch."""
    requests = [telemetry.request(unit="step") for _ in range(2)]
    parts = [request.part() for request in requests for _ in range(2)]
    for _ in range(3):
        lifecycle.step(parts)
    for handle in (*parts, *requests):
        handle.complete()
    assert telemetry.point("inference.outputs")["value"] == 12
    assert telemetry.point("inference.requests")["value"] == 2


def test_a_part_that_is_dropped(telemetry: Telemetry) -> None:
    """It is incomplete, as a dropped request is; the request itself is not touched."""
    request: Request = telemetry.request()
    part = request.part()
    part.token()
    del part
    gc.collect()
    telemetry.points()
    assert part_spans(telemetry)[0]["attributes"]["inference.end.reason"] == "abandoned"
    request.complete()
    assert whole_span(telemetry)["attributes"]["inference.streamed_tokens"] == 1


def test_shutdown(telemetry: Telemetry) -> None:
    """A part that is open at shutdown ends by it, as its request does."""
    request: Request = telemetry.request()
    part = request.part()
    part.token()
    telemetry.shutdown()
    assert [span["attributes"]["inference.end.reason"] for span in telemetry.spans("chat")] == ["shutdown"] * 2
    assert (request.outcome, part.outcome) == ("cancelled", "cancelled")


def test_what_cannot_be_is_a_violation(telemetry: Telemetry) -> None:
    """A choice that is none gets the next number; a condition that is none is not set; nothing raises."""
    with telemetry.request() as request, request.part(choice=Raising(), modle="x", model=Raising()) as part:
        part.token()
    assert whole_span(telemetry)["attributes"]["inference.violations"] == 3
    assert part_spans(telemetry)[0]["attributes"]["inference.choice"] == 0


def test_a_part_after_the_end(telemetry: Telemetry) -> None:
    """It can be marked, and belongs to no figure."""
    request: Request = telemetry.request()
    request.token()
    request.complete()
    with request.part() as part:
        part.token()
    assert telemetry.point("inference.transition.violations")["value"] == 1
    assert telemetry.point("inference.tokens", inference__token__direction="output")["value"] == 1


def test_conditions_of_a_part(telemetry: Telemetry) -> None:
    """Those of the request, unless it has its own."""
    with telemetry.request(model="rerank-small") as request, request.part(batch_size=8, choice=5) as part:
        part.token()
    attributes = telemetry.spans("chat rerank-small")[0]["attributes"]
    names = ("gen_ai.request.model", "inference.request.batch_size", "inference.choice")
    assert [attributes[name] for name in names] == ["rerank-small", 8, 5]


def test_no_request_has_no_parts() -> None:
    """Without an SDK every call is a no-op."""
    with NO_REQUEST.part() as part:
        part.token()
    assert part is NO_REQUEST


@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF], ids=["sampled", "unsampled"])
def test_live_parts_are_counted_whether_sampled_or_not(make_telemetry: Callable[..., Telemetry], sampler: Any) -> None:
    """The tokens of all parts count, and so do their gaps, each within its part."""
    telemetry = make_telemetry(sampler=sampler)
    request = telemetry.request()
    parts = [request.part(), request.part()]
    for part in parts:
        part.admit()
        part.input_ready()
        part.first_token()
    for part in (*parts, *parts, parts[0]):
        part.token()
    for part in parts:
        part.complete()
    request.complete()
    gaps = telemetry.point("inference.inter_token_latency")["count"]
    tokens = telemetry.point("inference.tokens", inference__token__direction="output")["value"]
    assert (tokens, gaps) == (7, 5)
