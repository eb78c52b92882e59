"""Frames of OpenAI-compatible streams, as vLLM, SGLang, llama.cpp and OpenAI send them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from otel_lifecycle.openai import Frame, count_tokens, read_frame
from tests.openai_frames import as_object, chat, completion, sse, usage
from tests.support.plain import plain_id

LOGPROB = {"token": " a", "logprob": -0.1, "bytes": [32, 97], "top_logprobs": []}
CALL_START = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}

TOKENS = {
    "role only (OpenAI, vLLM)": (chat({"role": "assistant", "content": ""}), 0),
    "role only (llama.cpp)": (chat({"role": "assistant", "content": None}), 0),
    "role only (SGLang)": (
        chat({"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None}),
        0,
    ),
    "empty text": (chat({"content": ""}), 0),
    "finish": (chat({}, finish_reason="stop"), 0),
    "usage": (usage(12, 34), 0),
    "prompt filter of a gateway": ({**chat({}), "choices": [], "prompt_filter_results": [{"prompt_index": 0}]}, 0),
    "text": (chat({"content": "Hello"}), 1),
    "white space": (chat({"content": "\n"}), 1),
    "text in parts": (chat({"content": [{"type": "text", "text": "Hello"}]}), 1),
    "reasoning (vLLM)": (chat({"reasoning": "Let me"}), 1),
    "reasoning (SGLang, llama.cpp, DeepSeek)": (chat({"content": None, "reasoning_content": "Let me"}), 1),
    "end of reasoning and start of text": (chat({"reasoning_content": ".", "content": "Hello"}), 1),
    "refusal": (chat({"refusal": "I"}), 1),
    "name of a tool": (chat({"tool_calls": [CALL_START]}), 1),
    "arguments of a tool": (chat({"tool_calls": [{"index": 0, "function": {"arguments": '{"ci'}}]}), 1),
    "arguments of a custom tool": (chat({"tool_calls": [{"index": 0, "custom": {"input": "x"}}]}), 1),
    "empty tool calls": (chat({"tool_calls": []}), 0),
    "empty arguments": (chat({"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}), 0),
    "function call of old": (chat({"function_call": {"name": "weather", "arguments": ""}}), 1),
    "list of logprobs": (chat({"content": " a a a"}, logprobs={"content": [LOGPROB] * 3}), 3),
    "list of refusal logprobs": (chat({"refusal": "I am"}, logprobs={"content": None, "refusal": [LOGPROB] * 2}), 2),
    "text with an empty list": (chat({"content": " a"}, logprobs={"content": []}), 1),
    "text held back, token listed": (chat({"content": ""}, logprobs={"content": [LOGPROB]}), 1),
    "token ids (vLLM)": (chat({"content": " a a"}, token_ids=[11, 12]), 2),
    "token ids and logprobs agree": (
        chat({"content": " a a"}, token_ids=[1, 2], logprobs={"content": [LOGPROB] * 2}),
        2,
    ),
    "completion text": (completion("Hello"), 1),
    "completion without text": (completion("", finish_reason="length"), 0),
    "completion with its tokens": (completion("Hello you", logprobs={"tokens": ["Hello", " you"]}), 2),
    "completion with logprobs of llama.cpp": (completion(" a", logprobs={"content": [LOGPROB]}), 1),
    "speculative completion (vLLM)": (completion("Hello you two", token_ids=[1, 2, 3]), 3),
    "two choices": ({"choices": [{"index": 0, "text": "a"}, {"index": 1, "text": "b"}]}, 2),
    "no frame at all": ({}, 0),
    "null": (None, 0),
}


@pytest.mark.parametrize(("frame", "tokens"), TOKENS.values(), ids=TOKENS)
@pytest.mark.parametrize("form", [lambda frame: frame, as_object, sse, lambda frame: sse(frame).encode()])
def test_a_frame_in_any_form_has_the_tokens_it_shows(form: Any, frame: Any, tokens: int) -> None:
    """Mapping, object and server-sent event say the same."""
    assert count_tokens(form(frame)) == tokens


NO_TOKEN = [
    "data: [DONE]\n\n",
    b"data: [DONE]\n\n",
    "[DONE]",
    "",
    "\n",
    "data:\n\n",
    ": keep-alive\n\n",
    ": ping - 2026-01-01 00:00:00+00:00\r\n\r\n",
    "event: ping\ndata: {}\n\n",
    "retry: 3000\nid: 7\n\n",
    "data: 17\n\n",
    b"",
    object(),
    42,
    [],
    {"choices": None},
    {"choices": "none"},
    {"choices": [None, 3, {"index": -1, "delta": None, "text": None}]},
]


@pytest.mark.parametrize("frame", NO_TOKEN, ids=plain_id)
def test_what_holds_no_output_is_no_token(frame: object) -> None:
    """Keep-alives, the end mark and bodies of another kind count nothing and raise nothing."""
    assert count_tokens(frame) == 0


def test_the_end_mark_is_recognised_in_each_form() -> None:
    """``[DONE]`` is the end with or without its field, alone or after the last frame."""
    last = sse(usage(3, 2)) + "data: [DONE]\n\n"
    assert [read_frame(frame).done for frame in ("data: [DONE]\n\n", b"[DONE]", last, sse(usage(3, 2)))] == [
        True,
        True,
        True,
        False,
    ]


def test_everything_a_frame_says_is_read() -> None:
    """Tokens and finish reasons by choice, ids, and the usage figures."""
    frame = {
        **chat({}),
        "choices": [
            {"index": 2, "delta": {"content": "c"}, "finish_reason": "length"},
            {"index": 0, "delta": {"content": "a"}, "finish_reason": None},
            {"index": 1, "delta": {}, "finish_reason": "stop"},
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}},
    }
    assert read_frame(frame) == Frame(
        tokens=((2, 1), (0, 1)),
        finish_reasons=((2, "length"), (1, "stop")),
        response_id="chatcmpl-1",
        model="served-model",
        input_tokens=9,
        output_tokens=7,
        cached_tokens=4,
        choices=3,
    )


TIMINGS = {
    "all": ({"cache_n": 32, "prompt_n": 1, "predicted_n": 19}, (33, 19, 32)),
    "of old: how much was cached is not told": ({"prompt_n": 1, "predicted_n": 19}, (None, 19, None)),
    "no figures": ({"cache_n": -1, "prompt_n": "1", "predicted_n": True}, (None, None, None)),
}


@pytest.mark.parametrize(("timings", "figures"), TIMINGS.values(), ids=TIMINGS)
@pytest.mark.parametrize("form", [lambda frame: frame, as_object, sse])
def test_timings_of_llama_cpp_are_figures_where_there_is_no_usage(form: Any, timings: Any, figures: Any) -> None:
    """It closes every stream with them, asked for usage or not; where it was asked, the usage stands."""
    last = read_frame(form({**chat({}, finish_reason="stop"), "timings": timings}))
    both = read_frame(form({**usage(5, 7, cached=3), "timings": timings}))
    assert (last.input_tokens, last.output_tokens, last.cached_tokens) == figures
    assert (both.input_tokens, both.output_tokens, both.cached_tokens) == (5, 7, 3)


def test_several_events_in_one_piece_are_added_up() -> None:
    """A role, two texts and the usage may arrive together; a comment between them is nothing."""
    frames = [chat({"role": "assistant"}), chat({"content": "a"}), chat({"content": "b"}), usage(5, 2, cached=0)]
    piece = ": keep-alive\n\n".join(sse(frame) for frame in frames) + "data: [DONE]\n\n"
    assert read_frame(piece.encode()) == Frame(
        tokens=((0, 2),),
        response_id="chatcmpl-1",
        model="served-model",
        input_tokens=5,
        output_tokens=2,
        cached_tokens=0,
        choices=3,
        done=True,
    )


@pytest.mark.parametrize("character", ["\u2028", "\u0085", "\x1c", "é", "🦙"])
def test_a_line_separator_inside_the_text_ends_no_line(character: str) -> None:
    """Only CR and LF end a line of a server-sent event."""
    assert read_frame(sse(chat({"content": character})).encode()).tokens == ((0, 1),)


def test_a_torn_frame_holds_an_unknown_number_of_tokens() -> None:
    """Half an event proves no count, and none is made up."""
    whole = sse(chat({"content": "a"}))
    assert [count_tokens(whole[: len(whole) // 2]), count_tokens(whole + whole[:30])] == [None, None]


WHOLE = {
    "usage": ({"choices": [{"index": 0, "message": {"content": "Hi."}}], "usage": {"completion_tokens": 2}}, 2),
    "token list": ({"choices": [{"index": 0, "message": {"content": "Hi."}, "token_ids": [1, 2, 3]}]}, 3),
    "neither": ({"choices": [{"index": 0, "message": {"content": "Hi."}}]}, None),
    "nothing said": ({"choices": [{"index": 0, "message": {"content": ""}}]}, 0),
    "usage of a server that does not count": (
        {"choices": [{"index": 0, "message": {"content": "Hi."}}], "usage": {"completion_tokens": 0}},
        None,
    ),
    "nothing said, as the usage has it": (
        {"choices": [{"index": 0, "message": {"content": ""}}], "usage": {"completion_tokens": 0}},
        0,
    ),
    "timings (llama.cpp)": (
        {"choices": [{"index": 0, "message": {"content": "Hi."}}], "timings": {"predicted_n": 2}},
        2,
    ),
}


@pytest.mark.parametrize(("body", "tokens"), WHOLE.values(), ids=WHOLE)
def test_a_body_that_was_not_streamed_has_the_tokens_it_can_prove(body: Any, tokens: int | None) -> None:
    """Usage first, then token lists; text alone is an unknown number."""
    assert (count_tokens(body), count_tokens(json.dumps(body, indent=2)), read_frame(body).whole) == (
        tokens,
        tokens,
        True,
    )


ERRORS = {
    "vLLM": ({"error": {"message": "x", "type": "InternalServerError", "param": None, "code": 500}}, "engine_error"),
    "vLLM, bad": ({"error": {"message": "x", "type": "BadRequestError", "param": None, "code": 400}}, "bad_input"),
    "vLLM of old": ({"object": "error", "message": "x", "type": "BadRequestError", "code": 400}, "bad_input"),
    "SGLang abort": ({"error": {"object": "error", "message": "x", "type": "BAD_REQUEST", "code": 400}}, "bad_input"),
    "SGLang": ({"error": {"message": "x", "type": "INTERNAL_SERVER_ERROR", "code": 500}}, "engine_error"),
    "llama.cpp, too long": (
        {"error": {"code": 400, "message": "x", "type": "exceed_context_size_error"}},
        "input_too_long",
    ),
    "llama.cpp, grammar": ({"error": {"code": 400, "message": "x", "type": "invalid_request_error"}}, "bad_input"),
    "OpenAI, too long": (
        {"error": {"message": "x", "type": "invalid_request_error", "code": "context_length_exceeded"}},
        "input_too_long",
    ),
    "OpenAI, rate": ({"error": {"message": "x", "type": "requests", "code": "rate_limit_exceeded"}}, "rate_limited"),
    "timeout of a gateway": ({"error": {"message": "x", "type": "timeout", "code": 408}}, "deadline"),
    "code alone": ({"error": {"message": "x", "code": 429}}, "rate_limited"),
    "a string": ({"error": "boom"}, "engine_error"),
    "out of memory": ({"error": {"type": "OutOfMemoryError"}}, "out_of_memory"),
    "finish reason": (chat({"content": ""}, finish_reason="error"), "engine_error"),
    "no error": ({**chat({"content": "a"}), "error": None}, None),
}


@pytest.mark.parametrize(("body", "reason"), ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("form", [lambda body: body, as_object, sse])
def test_an_error_frame_is_recognised_by_its_type_and_code(form: Any, body: Any, reason: str | None) -> None:
    """The reason is one of the closed list; the message, which may quote the prompt, is not looked at."""
    assert read_frame(form(body)).error == reason


def test_an_error_in_the_field_of_old_llama_cpp_is_recognised() -> None:
    """It was sent as a field ``error`` of the event, not as data."""
    assert read_frame('error: {"code": 500, "message": "x", "type": "server_error"}\n\n').error == "engine_error"
