"""Public failures in reading streams: C88 to C95, each as frames and the figures that must come of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from otel_lifecycle import request as open_request
from otel_lifecycle.openai import FrameFeed, count_tokens, read_frame
from tests.openai_frames import chat, sse, usage
from tests.support.telemetry import Telemetry

ROLE = chat({"role": "assistant", "content": ""})
USAGE_KEYS = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "inference.streamed_tokens")


def streamed(telemetry: Telemetry, *pieces: Any) -> dict[str, Any]:
    """Stream the pieces through a request and return the attributes of its span."""
    with open_request(model="m", tracer_provider=telemetry.tracer_provider) as request:
        feed = FrameFeed(request)
        for _ in request.stream(pieces, tokens=feed):
            pass
        feed.finish()
    (span,) = [span for span in telemetry.spans() if "inference.outcome" in span["attributes"]]
    attributes: dict[str, Any] = span["attributes"]
    return attributes


def figures(attributes: dict[str, Any]) -> tuple[Any, ...]:
    """Return the input and output tokens and the tokens that were streamed."""
    return tuple(attributes.get(key) for key in USAGE_KEYS)


def reasoning(text: str) -> dict[str, Any]:
    """A frame whose text is in ``reasoning_details`` alone."""
    return chat({"content": "", "reasoning_details": [{"type": "reasoning.text", "text": text}]})


def test_c88_reasoning_details_are_tokens(telemetry: Telemetry) -> None:
    """Two frames of reasoning and four of content are six tokens, and the first of reasoning is the first token."""
    attributes = streamed(telemetry, ROLE, reasoning("x"), reasoning("y"), *[chat({"content": "a"})] * 4)
    assert figures(attributes) == (None, 6, 6)
    assert "inference.ttft" in attributes


def test_c88_an_answer_of_reasoning_alone_has_a_ttft(telemetry: Telemetry) -> None:
    """It has put out tokens, if no content."""
    assert "inference.ttft" in streamed(telemetry, ROLE, reasoning("x"), reasoning(""))


def test_c89_usage_beside_a_choice_that_has_finished_is_final(telemetry: Telemetry) -> None:
    """OpenRouter repeats an empty choice beside the usage, after the choice has finished."""
    last = {"choices": [{"delta": {"content": ""}, "finish_reason": None}]}
    attributes = streamed(
        telemetry,
        *[chat({"content": "a"})] * 35,
        chat({}, finish_reason="stop"),
        {**last, "usage": {"prompt_tokens": 43, "completion_tokens": 36}},
        "data: [DONE]\n\n",
    )
    assert figures(attributes)[:2] == (43, 36)
    points = {point["attributes"]["inference.token.direction"]: point for point in telemetry.points("inference.tokens")}
    assert points["output"]["value"] == 36


@pytest.mark.parametrize(("finished", "output"), [(True, 4), (False, 3)])
def test_c89_running_figures_are_not_final(telemetry: Telemetry, finished: bool, output: int) -> None:
    """Running figures 1, 2, 3 and a finish frame with 4 are 4 tokens; cut off after 3 they are 3."""
    running = [{**chat({"content": "a"}), "usage": {"completion_tokens": n}} for n in (1, 2, 3)]
    end = [{**chat({"content": "a"}, finish_reason="stop"), "usage": {"completion_tokens": 4}}] if finished else []
    assert figures(streamed(telemetry, *running, *end))[1] == output


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ([{"type": "thinking", "thinking": []}], 0),
        ([{"type": "thinking", "thinking": [{"type": "text", "text": ""}]}], 0),
        ([{"type": "thinking", "thinking": [{"type": "text", "text": "x"}]}], 1),
        ([{"type": "text", "text": "x"}], 1),
        (["x"], 1),
        ([], 0),
    ],
)
def test_c90_a_list_of_parts_is_a_token_if_it_has_text(content: list[Any], tokens: int) -> None:
    """Mistral's content is a list of parts; without any text it is not a token."""
    assert count_tokens(chat({"content": content})) == tokens


RESPONSES: list[dict[str, Any]] = [
    {"type": "response.created", "response": {"id": "resp_1", "object": "response", "status": "in_progress"}},
    {"type": "response.output_item.added", "item": {"type": "reasoning"}},
    {"type": "response.reasoning_text.delta", "delta": "h"},
    {"type": "response.output_text.delta", "delta": "a"},
    {"type": "response.output_text.delta", "delta": ""},
    {"type": "response.function_call_arguments.delta", "delta": '{"x"'},
    {"type": "response.output_text.done", "text": "a"},
]


def ended_response(status: str, **more: Any) -> dict[str, Any]:
    """The last event of a stream of responses."""
    figures = {"input_tokens": 7, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 2}}
    response = {"id": "resp_1", "object": "response", "status": status, "model": "m1", "usage": figures, **more}
    return {"type": f"response.{status}", "response": response}


