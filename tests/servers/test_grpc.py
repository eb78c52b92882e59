"""gRPC servers, in threads and on an event loop, with a real client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle.errors import ConfigurationError
from otel_lifecycle.grpc import LifecycleInterceptor
from tests.integration.support_http import TRACEPARENT
from tests.servers.support import (
    COMPLETED,
    DEADLINE,
    FAILED,
    LEFT,
    LoopThread,
    async_engine,
    check,
    ending_of,
    engine,
    refused,
    request_spans,
    the_span,
)
from tests.support.telemetry import Telemetry

SERVICE = "test.Inference"
CALLER = (("traceparent", TRACEPARENT),)
REFUSALS = [
    ("RESOURCE_EXHAUSTED", refused("rate_limited")),
    ("UNAVAILABLE", refused("queue_full")),
    ("INVALID_ARGUMENT", refused("bad_input")),
    ("DEADLINE_EXCEEDED", DEADLINE),
    ("INTERNAL", {"inference.outcome": "failed", "error.type": "INTERNAL"}),
]


def stream_in_thread(request: bytes, context: Any) -> Iterator[bytes]:
    """A handler as a generator that lets the interceptor count."""
    for token in engine(request.decode()):
        yield token.encode()


def marked_in_thread(request: bytes, context: Any) -> Iterator[bytes]:
    """A handler that marks everything itself."""
    current = lifecycle.current()
    with current.stage("queue"):
        pass
    with current.stage("preprocessing"):
        pass
    for token in current.stream(engine(request.decode())):
        yield token.encode()


def unary_in_thread(request: bytes, context: Any) -> bytes:
    """A handler of one answer."""
    word = request.decode()
    if word.isupper():
        context.abort(grpc.StatusCode[word], "no free text in here")
    if word == "sleep":
        time.sleep(0.4)
    return "".join(engine(word)).encode()


def set_code_in_thread(request: bytes, context: Any) -> bytes:
    """A handler that sets a status instead of raising."""
    context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
    return b""


async def stream_on_loop(request: bytes, context: Any) -> AsyncIterator[bytes]:
    """The same as an async generator."""
    async for token in async_engine(request.decode()):
        yield token.encode()


async def marked_on_loop(request: bytes, context: Any) -> AsyncIterator[bytes]:
    """The same, marking everything itself."""
    current = lifecycle.current()
    async with current.stage("queue"):
        pass
    async with current.stage("preprocessing"):
        pass
    async for token in current.stream(async_engine(request.decode())):
        yield token.encode()


async def unary_on_loop(request: bytes, context: Any) -> bytes:
    """The same as a coroutine."""
    word = request.decode()
    if word.isupper():
        await context.abort(grpc.StatusCode[word], "no free text in here")
    if word == "sleep":
        await asyncio.sleep(20)
    return "".join([token async for token in async_engine(word)]).encode()


async def set_code_on_loop(request: bytes, context: Any) -> bytes:
    """The same on a loop."""
    context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
    return b""


async def writing_on_loop(request: bytes, context: Any) -> None:
    """A coroutine that writes its responses by itself."""
    async for token in async_engine(request.decode()):
        await context.write(token.encode())


def handlers(*, on_loop: bool) -> Any:
    """The service, with handlers of one kind."""
    chosen = (
        (stream_on_loop, marked_on_loop, unary_on_loop, set_code_on_loop, writing_on_loop)
        if on_loop
        else (stream_in_thread, marked_in_thread, unary_in_thread, set_code_in_thread, stream_in_thread)
    )
    stream, marked, unary, set_code, writing = chosen
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "Stream": grpc.unary_stream_rpc_method_handler(stream),
            "Marked": grpc.unary_stream_rpc_method_handler(marked),
            "Unary": grpc.unary_unary_rpc_method_handler(unary),
            "SetCode": grpc.unary_unary_rpc_method_handler(set_code),
            "Writing": grpc.unary_stream_rpc_method_handler(writing),
        },
    )


class Client:
    """A channel to the server, with the caller's trace context in every call."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def stream(self, method: str, word: str, **options: Any) -> Any:
        """Start a call that streams."""
        call: Any = self.channel.unary_stream(f"/{SERVICE}/{method}")
        return call(word.encode(), metadata=CALLER, **options)

    def unary(self, method: str, word: str, **options: Any) -> Any:
        """Start a call with one answer."""
        call: Any = self.channel.unary_unary(f"/{SERVICE}/{method}")
        return call.future(word.encode(), metadata=CALLER, **options)


