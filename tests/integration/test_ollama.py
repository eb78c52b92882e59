"""Ollama seen by its Python client and by the proxy: a small server that answers as Ollama 0.17 does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ollama
import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle.integrations import ollama as drop_in
from otel_lifecycle.integrations.reverse_proxy import proxy_app
from tests.integration.support_http import Server, serving, wait_for
from tests.support.telemetry import Telemetry

MS = 1_000_000
FIGURES = {
    "total_duration": 400 * MS,
    "load_duration": 30 * MS,
    "prompt_eval_count": 11,
    "prompt_eval_duration": 40 * MS,
    "eval_count": 3,
    "eval_duration": 60 * MS,
}
WORDS = ("one ", "two ", "three")


class Ollama:
    """Answers chats, generations and embeddings.  It waits as long as its figures say, and 0.1 s in its queue."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.status = 200
        self.breaks_after: int | None = None
        self.left = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        asked = json.loads(body)
        self.asked.append(asked)
        kind = b"application/x-ndjson" if asked.get("stream") else b"application/json"
        await send({"type": "http.response.start", "status": self.status, "headers": [(b"content-type", kind)]})
        if self.status != 200:
            await _send(send, {"error": "model 'tiny' not found"}, more=False)
        elif scope["path"] == "/api/show":
            await _send(send, {"license": "none", "model_info": {}}, more=False)
        elif scope["path"] == "/api/embed":
            answer = {"model": "tiny", "embeddings": [[0.5, 0.25]], "prompt_eval_count": 11, "total_duration": 5 * MS}
            await _send(send, answer, more=False)
        else:
            await self._generate(asked, scope["path"] == "/api/chat", receive, send)

    async def _generate(self, asked: dict[str, Any], chat: bool, receive: Any, send: Any) -> None:
        # Loading, the queue and the prefill.
        await asyncio.sleep(0.03 + 0.1 + 0.04)
        if not asked.get("stream"):
            await asyncio.sleep(0.06)
            await _send(
                send, {**_part("".join(WORDS), chat), **FIGURES, "done": True, "done_reason": "stop"}, more=False
            )
            return
        for number, word in enumerate(WORDS):
            if number == self.breaks_after:
                await _send(send, {"error": "an error was encountered while running the model"}, more=False)
                return
            await _send(send, _part(word, chat))
            await asyncio.sleep(0.03)
            if number == 0 and asked["model"] == "endless":
                await receive()
                self.left = True
                return
        await _send(send, {**_part("", chat), **FIGURES, "done": True, "done_reason": "length"}, more=False)


def _part(text: str, chat: bool) -> dict[str, Any]:
    content = {"message": {"role": "assistant", "content": text}} if chat else {"response": text}
    return {"model": "tiny", "created_at": "2026-11-30T12:00:00Z", "done": False, **content}


async def _send(send: Any, document: dict[str, Any], *, more: bool = True) -> None:
    line = json.dumps(document).encode() + b"\n"
    await send({"type": "http.response.body", "body": line, "more_body": more})


@pytest.fixture
def engine() -> Ollama:
    """An Ollama."""
    return Ollama()


@pytest.fixture
def server(engine: Ollama) -> Iterator[Server]:
    """The address of an Ollama."""
    with serving(engine) as there:
        yield there


@contextmanager
def switched_on(telemetry: Telemetry) -> Iterator[None]:
    """The drop-in for the client, on while the block runs."""
    assert drop_in.instrument(telemetry.tracer_provider)
    try:
        yield
    finally:
        drop_in.uninstrument()


def _messages() -> list[dict[str, str]]:
    return [{"role": "user", "content": "hi"}]


def _sync_chat(base: str, stream: bool, model: str) -> str:
    with ollama.Client(base) as client:
        answer: Any = client.chat(model, _messages(), stream=stream, options={"num_predict": 3})
        return "".join(part.message.content or "" for part in (answer if stream else [answer]))


def _sync_generate(base: str, stream: bool, model: str) -> str:
    with ollama.Client(base) as client:
        answer: Any = client.generate(model, "hi", stream=stream, options={"num_predict": 3})
        return "".join(part.response for part in (answer if stream else [answer]))


def _async_chat(base: str, stream: bool, model: str) -> str:
    async def run() -> str:
        async with ollama.AsyncClient(base) as client:
            answer: Any = await client.chat(model, _messages(), stream=stream, options={"num_predict": 3})
            return "".join([part.message.content async for part in answer]) if stream else answer.message.content

    return asyncio.run(run())


def _async_generate(base: str, stream: bool, model: str) -> str:
    async def run() -> str:
        async with ollama.AsyncClient(base) as client:
            answer: Any = await client.generate(model, "hi", stream=stream, options={"num_predict": 3})
            return "".join([part.response async for part in answer]) if stream else answer.response

    return asyncio.run(run())


