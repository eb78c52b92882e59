"""The reverse proxy between a real server and real clients, over real HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from otel_lifecycle.errors import ConfigurationError
from otel_lifecycle.integrations.reverse_proxy import MAX_READ, ReverseProxy, proxy_app
from tests.integration.support_http import PARENT_ID, TRACE_ID, TRACEPARENT, Server, serving, wait_for
from tests.openai_frames import chat, sse, usage
from tests.support.telemetry import Telemetry

CHAT = "/v1/chat/completions"


class Engine:
    """An engine that answers as it is told and writes down what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.pieces: list[bytes] = []
        self.status = 200
        self.headers: list[tuple[bytes, bytes]] = [(b"content-type", b"text/event-stream")]
        self.hold = asyncio.Event()
        self.let_go_after: int | None = None
        self.breaks = False
        self.apart = False
        self.left = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.asked.append({**scope, "body": body})
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        for number, piece in enumerate(self.pieces):
            if number == self.let_go_after:
                gone = await receive()
                self.left = gone["type"] == "http.disconnect"
                return
            if self.apart:
                # Long enough for the proxy to read each piece by itself.
                await asyncio.sleep(0.05)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if self.breaks:
            raise ConnectionError("the engine dies")
        await send({"type": "http.response.body", "body": b""})

    def header(self, name: bytes) -> list[bytes]:
        """Return the values of a header of the last request."""
        return [value for key, value in self.asked[-1]["headers"] if key == name]


@pytest.fixture
def engine() -> Engine:
    """An engine."""
    return Engine()


@pytest.fixture
def behind(engine: Engine, telemetry: Telemetry) -> Iterator[Server]:
    """The proxy in front of the engine."""
    with serving(engine) as upstream:
        app = proxy_app(f"{upstream.base}/", provider="p", tracer_provider=telemetry.tracer_provider)
        with serving(app, lifespan="on") as server:
            yield server


def frames(*texts: str) -> list[bytes]:
    """A stream of a chat completion."""
    return [
        *(sse(chat({"content": text})).encode() for text in texts),
        sse(chat({}, finish_reason="stop")).encode(),
        sse(usage(5, len(texts))).encode(),
        b"data: [DONE]\n\n",
    ]


def only_request(telemetry: Telemetry) -> dict[str, Any]:
    """Return the attributes of the one request, once it has ended."""
    wait_for(lambda: any("inference.outcome" in span["attributes"] for span in telemetry.spans()))
    (span,) = [span for span in telemetry.spans() if "inference.outcome" in span["attributes"]]
    attributes: dict[str, Any] = span["attributes"]
    return attributes


def test_bodies_pass_byte_for_byte(engine: Engine, behind: Server) -> None:
    """Method, path with its encoding, query, repeated headers and both bodies arrive as they were sent."""
    answer = bytes(range(256)) * 300
    engine.pieces = [answer[:70_000], answer[70_000:]]
    engine.status = 207
    engine.headers = [(b"x-twice", b"1"), (b"x-twice", b"2"), (b"content-length", str(len(answer)).encode())]
    sent = bytes(reversed(range(256))) * 5
    response = httpx.request(
        "PUT",
        f"{behind.base}/a%2Fb/%C3%A4?q=1&q=%20",
        content=sent,
        headers={"x-a": "b", "accept-encoding": "identity"},
    )
    asked = engine.asked[-1]
    assert (response.status_code, response.content) == (207, answer)
    assert response.headers.get_list("x-twice") == ["1", "2"]
    assert (asked["method"], asked["raw_path"], asked["query_string"]) == ("PUT", b"/a%2Fb/%C3%A4", b"q=1&q=%20")
    assert (asked["body"], engine.header(b"x-a"), engine.header(b"accept-encoding")) == (
        sent,
        [b"b"],
        [b"identity"],
    )