@pytest.fixture(params=["threads", "loop"])
def client(request: pytest.FixtureRequest, telemetry: Telemetry) -> Iterator[Client]:
    """A client of a server of each kind."""
    interceptor = LifecycleInterceptor(
        [f"/{SERVICE}/*"],
        tracer_provider=telemetry.tracer_provider,
        model="tiny",
        server_address="llm.example",
        server_port=8443,
    )
    if request.param == "threads":
        server: Any = grpc.server(ThreadPoolExecutor(4), interceptors=[interceptor])
        server.add_generic_rpc_handlers((handlers(on_loop=False),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        made = Client(port)
        yield made
        made.channel.close()
        server.stop(0).wait(10)
        return
    loop = LoopThread()

    async def start() -> tuple[Any, int]:
        aio = grpc.aio.server(interceptors=[interceptor])
        aio.add_generic_rpc_handlers((handlers(on_loop=True),))
        port = aio.add_insecure_port("127.0.0.1:0")
        await aio.start()
        return aio, port

    aio, port = loop.run(start)
    made = Client(port)
    yield made
    made.channel.close()
    loop.run(lambda: aio.stop(0))
    loop.stop()


def test_a_stream_whose_boundaries_are_marked(client: Client, telemetry: Telemetry) -> None:
    """Stages, tokens, parent, model: everything is there."""
    assert b"".join(client.stream("Marked", "good")) == b"t0 t1 t2 "
    span = check(telemetry, COMPLETED, tokens=3)
    assert span["attributes"]["gen_ai.request.model"] == "tiny"
    stages = {child["name"] for child in telemetry.spans()} - {span["name"]}
    assert stages == {"queue", "preprocessing", "prefill", "decode"}
    assert span["attributes"]["inference.delivered"] >= span["attributes"]["inference.ttft"]


def test_c111_where_a_call_was_received_is_what_the_author_says(client: Client, telemetry: Telemetry) -> None:
    """A call does not show the address and the port it came in by, and a server may listen at several."""
    client.unary("Unary", "good").result()
    attributes = the_span(telemetry)["attributes"]
    assert (attributes["server.address"], attributes["server.port"]) == ("llm.example", 8443)


@pytest.mark.parametrize("method", ["Stream", "Writing"])
def test_a_stream_whose_handler_marks_nothing(client: Client, telemetry: Telemetry, method: str) -> None:
    """The first response is the first output; how many tokens there were is not known."""
    assert b"".join(client.stream(method, "good")) == b"t0 t1 t2 "
    span = check(telemetry, COMPLETED)
    assert "inference.ttft" in span["attributes"]
    assert "inference.streamed_tokens" not in span["attributes"]


def test_one_answer(client: Client, telemetry: Telemetry) -> None:
    """It is there at once."""
    assert client.unary("Unary", "good").result() == b"t0 t1 t2 "
    span = check(telemetry, COMPLETED)
    assert [event["name"] for event in span["events"]] == ["arrive", "output", "complete"]


@pytest.mark.parametrize("method", ["Stream", "Marked", "Writing"])
def test_a_client_that_cancels_a_stream(client: Client, telemetry: Telemetry, method: str) -> None:
    """The handler is stopped: cancelled, because the client left."""
    call = client.stream(method, "endless")
    next(call)
    call.cancel()
    span = check(telemetry, LEFT)
    assert span["attributes"]["inference.client.disconnected"] is True


def test_a_stream_at_the_callers_deadline(client: Client, telemetry: Telemetry) -> None:
    """The client's timeout is the request's deadline."""
    with pytest.raises(grpc.RpcError):
        list(client.stream("Stream", "endless", timeout=0.3))
    span = check(telemetry, DEADLINE)
    assert "inference.client.disconnected" not in span["attributes"]


@pytest.mark.parametrize("method", ["Stream", "Marked", "Writing"])
@pytest.mark.parametrize("kind", ["broken", "cut"])
def test_an_error_of_the_engine(client: Client, telemetry: Telemetry, method: str, kind: str) -> None:
    """Before the first response or after some, it is the exception that ended the request."""
    with pytest.raises(grpc.RpcError):
        list(client.stream(method, kind))
    check(telemetry, FAILED, tokens={"broken": 0, "cut": 2}[kind] if method == "Marked" else None)


@pytest.mark.parametrize(("status", "ending"), REFUSALS)
def test_c117_a_handler_that_aborts(client: Client, telemetry: Telemetry, status: str, ending: dict[str, Any]) -> None:
    """The status is how the request ended; its text is nowhere."""
    with pytest.raises(grpc.RpcError):
        client.unary("Unary", status).result()
    check(telemetry, ending)
    assert "free text" not in repr(telemetry.spans())


def test_a_status_without_an_exception(client: Client, telemetry: Telemetry) -> None:
    """A status that the handler sets counts as much."""
    with pytest.raises(grpc.RpcError):
        client.unary("SetCode", "good").result()
    check(telemetry, REFUSALS[0][1])


def test_a_client_that_cancels_one_answer(client: Client, telemetry: Telemetry) -> None:
    """A coroutine is cancelled; a thread cannot be stopped, so its answer is complete and the departure noted."""
    call = client.unary("Unary", "sleep")
    time.sleep(0.1)
    call.cancel()
    span = the_span(telemetry)
    assert span["attributes"]["inference.client.disconnected"] is True
    assert ending_of(span) in (LEFT, COMPLETED)


def test_other_methods_pass_untouched(telemetry: Telemetry) -> None:
    """No request is made of a method that is not named."""
    interceptor = LifecycleInterceptor([f"/{SERVICE}/Stream"], tracer_provider=telemetry.tracer_provider)
    server = grpc.server(ThreadPoolExecutor(2), interceptors=[interceptor])
    server.add_generic_rpc_handlers((handlers(on_loop=False),))
    made = Client(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    try:
        assert made.unary("Unary", "good").result() == b"t0 t1 t2 "
        with pytest.raises(grpc.RpcError):
            made.unary("Nowhere", "good").result()
    finally:
        made.channel.close()
        server.stop(0).wait(10)
    assert request_spans(telemetry) == []


@pytest.mark.parametrize("methods", ["/a/b", ["a.b/c"], ["/a"], ["/a/b/"], [7], 7])
def test_methods_that_make_no_sense_are_refused(methods: Any) -> None:
    """At set-up, with what would be right."""
    with pytest.raises(ConfigurationError, match="must be"):
        LifecycleInterceptor(methods)
