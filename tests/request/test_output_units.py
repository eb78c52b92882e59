"""Outputs that are not tokens: stages, first output, gaps and amounts of their own, and no figure about tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle.types import Request
from tests.support.hostile import Raising
from tests.support.telemetry import Telemetry

BEGAN = time.time_ns() - 60_000_000_000
TOKEN_METRICS = {
    "gen_ai.server.time_to_first_token",
    "gen_ai.server.time_per_output_token",
    "inference.time_to_first_token",
    "inference.time_per_output_token",
    "inference.inter_token_latency",
    "inference.tokens",
    "inference.cancel.lag",
    "inference.stall.time",
}
TOKEN_ATTRIBUTES = (
    "inference.ttft",
    "inference.tpot",
    "inference.token_span",
    "inference.streamed_tokens",
    "inference.streamed_chunks",
    "inference.token_offsets",
    "gen_ai.usage.output_tokens",
)


def at(seconds: float) -> int:
    """A time of the request, epoch nanoseconds."""
    return BEGAN + round(seconds * 1e9)


def spoken(telemetry: Telemetry, marks: list[tuple[float, Any]], end: float = 8, **conditions: Any) -> Request:
    """A request for speech: queue 1 s, preprocessing 1 s, its chunks of audio at the given times, complete."""
    request: Request = telemetry.request(operation="text_to_speech", unit="audio_s", arrived_at_ns=at(0), **conditions)
    request.admit(at_ns=at(1))
    request.input_ready(at_ns=at(2))
    for when, amount in marks:
        request.token(amount, at_ns=at(when))
    request.complete(at_ns=at(end))
    return request


def outputs_of(telemetry: Telemetry) -> dict[str, Any]:
    """What the one request span says of its outputs."""
    span = telemetry.span("text_to_speech")
    prefix = ("inference.output", "inference.time_to_first_output")
    return {name[10:]: value for name, value in span["attributes"].items() if name.startswith(prefix)}


def without_tokens(telemetry: Telemetry) -> None:
    """Nothing about tokens is on any span or in any metric."""
    for span in telemetry.spans():
        wrong = [name for name in span["attributes"] if name in TOKEN_ATTRIBUTES or ".itl." in name or "stall" in name]
        assert wrong == []
    assert {point["metric"] for point in telemetry.points()} & TOKEN_METRICS == set()


def test_attributes(telemetry: Telemetry) -> None:
    """Three chunks of half a second of audio, at seconds 3, 4 and 6."""
    spoken(telemetry, [(3, 0.5), (4, 0.5), (6, 0.25)])
    assert outputs_of(telemetry) == {
        "output.unit": "audio_s",
        "outputs": 1.25,
        "time_to_first_output": 3.0,
        "output.gap.count": 2,
        "output.gap.p50": 1.5,
        "output.gap.p95": pytest.approx(1.95),
        "output.gap.p99": pytest.approx(1.99),
        "output.gap.max": 2.0,
    }
    attributes = telemetry.span("text_to_speech")["attributes"]
    stages = {name: attributes[f"inference.{name}"] for name in ("queue_wait", "preprocessing", "prefill", "e2e")}
    assert stages == {"queue_wait": 1.0, "preprocessing": 1.0, "prefill": 1.0, "e2e": 8.0}
    assert (attributes["inference.decode_time"], attributes["inference.bottleneck"]) == (5.0, "decode")
    assert attributes["inference.legal"] is True
    without_tokens(telemetry)


def test_metrics(telemetry: Telemetry) -> None:
    """The three metrics, each with the unit; and the stages and the duration that every request has."""
    spoken(telemetry, [(3, 0.5), (4, 0.5), (6, 0.25)], model="voice")
    unit = {"inference.output.unit": "audio_s", "gen_ai.request.model": "voice"}
    own = {"gen_ai.operation.name": "text_to_speech", **unit}
    first = telemetry.point("inference.time_to_first_output")
    assert (first["attributes"], first["count"], first["sum"]) == ({**own, "inference.outcome": "completed"}, 1, 3.0)
    gaps = telemetry.point("inference.output.gap")
    assert (gaps["attributes"], gaps["count"]) == (own, 2)
    assert gaps["sum"] == pytest.approx(3.0)
    amount = telemetry.point("inference.outputs")
    assert (amount["attributes"], amount["value"]) == (own, 1.25)
    assert telemetry.point("inference.request.duration")["sum"] == 8.0
    assert telemetry.point("gen_ai.server.request.duration")["sum"] == 8.0
    assert {point["attributes"]["inference.stage"] for point in telemetry.points("inference.stage.duration")} == {
        "queue",
        "preprocessing",
        "prefill",
        "decode",
    }
    without_tokens(telemetry)


def test_input_tokens_are_still_tokens(telemetry: Telemetry) -> None:
    """A text that becomes speech is read as tokens, and a usage figure is one of tokens by its own word."""
    request: Request = telemetry.request(unit="image", input_tokens=12)
    request.token()
    request.usage(output_tokens=700)
    request.complete()
    counted = {
        point["attributes"]["inference.token.direction"]: point["value"]
        for point in telemetry.points("inference.tokens")
    }
    assert counted == {"input": 12, "output": 700}
    assert telemetry.point("inference.outputs", inference__output__unit="image")["value"] == 1
    assert telemetry.span("chat")["attributes"]["inference.outputs"] == 1.0


def one(request: Request) -> None:
    """Marks by hand."""
    for _ in range(3):
        request.token()


def streamed(request: Request) -> None:
    """A stream of steps."""
    assert list(request.stream(range(3))) == [0, 1, 2]


def in_steps(request: Request) -> None:
    """Steps of a batch, as a diffusion engine makes them."""
    for _ in range(3):
        lifecycle.step([request])


def recorded(request: Request) -> None:
    """Marked in another process."""
    now = time.time_ns()
    request.record([{"event": "token", "timestamp": now - 2000}, {"event": "token", "timestamp": now, "count": 2}])


def whole(request: Request) -> None:
    """All at once."""
    request.output(3)


@pytest.mark.parametrize("mark", [one, streamed, in_steps, recorded, whole])
def test_every_way_in(telemetry: Telemetry, mark: Callable[[Request], None]) -> None:
    """However they are marked, they are outputs of the unit."""
    with telemetry.request(unit="step") as request:
        mark(request)
    attributes = telemetry.span("chat")["attributes"]
    assert (attributes["inference.outputs"], attributes["inference.outcome"]) == (3.0, "completed")
    assert attributes["inference.violations"] == 0
    without_tokens(telemetry)


def test_a_counter_of_seconds(telemetry: Telemetry) -> None:
    """``stream(tokens=)`` gives how much each item is; a part of a second is a float, and 0 is nothing."""

    async def serve() -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for size in (0, 4000, 8000, 0, 2000):
                yield bytes(size)

        with telemetry.request(unit="audio_s") as request:
            async for _ in request.stream(chunks(), tokens=lambda chunk: len(chunk) / 8000):
                pass

    asyncio.run(serve())
    attributes = telemetry.span("chat")["attributes"]
    assert (attributes["inference.outputs"], attributes["inference.output.gap.count"]) == (1.75, 2)
    assert attributes["inference.violations"] == 0


def test_traced(telemetry: Telemetry) -> None:
    """The decorator takes the unit as any condition."""

    @lifecycle.traced(tracer_provider=telemetry.tracer_provider, unit="image", tokens=len)
    def draw(prompts: list[str]) -> Iterator[list[str]]:
        yield prompts

    assert list(draw(["a", "b"])) == [["a", "b"]]
    assert telemetry.span("chat")["attributes"]["inference.outputs"] == 2.0
    without_tokens(telemetry)


def test_an_unknown_amount(telemetry: Telemetry) -> None:
    """The amount is absent, the times stand."""
    spoken(telemetry, [(3, None), (4, 0.5)])
    told = outputs_of(telemetry)
    assert ("outputs" in told, told["time_to_first_output"], told["output.gap.count"]) == (False, 3.0, 1)


@pytest.mark.parametrize("place", range(8))
def test_an_impossible_amount_is_unknown_and_a_violation(telemetry: Telemetry, place: int) -> None:
    """The output is there; how much it is, is not known."""
    amounts: list[Any] = [-1, -0.5, float("nan"), float("inf"), "1", 2**40, True, Raising()]
    spoken(telemetry, [(3, 1), (4, amounts[place])])
    attributes = telemetry.span("text_to_speech")["attributes"]
    assert ("inference.outputs" in attributes, attributes["inference.violations"]) == (False, 1)
    assert attributes["inference.output.gap.count"] == 1


def test_a_cancelled_request_and_outputs_after_it(telemetry: Telemetry) -> None:
    """What comes after the end is a violation, and no wasted token."""
    request: Request = telemetry.request(unit="step")
    request.token()
    request.cancel("client_disconnected")
    request.token(2)
    del request
    assert telemetry.point("inference.outputs")["value"] == 1
    first = telemetry.point("inference.time_to_first_output", inference__outcome="cancelled")
    assert first["count"] == 1
    assert telemetry.point("inference.transition.violations")["value"] == 1
    assert "inference.tokens" not in {point["metric"] for point in telemetry.points()}


def test_gaps_of_a_stream_that_goes_on(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long stream is folded at collection: its gaps go where those of the end go."""
    monkeypatch.setattr("otel_lifecycle._request.folding.FOLD_ABOVE", 10)
    request: Request = telemetry.request(unit="step")
    for _ in range(100):
        request.token()
    assert telemetry.point("inference.output.gap")["count"] in range(50, 100)
    request.complete()
    assert telemetry.point("inference.output.gap")["count"] == 99
    assert telemetry.span("chat")["attributes"]["inference.outputs"] == 100.0
    without_tokens(telemetry)