@pytest.mark.parametrize(
    ("end", "outcome", "reasons", "reason"),
    [
        (ended_response("completed"), "completed", ["completed"], None),
        (
            ended_response("incomplete", incomplete_details={"reason": "max_output_tokens"}),
            "completed",
            ["max_output_tokens"],
            None,
        ),
        (ended_response("failed", error={"code": "server_error"}), "failed", ["failed"], "engine_error"),
        (ended_response("failed", error={"code": "rate_limit_exceeded"}), "failed", ["failed"], "rate_limited"),
        ({"type": "error", "code": "server_error", "message": "m"}, "failed", None, "engine_error"),
        (ended_response("cancelled"), "cancelled", ["cancelled"], None),
    ],
)
def test_c92_responses_end_as_they_say(
    telemetry: Telemetry, end: dict[str, Any], outcome: str, reasons: list[str] | None, reason: str | None
) -> None:
    """Deltas of text, reasoning and arguments are tokens, usage is read, and a failed event fails the request."""
    events = [f"event: {event['type']}\n{sse(event)}" for event in (*RESPONSES, end)]
    attributes = streamed(telemetry, *events)
    assert attributes["inference.outcome"] == outcome
    assert attributes.get("inference.end.reason") == reason
    assert attributes["inference.streamed_tokens"] == 3
    if reasons is not None:
        assert attributes["gen_ai.response.finish_reasons"] == reasons
        assert figures(attributes)[:2] == (7, 3)


def anthropic(*end: dict[str, Any]) -> list[dict[str, Any]]:
    """A stream of Anthropic's messages with two pieces of output."""
    counted = {"input_tokens": 5, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 0, "output_tokens": 1}
    return [
        {"type": "message_start", "message": {"id": "msg_1", "model": "c", "usage": counted}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "h"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "ping"},
        *end,
    ]


def test_c92_messages_are_read_like_chat(telemetry: Telemetry) -> None:
    """Input tokens include those of the cache, which this dialect counts apart; a signature is not a token."""
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}
    attributes = streamed(telemetry, *map(sse, anthropic(end, {"type": "message_stop"})))
    assert figures(attributes) == (25, 2, 2)
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == 20
    assert attributes["gen_ai.response.finish_reasons"] == ["end_turn"]
    assert attributes["inference.outcome"] == "completed"


def test_c92_an_error_of_messages_fails_the_request(telemetry: Telemetry) -> None:
    """It comes inside a 200."""
    end = {"type": "error", "error": {"type": "overloaded_error", "message": "m"}}
    attributes = streamed(telemetry, *map(sse, anthropic(end)))
    assert (attributes["inference.outcome"], attributes["inference.end.reason"]) == ("failed", "queue_full")


OLLAMA_END = {
    "done": True,
    "done_reason": "stop",
    "total_duration": 10_000_000_000,
    "load_duration": 1_000_000_000,
    "prompt_eval_duration": 2_000_000_000,
    "eval_duration": 3_000_000_000,
    "prompt_eval_count": 9,
    "eval_count": 2,
}


@pytest.mark.parametrize(
    ("piece", "end"),
    [
        (lambda text: {"message": {"role": "assistant", "content": text}}, {"message": {"content": ""}}),
        (lambda text: {"response": text}, {"response": ""}),
    ],
    ids=["chat", "generate"],
)
def test_c92_ollama_lines_are_read(
    telemetry: Telemetry, piece: Callable[[str], dict[str, Any]], end: dict[str, Any]
) -> None:
    """Its last line has the figures, and the times the engine took."""
    head = {"model": "m", "done": False}
    lines = [f"{json.dumps({**head, **piece(text)})}\n" for text in ("a", "b")]
    last = json.dumps({**head, **end, **OLLAMA_END})
    assert figures(streamed(telemetry, *lines, last)) == (9, 2, 2)
    frame = read_frame(last)
    assert (frame.load_time, frame.prefill_time, frame.decode_time, frame.total_time) == (1.0, 2.0, 3.0, 10.0)


def test_c92_an_error_of_ollama_fails_the_request(telemetry: Telemetry) -> None:
    """It is bare text in a line of its own."""
    line = json.dumps({"model": "m", "response": "a", "done": False})
    assert streamed(telemetry, f"{line}\n", '{"error": "out of slots"}\n')["inference.outcome"] == "failed"


