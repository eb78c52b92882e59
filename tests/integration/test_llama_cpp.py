"""llama-cpp-python with a real model: the class, and its server over real HTTP."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.support_engines import small_model
from tests.integration.support_http import (
    Server,
    event_names,
    leave_after,
    outcome,
    post,
    request_span,
    serving,
    token_count,
    wait_for,
)
from tests.support.telemetry import Telemetry

pytestmark = [
    pytest.mark.slow,
    # It compiles for minutes where no wheel is kept; the extra `llama-cpp-python` brings it.
    pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="needs the extra `llama-cpp-python`"),
]

NAME = "SmolLM2-135M-Instruct.Q4_1"
ASK = {"messages": [{"role": "user", "content": "Count to a hundred."}], "temperature": 0}
COMPLETED = {"inference.outcome": "completed", "inference.legal": True}
STAGES = ["inference.queue_wait", "inference.preprocessing", "inference.prefill", "inference.decode_time"]


@pytest.fixture
def instrumented(telemetry: Telemetry) -> Iterator[Telemetry]:
    """Class and server, instrumented while the test runs and as before afterwards."""
    import llama_cpp
    from llama_cpp.server import app

    from otel_lifecycle.integrations.llama_cpp import METHODS, LlamaCppInstrumentor

    owners: list[tuple[Any, str]] = [(llama_cpp.Llama, name) for name in ("__init__", "generate", *METHODS)]
    owners += [(app, name) for name in ("create_app", "get_llama_proxy", "get_event_publisher")]
    before = [vars(owner)[name] for owner, name in owners]
    LlamaCppInstrumentor().instrument(tracer_provider=telemetry.tracer_provider)
    yield telemetry
    LlamaCppInstrumentor().uninstrument()
    assert [vars(owner)[name] for owner, name in owners] == before


@pytest.fixture(scope="module")
def llama() -> Any:
    """A loaded model."""
    import llama_cpp

    return llama_cpp.Llama(str(small_model()), n_ctx=512, n_threads=1, verbose=False)


def test_whole_answer_has_a_first_token(llama: Any, instrumented: Telemetry) -> None:
    """The model's own tokens are marked, so TTFT is known of an answer that is not streamed; the queue is not."""
    answer = llama("The sky is", max_tokens=6, temperature=0)
    span = instrumented.span(f"text_completion {NAME}")
    assert outcome(span) == COMPLETED
    assert token_count(span) == answer["usage"]["completion_tokens"]
    assert event_names(span) == ["arrive", "input_ready", "first_token", "complete"]
    assert span["attributes"]["gen_ai.usage.input_tokens"] == answer["usage"]["prompt_tokens"]
    assert [name in span["attributes"] for name in STAGES] == [False, False, True, True]


def test_stream(llama: Any, instrumented: Telemetry) -> None:
    """A chat inside is one request; its tokens are those of the model, not of the chunks."""
    chunks = list(llama.create_chat_completion(ASK["messages"], max_tokens=8, stream=True, temperature=0))
    span = instrumented.span(f"chat {NAME}")
    assert (outcome(span), token_count(span)) == (COMPLETED, 8)
    assert len(chunks) > 8
    assert span["attributes"]["gen_ai.response.finish_reasons"] == ["length"]
    assert [span["name"] for span in instrumented.spans() if "completion" in span["name"]] == []


def test_stream_that_is_dropped(llama: Any, instrumented: Telemetry) -> None:
    """A stream nobody reads on is cancelled."""
    stream = llama.create_completion("Once upon a time", max_tokens=100, stream=True)
    next(stream)
    next(stream)
    stream.close()
    assert outcome(instrumented.span(f"text_completion {NAME}")) == {
        "inference.outcome": "cancelled",
        "inference.failure.stage": "decode",
        "inference.legal": True,
    }


@pytest.mark.parametrize("leave", ["close", "drop"])
def test_stream_that_nobody_begins_to_read(llama: Any, instrumented: Telemetry, leave: str) -> None:
    """The call was made and its stream given up: cancelled, and nothing wrong."""
    stream = llama.create_chat_completion(ASK["messages"], max_tokens=100, stream=True)
    if leave == "close":
        stream.close()
    del stream
    expected = {"inference.outcome": "cancelled", "inference.legal": True}
    assert outcome(instrumented.span(f"chat {NAME}")) == expected


