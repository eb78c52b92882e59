"""Tokens counted from the bodies that pass the middleware: frames, chunks, whole answers, what cannot be read."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

import otel_lifecycle as lifecycle
from otel_lifecycle._http.body_tokens import MAX_HELD
from otel_lifecycle.asgi import LifecycleMiddleware
from otel_lifecycle.openai import count_tokens
from tests.integration.support_http import PATH, event_names, frame, outcome, post, request_span, serving, token_count
from tests.support.telemetry import Telemetry

DONE = b"data: [DONE]\n\n"
COMPLETED = {"inference.outcome": "completed", "inference.legal": True}
EVENTS = "text/event-stream"


def usage(output: int) -> bytes:
    """The frame some servers send last."""
    body = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": output}}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def serve(telemetry: Telemetry, response: Response | list[bytes], media_type: str = EVENTS, **options: Any) -> Any:
    """Answer one request with a response, or with these chunks; returns the request's span."""

    async def chunks(parts: list[bytes]) -> AsyncIterator[bytes]:
        for part in parts:
            yield part
            await asyncio.sleep(0.002)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Request(scope, receive).body()
        made = StreamingResponse(chunks(response), media_type=media_type) if isinstance(response, list) else response
        await made(scope, receive, send)

    options = {"tokens": "openai", **options}
    with serving(
        LifecycleMiddleware(app, routes=[PATH], tracer_provider=telemetry.tracer_provider, **options)
    ) as server:
        post(server)
    return request_span(telemetry)


FRAMES = [frame(), frame("a"), frame("b"), frame(""), frame("c", finish_reason="stop"), DONE]


@pytest.mark.parametrize(
    ("parts", "count", "gaps"),
    [
        (FRAMES, 3, 2),
        ([FRAMES[0] + FRAMES[1], *FRAMES[2:]], 3, 2),
        ([FRAMES[0], FRAMES[1] + FRAMES[2], *FRAMES[3:]], 3, 0),
        ([part for one in FRAMES for part in (one[:9], one[9:])], 3, 2),
        ([one.replace(b"\n", b"\r\n") for one in FRAMES], 3, 2),
        ([b": ping\n\n", *FRAMES, b": ping\n\n"], 3, 2),
        ([*FRAMES[:-1], usage(3), DONE], 3, 2),
        ([*FRAMES[:-1], usage(0), DONE], 3, 2),
        ([*FRAMES[:2], FRAMES[4].rstrip()], 2, 1),
    ],
    ids=["each", "role-with-first", "two-in-one", "cut", "crlf", "pings", "usage", "usage-of-zero", "no-last-line"],
)
def test_frames_of_an_openai_stream(telemetry: Telemetry, parts: list[bytes], count: int, gaps: int) -> None:
    """However the frames are cut into messages, tokens are counted once, and what came together gives no gap."""
    span = serve(telemetry, parts)
    assert outcome(span) == COMPLETED
    assert token_count(span) == count
    points = telemetry.points("inference.inter_token_latency")
    assert sum(point["count"] or 0 for point in points) == gaps
    assert telemetry.point("inference.time_to_first_token")["count"] == 1
    assert span["attributes"]["gen_ai.response.id"] == "chat-1"
    assert span["attributes"]["gen_ai.response.finish_reasons"] == ["stop"]


def test_c01_role_frame_is_no_token(telemetry: Telemetry) -> None:
    """The first byte is delivered with the role frame; the first token comes with the first text."""
    assert event_names(serve(telemetry, FRAMES)) == ["arrive", "delivered", "first_token", "complete"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"code": 500, "type": "server_error"}, {"inference.end.reason": "engine_error", "error.type": "engine_error"}),
        ({"code": 429, "type": "too_many"}, {"inference.end.reason": "rate_limited", "error.type": "rate_limited"}),
    ],
)
def test_error_frame_inside_a_200(telemetry: Telemetry, error: dict[str, Any], expected: dict[str, Any]) -> None:
    """A stream that began well and tells of an error is a failure; its text is nowhere."""
    broken = b"data: " + json.dumps({"error": {"message": "secret", **error}}).encode() + b"\n\n"
    span = serve(telemetry, [*FRAMES[:3], broken, DONE])
    assert outcome(span) == {
        "inference.outcome": "failed",
        "inference.failure.stage": "decode",
        "inference.legal": True,
        **expected,
    }
    assert token_count(span) == 2
    assert "secret" not in repr(span)


def test_error_inside_a_whole_200(telemetry: Telemetry) -> None:
    """The same in a body that is not streamed."""
    span = serve(telemetry, JSONResponse({"error": {"message": "secret", "code": 500}}))
    assert outcome(span) == {
        "inference.outcome": "failed",
        "inference.end.reason": "engine_error",
        "error.type": "engine_error",
        "inference.legal": True,
    }


