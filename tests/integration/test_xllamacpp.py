"""xllamacpp with a real model: every way to call it, and the figures the engine gives of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from tests.integration.support_engines import small_model
from tests.integration.support_http import event_names, outcome, token_count
from tests.support.telemetry import Telemetry

pytestmark = pytest.mark.slow

NAME = "SmolLM2-135M-Instruct.Q4_1"
CHAT = f"chat {NAME}"
ASK = {"messages": [{"role": "user", "content": "Count to ten."}], "temperature": 0}
COMPLETED = {"inference.outcome": "completed", "inference.legal": True}


@pytest.fixture(scope="module")
def server() -> Any:
    """A loaded engine."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(small_model())
    params.n_parallel, params.n_ctx, params.port, params.verbosity = 2, 1024, 0, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    return xllamacpp.Server(params)


@pytest.fixture
def instrumented(telemetry: Telemetry) -> Iterator[Telemetry]:
    """The engine's class, instrumented while the test runs and as before afterwards."""
    import xllamacpp

    from otel_lifecycle.integrations.xllamacpp import METHODS, XllamacppInstrumentor

    before = {name: vars(xllamacpp.Server)[name] for name in METHODS}
    XllamacppInstrumentor().instrument(tracer_provider=telemetry.tracer_provider)
    yield telemetry
    XllamacppInstrumentor().uninstrument()
    assert {name: vars(xllamacpp.Server)[name] for name in METHODS} == before


def test_stream(server: Any, instrumented: Telemetry) -> None:
    """Each token is marked as it comes; the role frame and the closing one are none."""
    frames: list[Any] = []
    server.handle_chat_completions({**ASK, "max_tokens": 12, "stream": True}, frames.append)
    span = instrumented.span(CHAT)
    assert (outcome(span), token_count(span)) == (COMPLETED, 12)
    assert event_names(span) == ["arrive", "first_token", "complete"]
    given = span["attributes"]
    asked = ("gen_ai.request.max_tokens", "gen_ai.request.stream", "inference.backend.name")
    assert [given[name] for name in asked] == [12, True, "llama.cpp"]
    assert given["gen_ai.response.finish_reasons"] == ["length"]
    # The engine's own figures of prompt and generation lie inside what was measured around it.
    timings = frames[-1]["timings"]
    assert timings["predicted_n"] == 12
    assert timings["prompt_ms"] / 1e3 <= given["inference.ttft"]
    assert (timings["prompt_ms"] + timings["predicted_ms"]) / 1e3 <= given["inference.e2e"]
    unknown = {"inference.queue_wait", "inference.preprocessing", "inference.prefill", "inference.bottleneck"}
    assert not unknown & given.keys()


def test_whole_answer(server: Any, instrumented: Telemetry) -> None:
    """A whole answer has its count, and no time of a first token."""
    answer = server.handle_chat_completions({**ASK, "max_tokens": 6})
    span = instrumented.span(CHAT)
    assert (outcome(span), token_count(span)) == (COMPLETED, answer["usage"]["completion_tokens"])
    assert event_names(span) == ["arrive", "output", "complete"]
    assert span["attributes"]["gen_ai.usage.input_tokens"] == answer["usage"]["prompt_tokens"]
    assert instrumented.points("inference.time_to_first_token") == []


def test_whole_text_completion_of_several_choices(server: Any, instrumented: Telemetry) -> None:
    """Of several choices llama.cpp counts one: the number is not known then."""
    server.handle_completions({"prompt": "Once", "max_tokens": 4, "n": 2})
    span = instrumented.span(f"text_completion {NAME}")
    assert (outcome(span), token_count(span), event_names(span)) == (COMPLETED, None, ["arrive", "output", "complete"])


@pytest.mark.parametrize("by_name", [False, True])
def test_callback_that_stops(server: Any, instrumented: Telemetry, by_name: bool) -> None:
    """Stopped by its caller, the request is cancelled in decode."""
    frames: list[Any] = []

    def stop(frame: Any) -> bool:
        frames.append(frame)
        return len(frames) == 3

    body = {"prompt": "Once upon a time", "max_tokens": 200, "stream": True}
    server.handle_completions(body, callback=stop) if by_name else server.handle_completions(body, stop)
    span = instrumented.span(f"text_completion {NAME}")
    assert outcome(span) == {
        "inference.outcome": "cancelled",
        "inference.failure.stage": "decode",
        "inference.legal": True,
    }
    assert token_count(span) == 3