def test_c92_an_unknown_dialect_is_said_once(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """What the reader does not know is absent, never a guess."""
    with caplog.at_level("WARNING", "otel_lifecycle"):
        attributes = streamed(telemetry, *[{"piece": "x"}] * 3)
    assert figures(attributes) == (None, 0, 0)
    assert [record.getMessage() for record in caplog.records] == [
        "frames of an unknown dialect: what they hold is not counted"
    ]


@pytest.mark.parametrize(
    ("code", "outcome", "reason"),
    [
        ("429", "failed", "rate_limited"),
        ("408", "timed_out", "deadline"),
        ("504", "timed_out", "deadline"),
        ("400", "failed", "bad_input"),
        ("422", "failed", "bad_input"),
        ("413", "failed", "input_too_long"),
        ("500", "failed", "engine_error"),
    ],
)
@pytest.mark.parametrize("form", [str, int])
def test_c93_a_code_as_text_is_a_code(
    telemetry: Telemetry, form: Callable[[str], Any], code: str, outcome: str, reason: str
) -> None:
    """``"429"`` means what 429 means."""
    error = {"error": {"message": "m", "type": "None", "code": form(code)}}
    attributes = streamed(telemetry, sse(chat({"content": "a"})), sse(error))
    assert (attributes["inference.outcome"], attributes["inference.end.reason"]) == (outcome, reason)


def test_c111_an_answer_cut_off_by_an_error_has_that_finish_reason(telemetry: Telemetry) -> None:
    """A reason was expected for each choice that had begun, and an error came instead."""
    frames = (
        chat({"content": "a"}, index=0),
        chat({"content": "b"}, index=1),
        chat({}, index=1, finish_reason="stop"),
        {"error": {"code": 500}},
    )
    assert streamed(telemetry, *frames)["gen_ai.response.finish_reasons"] == ["error", "stop"]


SPACED_NS = 20_000_000


def spaced(telemetry: Telemetry, frames: list[dict[str, Any]], start_ns: int = 10**18) -> dict[str, Any]:
    """Feed frames that came 20 ms apart, as an engine's own stamps say, and return the attributes of the span."""
    request = open_request(model="m", tracer_provider=telemetry.tracer_provider, arrived_at_ns=start_ns)
    request.admit(at_ns=start_ns)
    request.input_ready(at_ns=start_ns)

    class Stamped:
        """The request, each of whose tokens comes 20 ms after the one before."""

        def __init__(self) -> None:
            self.at_ns = start_ns

        def token(self, n: int | None = 1, choice: int = 0) -> None:
            """Mark it at its time."""
            self.at_ns += SPACED_NS
            request.token(n, choice, at_ns=self.at_ns)

        def __getattr__(self, name: str) -> Any:
            return getattr(request, name)

    target = Stamped()
    feed = FrameFeed(target)
    for frame in frames:
        feed(frame)
    request.complete(at_ns=target.at_ns)
    (span,) = [span for span in telemetry.spans() if "inference.outcome" in span["attributes"]]
    attributes: dict[str, Any] = span["attributes"]
    return attributes


C91_KEYS = ("inference.tpot", "inference.streamed_tokens", "inference.streamed_chunks", "inference.itl.count")


@pytest.mark.parametrize(
    ("frames", "figure", "expected"),
    [
        (10, 60, (0.18 / 59, None, 10, None)),
        (10, 10, (0.02, 10, None, 9)),
        (209, 212, (0.02, 209, None, 208)),
        (91, 564, (1.8 / 563, None, 91, None)),
        (2, 11, (0.02 / 10, None, 2, None)),
    ],
)
def test_c91_a_usage_figure_proves_that_frames_were_chunks(
    telemetry: Telemetry, frames: int, figure: int, expected: tuple[Any, ...]
) -> None:
    """Then their gaps are not inter-token latency, and the mean goes by the figure; within 3 or 3 % nothing changes."""
    attributes = spaced(
        telemetry, [*[chat({"content": "a"})] * frames, chat({}, finish_reason="stop"), usage(5, figure)]
    )
    assert tuple(attributes.get(key) for key in C91_KEYS) == (pytest.approx(expected[0]), *expected[1:])
    assert attributes["gen_ai.usage.output_tokens"] == figure


@pytest.mark.parametrize("lists", ["token_ids", "marks"])
def test_c91_what_says_its_size_is_not_in_doubt(telemetry: Telemetry, lists: str) -> None:
    """Token ids in each frame, or marks of the server's own, stay as they are whatever the usage says."""
    if lists == "token_ids":
        frame = chat({"content": "a"}, token_ids=[1])
        attributes = spaced(telemetry, [*[frame] * 10, chat({}, finish_reason="stop"), usage(5, 60)])
    else:
        with open_request(model="m", tracer_provider=telemetry.tracer_provider) as request:
            request.admit()
            request.input_ready()
            for _ in range(10):
                request.token()
            request.usage(output_tokens=60)
        (span,) = [span for span in telemetry.spans() if "inference.outcome" in span["attributes"]]
        attributes = span["attributes"]
    assert (attributes["inference.streamed_tokens"], attributes["inference.itl.count"]) == (10, 9)
    assert "inference.streamed_chunks" not in attributes