def test_input_too_long(llama: Any, instrumented: Telemetry) -> None:
    """What the engine raises ends the request and goes on."""
    with pytest.raises(ValueError, match="exceed"):
        llama("x " * 2000)
    expected = {"inference.outcome": "failed", "error.type": "ValueError", "inference.legal": True}
    assert outcome(instrumented.span(f"text_completion {NAME}")) == expected


def test_loading_is_a_startup(instrumented: Telemetry) -> None:
    """Loading the model is recorded apart from requests."""
    import llama_cpp

    llama_cpp.Llama(str(small_model()), n_ctx=128, n_threads=1, verbose=False)
    span = instrumented.span("startup load_model")
    assert span["attributes"]["gen_ai.request.model"] == NAME
    assert instrumented.point("inference.startup.duration")["count"] == 1


@contextlib.contextmanager
def served(**settings: Any) -> Iterator[Server]:
    """The server that comes with the package; it leaves streams open that it broke off, which is its own affair."""
    from llama_cpp.server import app
    from llama_cpp.server.settings import ModelSettings, ServerSettings

    model = ModelSettings(model=str(small_model()), model_alias="tiny", n_ctx=512, n_threads=1, verbose=False)
    with serving(app.create_app(server_settings=ServerSettings(**settings), model_settings=[model])) as server:
        yield server
    gc.collect()


@pytest.mark.filterwarnings("ignore")
def test_server(instrumented: Telemetry) -> None:
    """Streamed and whole, every stage is known: the lock is the queue, the model's input and tokens the rest."""
    with served() as server:
        for stream in (True, False):
            answer = post(server, json={**ASK, "model": "tiny", "max_tokens": 6, "stream": stream})
            assert answer.status_code == 200
        assert post(server, json={**ASK, "temperature": "hot"}).status_code == 500
    streamed, whole = instrumented.spans("chat tiny")
    for span in (streamed, whole):
        assert (outcome(span), token_count(span)) == (COMPLETED, 6)
        assert event_names(span) == ["arrive", "admit", "input_ready", "first_token", "delivered", "complete"]
        assert [name in span["attributes"] for name in STAGES] == [True] * 4
    # The server answers so to input it cannot read.
    expected = {"inference.outcome": "failed", "error.type": "500", "inference.legal": True}
    assert outcome(instrumented.span("chat")) == expected


@pytest.mark.filterwarnings("ignore")
def test_server_client_that_leaves(instrumented: Telemetry) -> None:
    """A stream whose client left is broken off by the server: cancelled."""
    body = b'{"messages": [{"role": "user", "content": "Count."}], "max_tokens": 400, "stream": true, "model": "tiny"}'
    path = "/v1/chat/completions"
    with served() as server:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        leave_after(server.port, path, b"data:", 4, body, head)
        span = request_span(instrumented, "chat tiny")
    assert outcome(span) == {
        "inference.outcome": "cancelled",
        "inference.end.reason": "client_disconnected",
        "inference.failure.stage": "decode",
        "inference.client.disconnected": True,
        "inference.legal": True,
    }


@pytest.mark.filterwarnings("ignore")
def test_server_interrupts_for_another_request(instrumented: Telemetry) -> None:
    """By default a stream is broken off when another request comes: its last frame does not make that a completion."""
    path = "/v1/completions"
    ask = {"prompt": "1, 2, 3, 4, 5, 6, 7,", "model": "tiny", "temperature": 0, "stream": True}
    with served(interrupt_requests=True) as server:
        with httpx.Client(base_url=server.base, timeout=60, trust_env=False) as client:
            with client.stream("POST", path, json={**ask, "max_tokens": 450}) as broken:
                parts = broken.iter_bytes()
                next(parts)
                other = threading.Thread(target=post, args=(server, path), kwargs={"json": {**ask, "max_tokens": 3}})
                other.start()
                with contextlib.suppress(httpx.RemoteProtocolError):
                    for _ in parts:
                        pass
            other.join(60)
        wait_for(lambda: len(instrumented.spans("text_completion tiny")) == 2)
    interrupted, answered = sorted(instrumented.spans("text_completion tiny"), key=lambda span: span["start_ns"])
    assert outcome(interrupted) == {
        "inference.outcome": "cancelled",
        "inference.failure.stage": "decode",
        "inference.legal": True,
    }
    assert (outcome(answered), token_count(answered)) == (COMPLETED, 3)
    # It waited for the lock that the other one held.
    assert answered["attributes"]["inference.queue_wait"] > 0