async def _messages(upstream: str, method: str) -> list[dict[str, Any]]:
    """Return what the bare proxy sends for one request without a body."""
    sent: list[dict[str, Any]] = []
    proxy = ReverseProxy(upstream)
    bodies = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Any:
        return next(bodies, None) or await asyncio.Event().wait()

    async def shut_down() -> Any:
        return {"type": "lifespan.shutdown"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await proxy({"type": "http", "method": method, "path": "/v1/models", "headers": []}, receive, send)
    await proxy({"type": "lifespan"}, shut_down, send)
    return [message for message in sent if message["type"] == "http.response.body"]


@pytest.mark.parametrize(
    ("method", "length", "expected"),
    [
        ("GET", True, [(b"a", True), (b"b", False)]),
        ("GET", False, [(b"a", True), (b"b", True), (b"", False)]),
        ("HEAD", True, [(b"", False)]),
    ],
)
def test_the_last_piece_is_the_last_message(
    engine: Engine, method: str, length: bool, expected: list[tuple[bytes, bool]]
) -> None:
    """A client that knows the length is done with the last piece, so the answer may not go on after it."""
    engine.pieces = [] if method == "HEAD" else [b"a", b"b"]
    engine.apart = True
    engine.headers = [(b"content-length", b"2")] if length else []
    with serving(engine) as upstream:
        sent = asyncio.run(_messages(upstream.base, method))
    assert [(message["body"], message["more_body"]) for message in sent] == expected


def test_headers_of_one_connection_stay_there(engine: Engine, behind: Server) -> None:
    """Also those that the Connection header names; the host is the engine's."""
    engine.headers = [(b"keep-alive", b"timeout=5"), (b"x-mine", b"1"), (b"connection", b"x-mine")]
    headers = {"connection": "x-secret-hop", "x-secret-hop": "1", "te": "trailers", "proxy-authorization": "Basic x"}
    response = httpx.get(f"{behind.base}/", headers=headers)
    gone = (b"x-secret-hop", b"te", b"proxy-authorization")
    assert [engine.header(name) for name in gone] == [[], [], []]
    assert engine.header(b"host") != [behind.base.removeprefix("http://").encode()]
    assert engine.header(b"via") == [b"1.1 otel-lifecycle"]
    assert ("x-mine" in response.headers, "keep-alive" in response.headers) == (False, False)


def test_a_stream_is_a_request(engine: Engine, behind: Server, telemetry: Telemetry) -> None:
    """What the frames and the question say is on its span; the stages inside the engine are absent."""
    engine.pieces = frames("a", "b", "c")
    question = {"model": "m1", "max_tokens": 9, "stream": True, "messages": []}
    with httpx.stream("POST", f"{behind.base}{CHAT}", json=question, headers={"traceparent": TRACEPARENT}) as response:
        assert b"".join(response.iter_raw()) == b"".join(engine.pieces)
    attributes = only_request(telemetry)
    wanted = {
        "inference.outcome": "completed",
        "gen_ai.request.model": "m1",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.stream": True,
        "gen_ai.provider.name": "p",
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.finish_reasons": ["stop"],
    }
    assert {key: attributes[key] for key in wanted} == wanted
    assert {"inference.ttft", "inference.e2e"} <= attributes.keys()
    assert {"inference.queue_wait", "inference.prefill", "inference.bottleneck"} & attributes.keys() == set()


def test_the_trace_goes_on_into_the_engine(engine: Engine, behind: Server, telemetry: Telemetry) -> None:
    """The engine's own spans hang under the request's, which hangs under the client's."""
    engine.pieces = frames("a")
    httpx.post(f"{behind.base}{CHAT}", json={"model": "m"}, headers={"traceparent": TRACEPARENT})
    only_request(telemetry)
    (span,) = [span for span in telemetry.spans() if "inference.outcome" in span["attributes"]]
    assert (span["trace_id"], span["parent_id"]) == (TRACE_ID, PARENT_ID)
    assert engine.header(b"traceparent") == [f"00-{TRACE_ID}-{span['span_id']}-01".encode()]


def test_an_error_inside_a_200_is_a_failure(engine: Engine, behind: Server, telemetry: Telemetry) -> None:
    """As the middleware reads it."""
    engine.pieces = [*frames("a")[:1], sse({"error": {"code": "429", "type": "None"}}).encode()]
    httpx.post(f"{behind.base}{CHAT}", json={"model": "m"})
    attributes = only_request(telemetry)
    assert (attributes["inference.outcome"], attributes["inference.end.reason"]) == ("failed", "rate_limited")


def test_a_client_that_leaves_is_passed_on(engine: Engine, behind: Server, telemetry: Telemetry) -> None:
    """The engine's connection is closed, and the request is cancelled."""
    engine.pieces = frames("a", "b")
    engine.let_go_after = 1
    with httpx.stream("POST", f"{behind.base}{CHAT}", json={"model": "m"}) as response:
        next(response.iter_raw())
    attributes = only_request(telemetry)
    wait_for(lambda: engine.left)
    assert (attributes["inference.outcome"], attributes["inference.end.reason"]) == ("cancelled", "client_disconnected")


def test_an_engine_that_breaks_off_breaks_the_answer(engine: Engine, telemetry: Telemetry) -> None:
    """The client sees a broken answer, never a short one that looks whole; the request has failed."""
    engine.pieces = frames("a", "b")[:1]
    engine.breaks = True
    broken = Server(engine)
    broken.start()
    app = proxy_app(broken.base, tracer_provider=telemetry.tracer_provider)
    with serving(app, lifespan="on") as server, pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"{server.base}{CHAT}", json={"model": "m"})
    attributes = only_request(telemetry)
    broken.stop()
    assert (attributes["inference.outcome"], attributes["error.type"]) == ("failed", "engine_error")


def test_an_engine_that_is_not_there_is_a_502(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """Said in one line that shows no address, because an address may hold a password."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    app = proxy_app(f"http://user:secret@127.0.0.1:{port}", tracer_provider=telemetry.tracer_provider)
    with caplog.at_level(logging.DEBUG), serving(app) as server:
        response = httpx.post(f"{server.base}{CHAT}", json={"model": "m"}, headers={"authorization": "Bearer secret"})
    assert (response.status_code, response.json()["error"]["message"]) == (502, "the engine cannot be reached")
    assert only_request(telemetry)["inference.outcome"] == "failed"
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("otel_lifecycle")]
    assert ours == ["the engine cannot be reached: ConnectError"]
    assert "secret" not in json.dumps(telemetry.spans(), default=str)


def test_a_long_question_passes_unread(engine: Engine, behind: Server, telemetry: Telemetry) -> None:
    """Its model is unknown; every byte of it arrives."""
    engine.pieces = frames("a")
    question = json.dumps({"model": "m", "messages": ["x" * (2 * MAX_READ)]}).encode()
    httpx.post(f"{behind.base}{CHAT}", content=question)
    assert engine.asked[-1]["body"] == question
    assert "gen_ai.request.model" not in only_request(telemetry)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ftp://host", "http://", "http://host?key=secret"])
def test_an_address_that_makes_no_sense(address: str) -> None:
    """Refused at set-up, without showing it."""
    with pytest.raises(ConfigurationError) as caught:
        ReverseProxy(address)
    assert "secret" not in str(caught.value)