def test_callback_that_raises(server: Any, instrumented: Telemetry) -> None:
    """The engine stops and keeps the exception to itself: the request has failed with it all the same."""
    frames: list[Any] = []

    def broken(frame: Any) -> None:
        frames.append(frame)
        if len(frames) == 4:
            raise BrokenPipeError("secret")

    assert server.handle_chat_completions({**ASK, "max_tokens": 40, "stream": True}, broken) is None
    span = instrumented.span(CHAT)
    assert outcome(span) == {
        "inference.outcome": "failed",
        "error.type": "BrokenPipeError",
        "inference.failure.stage": "decode",
        "inference.legal": True,
    }
    assert (len(frames), token_count(span)) == (4, 3)
    assert "secret" not in repr(instrumented.spans())


def test_frames_are_not_tokens(server: Any, instrumented: Telemetry) -> None:
    """An emoji is several tokens in one frame: the engine's own count is the usage, the frames are what streamed."""
    frames: list[Any] = []
    body = {**ASK, "max_tokens": 40, "stream": True, "grammar": 'root ::= "你好🙂🙂🙂世界"'}
    server.handle_chat_completions(body, frames.append)
    span = instrumented.span(CHAT)
    timings = frames[-1]["timings"]
    given = span["attributes"]
    assert (outcome(span), token_count(span), timings["predicted_n"]) == (COMPLETED, 7, 19)
    assert given["gen_ai.usage.output_tokens"] == 19
    assert given["gen_ai.usage.input_tokens"] == timings["prompt_n"] + timings["cache_n"]
    assert given["gen_ai.usage.cache_read.input_tokens"] == timings["cache_n"]


def test_stream_of_several_choices(server: Any, instrumented: Telemetry) -> None:
    """Each choice closes with a count of its own; the request's is their sum."""
    frames: list[Any] = []
    server.handle_chat_completions({**ASK, "max_tokens": 5, "n": 2, "stream": True}, frames.append)
    counts = [frame["timings"]["predicted_n"] for frame in frames if "timings" in frame]
    assert len(counts) == 2
    assert instrumented.span(CHAT)["attributes"]["gen_ai.usage.output_tokens"] == sum(counts)


def test_refused_input(server: Any, instrumented: Telemetry) -> None:
    """An error the engine hands to the callback is a failure with its reason; one it raises has its type."""
    frames: list[Any] = []
    server.handle_completions({"prompt": "x " * 3000, "stream": True}, frames.append)
    with pytest.raises(ValueError, match="messages"):
        server.handle_chat_completions({"messages": 3})
    long, wrong = instrumented.spans("text_completion") + instrumented.spans("chat")
    assert "error" in frames[0]
    assert outcome(long) == {
        "inference.outcome": "failed",
        "inference.end.reason": "input_too_long",
        "error.type": "input_too_long",
        "inference.legal": True,
    }
    assert outcome(wrong) == {"inference.outcome": "failed", "error.type": "ValueError", "inference.legal": True}


def test_not_supported(server: Any, instrumented: Telemetry) -> None:
    """A call this engine was not started for is a failure too."""
    assert "error" in server.handle_embeddings({"input": "x"})
    assert outcome(instrumented.span("embeddings")) == {
        "inference.outcome": "failed",
        "inference.end.reason": "engine_error",
        "error.type": "engine_error",
        "inference.legal": True,
    }


def test_current_request_is_joined(server: Any, instrumented: Telemetry) -> None:
    """Inside a server's request the call is a part of it, whose end it leaves to the server."""

    @lifecycle.traced(operation="outer", model="served", tracer_provider=instrumented.tracer_provider)
    def serve() -> None:
        lifecycle.current().admit()
        server.handle_chat_completions({**ASK, "max_tokens": 5, "stream": True}, lambda frame: None)
        assert lifecycle.current().report is None

    serve()
    span = instrumented.span("outer served")
    assert (outcome(span), token_count(span)) == (COMPLETED, 5)
    assert event_names(span) == ["arrive", "admit", "first_token", "complete"]
    assert instrumented.spans(CHAT) == []