def test_set_before_the_first_output(telemetry: Telemetry) -> None:
    """A middleware opens the request, and the handler knows what it makes; afterwards it is too late."""
    request: Request = telemetry.request()
    request.set(unit="audio_s")
    request.token(0.5)
    request.set(unit="image")
    request.complete()
    attributes = telemetry.span("chat")["attributes"]
    assert (attributes["inference.output.unit"], attributes["inference.outputs"]) == ("audio_s", 0.5)
    assert attributes["inference.violations"] == 1


@pytest.mark.parametrize("unit", ["a free text with spaces", "a" * 65])
def test_no_free_text_labels_a_metric(telemetry: Telemetry, unit: str) -> None:
    """The outputs are not tokens all the same."""
    with telemetry.request(unit=unit) as request:
        request.token()
    assert telemetry.point("inference.outputs")["attributes"]["inference.output.unit"] == "_OTHER"
    without_tokens(telemetry)


def test_units_are_bounded(telemetry: Telemetry) -> None:
    """A server that makes up units gets ``_OTHER`` beyond the eighth."""
    for number in range(12):
        with telemetry.request(unit=f"unit_{number}") as request:
            request.token()
    units = {
        point["attributes"]["inference.output.unit"]: point["value"] for point in telemetry.points("inference.outputs")
    }
    assert units == {**{f"unit_{number}": 1 for number in range(8)}, "_OTHER": 4}