CHAT = {"id": "1", "choices": [{"index": 0, "message": {"content": "a b c"}, "finish_reason": "stop"}]}
TEXT = {"id": "1", "object": "text_completion", "choices": [{"index": 0, "text": "a b c", "finish_reason": "stop"}]}
FIGURES = {"usage": {"prompt_tokens": 7, "completion_tokens": 40}}


@pytest.mark.parametrize(
    ("body", "count"), [(CHAT | FIGURES, 40), (TEXT | FIGURES, 40), (CHAT, None), (TEXT, None), ({"text": "a"}, None)]
)
def test_c08_whole_answer_has_no_first_token(telemetry: Telemetry, body: dict[str, Any], count: int | None) -> None:
    """A body of JSON is there at once: its usage gives the count, its duration is not a time to a first token."""
    span = serve(telemetry, JSONResponse(body))
    assert outcome(span) == COMPLETED
    assert event_names(span) == ["arrive", "output", "delivered", "complete"]
    assert token_count(span) == count
    assert telemetry.points("inference.time_to_first_token") == []
    assert telemetry.points("inference.time_per_output_token") == []


def test_whole_answer_in_pieces(telemetry: Telemetry) -> None:
    """A body of JSON that is sent in pieces is read when it is whole."""
    text = json.dumps(CHAT | FIGURES).encode()
    span = serve(telemetry, [text[:10], text[10:50], text[50:]], "application/json")
    assert (token_count(span), outcome(span)) == (40, COMPLETED)


def test_embeddings(telemetry: Telemetry) -> None:
    """Pooling puts out no tokens; what it read is known from the usage."""
    body = {"object": "list", "data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 7, "total_tokens": 7}}
    span = serve(telemetry, JSONResponse(body), operation="chat", shape="pooling")
    assert outcome(span) == COMPLETED
    assert span["attributes"]["gen_ai.usage.input_tokens"] == 7
    assert token_count(span) is None


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-ndjson", EVENTS])
def test_counter_of_ones_own(telemetry: Telemetry, media_type: str) -> None:
    """A callable is asked for each line, event or chunk."""
    end = b"\n\n" if media_type == EVENTS else b"\n"
    parts = [b"one" + end, b"two words" + end, b"three" + end]
    span = serve(telemetry, parts, media_type, tokens=lambda part: len(part.split()))
    assert (token_count(span), outcome(span)) == (4, COMPLETED)


def test_counter_that_raises(telemetry: Telemetry) -> None:
    """A broken counter costs the count and is told of; the answer goes out."""
    span = serve(telemetry, [b"one", b"two"], "text/plain", tokens=lambda part: 1 // 0)
    assert outcome(span) == COMPLETED | {"inference.legal": False}
    assert token_count(span) is None


def test_count_tokens_as_counter(telemetry: Telemetry) -> None:
    """The counter for ``request.stream`` serves here too."""
    assert token_count(serve(telemetry, FRAMES, tokens=count_tokens)) == 3


@pytest.mark.parametrize("encoding", ["gzip", "aes128gcm"])
def test_compressed_body_is_not_read(telemetry: Telemetry, encoding: str) -> None:
    """Nothing is guessed from bytes that mean nothing; the header decides, and not what they look like."""
    plain = b"".join(FRAMES)
    # The client does not know the second encoding and leaves it alone, so its bytes can be those of frames.
    body = gzip.compress(plain) if encoding == "gzip" else plain
    span = serve(telemetry, Response(body, media_type=EVENTS, headers={"content-encoding": encoding}))
    assert outcome(span) == COMPLETED
    assert event_names(span) == ["arrive", "output", "delivered", "complete"]


@pytest.mark.parametrize("media_type", [EVENTS, "application/json"])
def test_what_is_held_of_a_body_is_bounded(telemetry: Telemetry, media_type: str) -> None:
    """A body without an end of a frame in it is given up: the answer goes out, its count is unknown."""
    span = serve(telemetry, [b"data: " + b"x" * (MAX_HELD // 2)] * 4, media_type)
    assert outcome(span) == COMPLETED
    assert token_count(span) is None


def test_tokens_the_handler_marks_are_not_counted_again(telemetry: Telemetry) -> None:
    """Where the handler streams by itself, the frames are left to it."""

    async def stream() -> AsyncIterator[bytes]:
        async def engine() -> AsyncIterator[bytes]:
            for part in FRAMES[1:3]:
                yield part

        async for part in lifecycle.current().stream(engine()):
            yield part

    span = serve(telemetry, StreamingResponse(stream(), media_type=EVENTS))
    assert (token_count(span), outcome(span)) == (2, COMPLETED)
