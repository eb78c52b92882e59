"""Feeding a request what the frames of its stream tell."""

from __future__ import annotations

from typing import Any

import pytest

from otel_lifecycle.openai import FrameFeed
from tests.openai_frames import chat, completion, sse, usage
from tests.support.telemetry import Telemetry


class Recorder:
    """A request that writes down what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def token(self, n: int | None = 1, choice: int = 0) -> None:
        """Write down a token."""
        self.calls.append(("token", n, choice))

    def output(self, tokens: int | None = None) -> None:
        """Write down a whole answer."""
        self.calls.append(("output", tokens))

    def usage(self, **figures: int | None) -> None:
        """Write down the figures that are known."""
        self.calls.append(("usage", {name: figure for name, figure in figures.items() if figure is not None}))

    def response(self, **facts: Any) -> None:
        """Write down the facts that are known."""
        self.calls.append(("response", {name: fact for name, fact in facts.items() if fact is not None}))

    def cancel(self, reason: str | None = None) -> None:
        """Write down a cancellation."""
        self.calls.append(("cancel", reason))

    def timeout(self, reason: str | None = None) -> None:
        """Write down a time-out."""
        self.calls.append(("timeout", reason))

    def fail(self, error: str | None = None) -> None:
        """Write down a failure."""
        self.calls.append(("fail", error))


def fed(*frames: Any) -> list[tuple[Any, ...]]:
    """Feed the frames to a request and return what it was told beyond the name of the answer."""
    request = Recorder()
    feed = FrameFeed(request)
    assert [feed(frame) for frame in frames] == [0] * len(frames)
    return [call for call in request.calls if call != ("response", {"id": "chatcmpl-1", "model": "served-model"})]


def test_a_stream_tells_the_request_all_it_says() -> None:
    """The name of the answer once, each token as it comes, then finish reason and usage."""
    request = Recorder()
    feed = FrameFeed(request)
    for frame in (
        chat({"role": "assistant", "content": ""}),
        chat({"content": "Red"}),
        chat({"content": "."}),
        chat({}, finish_reason="stop"),
        usage(34, 2, cached=24),
        "data: [DONE]\n\n",
    ):
        feed(frame)
    assert request.calls == [
        ("response", {"id": "chatcmpl-1", "model": "served-model"}),
        ("token", 1, 0),
        ("token", 1, 0),
        ("response", {"finish_reasons": ["stop"]}),
        ("usage", {"input_tokens": 34, "output_tokens": 2, "cached_tokens": 24}),
    ]


def test_finish_reasons_stand_in_the_order_of_the_choices() -> None:
    """The convention lists one reason for each generation, whichever ended first."""
    frames = [
        chat({}, index=index, finish_reason=reason) for index, reason in ((2, "stop"), (0, "length"), (1, "stop"))
    ]
    assert fed(*frames)[-1] == ("response", {"finish_reasons": ["length", "stop", "stop"]})


def test_a_running_usage_figure_is_not_taken_for_the_last() -> None:
    """With continuous_usage_stats vLLM counts in every frame; an abort would leave the count of one of them."""
    running = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    assert fed({**chat({"content": "a"}), "usage": running}, {**chat({"content": "b"}), "usage": running}) == [
        ("token", 1, 0),
        ("usage", {"input_tokens": 5}),
        ("token", 1, 0),
        ("usage", {"input_tokens": 5}),
    ]


def test_usage_figures_of_single_choices_are_not_taken_for_the_total() -> None:
    """Every choice of llama.cpp closes with a figure of its own; the tokens of the frames are the count then."""
    choices = [chat({"content": "a"}, index=index) for index in (0, 1, 0, 1)]
    assert fed(*choices, usage(5, 2), usage(5, 2)) == [
        ("token", 1, 0),
        ("token", 1, 1),
        ("token", 1, 0),
        ("token", 1, 1),
        ("usage", {"input_tokens": 5}),
        ("usage", {"input_tokens": 5}),
    ]


def test_a_usage_figure_over_all_choices_is_the_total() -> None:
    """OpenAI, vLLM and SGLang close the stream with one figure for all choices."""
    choices = [chat({"content": "a"}, index=index) for index in (0, 1, 0, 1)]
    assert fed(*choices, usage(5, 4))[-1] == ("usage", {"input_tokens": 5, "output_tokens": 4})


def closing(index: int, output: int) -> dict[str, Any]:
    """The last frame of one choice, as llama.cpp sends it."""
    return {**chat({}, index=index, finish_reason="stop"), "timings": {"predicted_n": output}}


@pytest.mark.parametrize("order", [(0, 1, 0, 1), (0, 0, 1, 1)], ids=["together", "one after the other"])
def test_closing_figures_of_single_choices_add_up(order: tuple[int, ...]) -> None:
    """Each choice of llama.cpp closes with its own, which may be far above its frames; their sum is the total."""
    frames: list[Any] = []
    for place, index in enumerate(order):
        frames.append(chat({"content": "🦙"}, index=index))
        if index not in order[place + 1 :]:
            frames.append(closing(index, 9 + index))
    assert [call for call in fed(*frames) if call[0] == "usage"][-1] == ("usage", {"output_tokens": 19})


def test_usage_of_a_server_that_does_not_count_is_no_count() -> None:
    """LitServe closes with 0 whatever it has put out; of an empty answer 0 is the count."""
    said, nothing = fed(chat({"content": "a"}), usage(0, 0)), fed(chat({"content": ""}), usage(0, 0))
    assert (said, nothing) == ([("token", 1, 0)], [("usage", {"output_tokens": 0})])


def test_usage_on_the_last_frame_of_a_completion_counts() -> None:
    """llama.cpp puts it beside the finish reason."""
    last = {**completion("", finish_reason="length"), "usage": {"prompt_tokens": 2, "completion_tokens": 4}}
    assert fed(last)[1:] == [
        ("response", {"finish_reasons": ["length"]}),
        ("usage", {"input_tokens": 2, "output_tokens": 4}),
    ]


def test_an_error_frame_after_a_good_start_fails_the_request() -> None:
    """The status was 200 by then, and [DONE] follows as if all were well."""
    error = {"error": {"message": "x", "type": "InternalServerError", "code": 500}}
    frames = [chat({"content": "a"}), sse(error), sse(usage(3, 1)), sse(error), "data: [DONE]\n\n"]
    assert fed(*frames) == [("token", 1, 0), ("response", {"finish_reasons": ["error"]}), ("fail", "engine_error")]


def test_an_error_frame_that_says_time_out_times_the_request_out() -> None:
    """A gateway in front of an engine says so in an error frame."""
    assert fed({"error": {"message": "x", "code": 504}}) == [("timeout", "deadline")]


def test_an_aborted_choice_cancels_the_request() -> None:
    """An engine that says ``abort`` has not completed."""
    assert fed(chat({}, finish_reason="abort"))[-1] == ("cancel", None)


def test_a_whole_body_is_an_output() -> None:
    """Not streamed: one output with the usage figure as its count."""
    body = {**chat({}), "choices": [{"index": 0, "message": {"content": "Hi."}, "finish_reason": "stop"}]}
    assert fed({**body, "usage": {"prompt_tokens": 3, "completion_tokens": 2}}) == [
        ("output", 2),
        ("response", {"finish_reasons": ["stop"]}),
        ("usage", {"input_tokens": 3}),
    ]


# ------------------------------------------------------------------------------------------------ a real request


def test_a_stream_of_two_choices_becomes_the_span_of_one_request(telemetry: Telemetry) -> None:
    """Tokens of both choices, the server's own counts, the answer's name, and a reason for each choice."""
    frames = [
        *(chat({"role": "assistant", "content": ""}, index=index) for index in (0, 1)),
        *(chat({"reasoning_content": "hm"}, index=index) for index in (1, 0)),
        *(chat({"content": "a"}, index=index) for index in (0, 1, 0)),
        chat({}, index=1, finish_reason="length"),
        chat({}, index=0, finish_reason="stop"),
        usage(7, 5, cached=4),
        "data: [DONE]\n\n",
    ]
    with telemetry.request(model="served") as request:
        assert list(request.stream(frames, tokens=FrameFeed(request))) == frames
    attributes = telemetry.span("chat served")["attributes"]
    assert {name: attributes[name] for name in attributes if name.startswith(("gen_ai.usage", "gen_ai.response"))} == {
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.model": "served-model",
        "gen_ai.response.finish_reasons": ["stop", "length"],
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 4,
    }
    assert (
        attributes["inference.outcome"],
        attributes["inference.streamed_tokens"],
        attributes["inference.legal"],
    ) == (
        "completed",
        5,
        True,
    )


def test_an_error_frame_ends_the_span_as_failed_though_the_stream_ends_well(telemetry: Telemetry) -> None:
    """What the engine sends after it changes nothing and is not a violation."""
    error = {"error": {"message": "x", "type": "InternalServerError", "code": 500}}
    with telemetry.request(model="served") as request:
        for _ in request.stream([chat({"content": "a"}), error, usage(3, 1), "data: [DONE]\n\n"], FrameFeed(request)):
            pass
    attributes = telemetry.span("chat served")["attributes"]
    assert (attributes["inference.outcome"], attributes["error.type"], attributes["inference.legal"]) == (
        "failed",
        "engine_error",
        True,
    )
    assert telemetry.points("inference.transition.violations") == []