def test_the_report(telemetry: Telemetry) -> None:
    """The report names the unit, and the four functions find no token in it."""
    report = spoken(telemetry, [(3, 0.5), (4, 0.5)]).report
    assert report is not None
    assert (report["unit"], report["outputs"], report["output_gaps"]) == ("audio_s", 1.0, [1_000_000_000])
    metrics = lifecycle.compute_request_metrics(report)
    assert {name for name, value in metrics.items() if value is not None} == {
        "queue_wait",
        "preprocessing",
        "prefill",
        "decode_time",
        "e2e",
    }
    assert lifecycle.classify_request_outcome(report, metrics)["stage"] == "decode"
    assert lifecycle.summarize_workload([(report, metrics)])["ttft_sample_count"] == 0


def test_a_foreign_span(telemetry: Telemetry) -> None:
    """A span of another library that names a unit is read in the same way."""
    attributes = {"inference.output.unit": "audio_s"}
    span = telemetry.tracer().start_span("speech", attributes=attributes, start_time=at(0))
    for name, when in (("arrive", 0), ("admit", 1), ("input_ready", 2)):
        span.add_event(name, timestamp=at(when))
    span.add_event("first_token", {"count": 0.5}, at(3))
    span.add_event("token", {"count": 0.25}, at(4))
    span.add_event("complete", timestamp=at(5))
    span.end(at(5))
    assert telemetry.point("inference.outputs")["value"] == 0.75
    assert telemetry.point("inference.time_to_first_output")["sum"] == 3.0
    assert telemetry.point("inference.output.gap")["sum"] == 1.0
    assert {point["metric"] for point in telemetry.points()} & TOKEN_METRICS == set()