CALLS = {"chat": (_sync_chat, _async_chat), "text_completion": (_sync_generate, _async_generate)}
Call = Callable[[str, bool, str], str]
EVERY_CALL = [
    pytest.param(operation, call, stream, id=f"{call.__name__[1:]}-{'stream' if stream else 'whole'}")
    for operation, calls in CALLS.items()
    for call in calls
    for stream in (True, False)
]


def close(attributes: Any, stage: str, least: float) -> bool:
    """Whether a stage is at least as long as the server waited for it, and was not invented."""
    return least <= float(attributes[f"inference.{stage}"]) < least + 60


@pytest.mark.parametrize(("operation", "call", "stream"), EVERY_CALL)
def test_a_call_of_the_client_is_a_request(
    telemetry: Telemetry, server: Server, operation: str, call: Call, stream: bool
) -> None:
    """Its answer is unchanged; stages follow from Ollama's figures, and the queue is what remains."""
    with switched_on(telemetry):
        assert call(server.base, stream, "tiny") == "one two three"
    span = telemetry.span(f"{operation} tiny")
    attributes = span["attributes"]
    told = ("inference.outcome", "inference.violations", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
    assert [attributes[name] for name in told] == ["completed", 0, 11, 3]
    assert (attributes["gen_ai.provider.name"], attributes["gen_ai.request.max_tokens"]) == ("ollama", 3)
    assert (attributes["server.address"], attributes["server.port"]) == (
        "127.0.0.1",
        int(server.base.rsplit(":", 1)[1]),
    )
    assert attributes.get("gen_ai.request.stream", False) is stream
    assert attributes["gen_ai.response.finish_reasons"] == ["length" if stream else "stop"]
    derived = ["preprocessing", "queue", "prefill"] + ([] if stream else ["decode"])
    assert attributes["inference.derived"] == derived
    assert (round(attributes["inference.preprocessing"], 6), round(attributes["inference.prefill"], 6)) == (0.03, 0.04)
    assert close(attributes, "queue_wait", 0.09)
    assert close(attributes, "decode_time", 0.05)
    assert ("inference.tpot" in attributes) is stream


@pytest.mark.parametrize("route", ["/api/chat", "/api/generate"])
@pytest.mark.parametrize("stream", [True, False])
def test_the_proxy_derives_the_same_stages(telemetry: Telemetry, server: Server, route: str, stream: bool) -> None:
    """On Ollama's own routes; its OpenAI routes tell no durations."""
    operation = "chat" if route == "/api/chat" else "text_completion"
    app = proxy_app(server.base, provider="ollama", tracer_provider=telemetry.tracer_provider)
    with serving(app, lifespan="on") as proxy:
        calls = CALLS[operation][0]
        assert calls(proxy.base, stream, "tiny") == "one two three"
        wait_for(lambda: len(telemetry.spans(f"{operation} tiny")) == 1)
    attributes = telemetry.span(f"{operation} tiny")["attributes"]
    assert attributes["inference.derived"] == ["preprocessing", "queue", "prefill"] + ([] if stream else ["decode"])
    assert (round(attributes["inference.preprocessing"], 6), round(attributes["inference.prefill"], 6)) == (0.03, 0.04)
    assert close(attributes, "queue_wait", 0.09)
    assert (attributes["inference.violations"], attributes["inference.bottleneck"]) == (
        0,
        attributes["inference.bottleneck"],
    )


def test_an_embedding_is_a_pooling_request(telemetry: Telemetry, server: Server) -> None:
    """It has input tokens and one pass of the model, and no output."""
    with switched_on(telemetry), ollama.Client(server.base) as client:
        answer = client.embed("tiny", "hi")
    assert answer.embeddings == [[0.5, 0.25]]
    attributes = telemetry.span("embeddings tiny")["attributes"]
    told = ("inference.outcome", "inference.shape", "gen_ai.usage.input_tokens")
    assert [attributes[name] for name in told] == ["completed", "pooling", 11]


def test_a_model_that_is_not_there_is_a_failure(telemetry: Telemetry, engine: Ollama, server: Server) -> None:
    """The client's exception goes on unchanged; the status decides how the request ended."""
    engine.status = 404
    with switched_on(telemetry), pytest.raises(ollama.ResponseError, match="not found"):
        _sync_chat(server.base, False, "tiny")
    attributes = telemetry.span("chat tiny")["attributes"]
    assert (attributes["inference.outcome"], attributes["error.type"]) == ("failed", "bad_input")


@pytest.mark.parametrize("call", [_sync_chat, _async_chat], ids=["sync", "async"])
def test_an_error_inside_a_stream_is_a_failure(
    telemetry: Telemetry, engine: Ollama, server: Server, call: Call
) -> None:
    """The tokens before it stay, and the exception of the client names it."""
    engine.breaks_after = 2
    with switched_on(telemetry), pytest.raises(ollama.ResponseError, match="an error was encountered"):
        call(server.base, True, "tiny")
    attributes = telemetry.span("chat tiny")["attributes"]
    told = ("inference.outcome", "error.type", "inference.streamed_tokens")
    assert [attributes[name] for name in told] == ["failed", "ollama._types.ResponseError", 2]


def test_a_server_that_is_not_there_is_a_failure(telemetry: Telemetry) -> None:
    """A connection that cannot be made is the engine's fault, not a client that left."""
    with switched_on(telemetry), pytest.raises(ConnectionError):
        _sync_chat("http://127.0.0.1:9", False, "tiny")
    attributes = telemetry.span("chat tiny")["attributes"]
    assert (attributes["inference.outcome"], attributes["error.type"]) == ("failed", "ConnectionError")


def test_a_stream_that_is_closed_is_cancelled(telemetry: Telemetry, engine: Ollama, server: Server) -> None:
    """Closing it closes the connection, and Ollama notices."""
    with switched_on(telemetry), ollama.Client(server.base) as client:
        stream: Any = client.chat("endless", _messages(), stream=True)
        assert next(stream).message.content == "one "
        stream.close()
    wait_for(lambda: engine.left)
    assert telemetry.span("chat endless")["attributes"]["inference.outcome"] == "cancelled"


def test_a_stream_that_nobody_reads_is_cancelled(telemetry: Telemetry, server: Server) -> None:
    """A stream dropped before its first part ends its request, too."""
    with switched_on(telemetry), ollama.Client(server.base) as client:
        stream: Any = client.chat("tiny", _messages(), stream=True)
        stream.close()
    assert telemetry.span("chat tiny")["attributes"]["inference.outcome"] == "cancelled"


def test_a_call_inside_a_request_joins_it(telemetry: Telemetry, server: Server) -> None:
    """A server that opened the request keeps its end; the stages are Ollama's."""
    with switched_on(telemetry):
        request = telemetry.request()
        with request.active():
            _sync_chat(server.base, True, "tiny")
        assert not request.ended
        request.complete()
    attributes = telemetry.span("chat tiny")["attributes"]
    assert (attributes["inference.shape"], attributes["inference.streamed_tokens"]) == ("preprocess_first", 3)
    assert attributes["inference.derived"] == ["preprocessing", "queue", "prefill"]


def test_the_functions_of_the_package_are_requests(
    telemetry: Telemetry, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``ollama.chat`` was bound to the default client before anybody could instrument it."""
    default: Any = ollama.chat.__self__  # type: ignore[attr-defined]  # a bound method
    with switched_on(telemetry), ollama.Client(server.base) as client:
        monkeypatch.setattr(default, "_client", client._client)
        ollama.chat("tiny", _messages())
    assert telemetry.span("chat tiny")["attributes"]["inference.outcome"] == "completed"


def test_other_calls_are_none(telemetry: Telemetry, server: Server) -> None:
    """Listing or showing models is no inference."""
    with switched_on(telemetry), ollama.Client(server.base) as client:
        client.show("tiny")
    assert telemetry.spans() == []


def test_uninstrument_puts_everything_back(telemetry: Telemetry, server: Server) -> None:
    """Afterwards the classes are as they were, and a call is no request."""
    before = [vars(kind)["_request"] for kind in (ollama.Client, ollama.AsyncClient)]
    with switched_on(telemetry):
        assert [vars(kind)["_request"] for kind in (ollama.Client, ollama.AsyncClient)] != before
    assert [vars(kind)["_request"] for kind in (ollama.Client, ollama.AsyncClient)] == before
    _sync_chat(server.base, False, "tiny")
    assert telemetry.spans() == []


def test_an_unknown_version_is_left_alone(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line names the version, and nothing is replaced."""
    before = vars(ollama.Client)["_request"]
    monkeypatch.setattr("otel_lifecycle.integrations._drop_in.installed_version", lambda _name: "1.0.0")
    assert not drop_in.instrument(telemetry.tracer_provider)
    assert vars(ollama.Client)["_request"] is before
    assert "ollama 1.0.0 is unknown" in caplog.text


def test_without_an_sdk_a_call_is_as_before(server: Server) -> None:
    """The no-op handle costs nothing and changes nothing."""
    assert drop_in.instrument()
    try:
        assert _sync_chat(server.base, True, "tiny") == "one two three"
        assert not lifecycle.current()
    finally:
        drop_in.uninstrument()
