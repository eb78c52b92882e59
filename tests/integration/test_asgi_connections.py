"""One connection, many requests: none of them finds another one's request current, whatever the server does with it.

uvicorn resumes reading and starts the next request of a connection within ``receive`` and ``send``; what it starts
there goes on in the context of whoever called.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx
import pytest
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

import otel_lifecycle as lifecycle
from tests.integration.support_apps import bare, tokens
from tests.integration.support_http import PARENT_ID, PATH, TRACE_ID, Server, outcome, serving, token_count, wait_for
from tests.support.plain import Span
from tests.support.telemetry import Telemetry

LOOPS = ("asyncio", "uvloop")
LONG = b'{"prompt": "' + 200_000 * b"x" + b'"}'
"""A body for which uvicorn pauses reading, and resumes it when the app takes it."""


async def streaming(request: Request) -> Response:
    """Read the body, stream three tokens, and go on with something else when the answer is out."""
    await request.body()
    body = lifecycle.current().stream(tokens())
    return StreamingResponse(body, background=BackgroundTask(asyncio.sleep, 0.1))


async def at_once(request: Request) -> Response:
    """Read the body within a span of the app's own, and answer."""
    del request
    return JSONResponse({})


def in_span_of_its_own(telemetry: Telemetry) -> Any:
    """A handler that reads its body, and is torn down, inside a span of its own."""
    tracer = telemetry.tracer_provider.get_tracer("app")

    async def handler(request: Request) -> Response:
        with tracer.start_as_current_span("read"):
            await request.body()
        return StreamingResponse(tokens(), background=BackgroundTask(asyncio.sleep, 0.1))

    return handler


def ended(telemetry: Telemetry, number: int) -> list[Span]:
    """Return the request spans once there are so many."""
    wait_for(lambda: len(telemetry.spans("chat")) >= number)
    return telemetry.spans("chat")


@pytest.mark.parametrize("loop", LOOPS)
def test_long_bodies_on_one_connection(telemetry: Telemetry, loop: str) -> None:
    """Each is a request of its own, and a child of its own caller."""
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    with serving(bare(telemetry, streaming), loop=loop) as server:
        parents = post_on_one_connection(server, 5)
        spans = ended(telemetry, 5)
    assert [(outcome(span)["inference.outcome"], token_count(span)) for span in spans] == [("completed", 3)] * 5
    assert sorted(str(span["parent_id"]) for span in spans) == sorted(parents)
    assert {span["attributes"]["inference.violations"] for span in spans} == {0}


def test_long_bodies_read_within_a_span_of_the_app(telemetry: Telemetry) -> None:
    """That span stays current while the server is called, as without us; the request does not."""
    with serving(bare(telemetry, in_span_of_its_own(telemetry)), loop="asyncio") as server:
        parents = post_on_one_connection(server, 3)
        spans = ended(telemetry, 3)
    assert sorted(str(span["parent_id"]) for span in spans) == sorted(parents)


def test_long_bodies_of_callers_that_do_not_trace(telemetry: Telemetry) -> None:
    """Each is the root of its own trace, not a child of the one before."""
    with serving(bare(telemetry, streaming), loop="asyncio") as server:
        post_on_one_connection(server, 3, traced=False)
        spans = ended(telemetry, 3)
    assert len({span["trace_id"] for span in spans}) == 3
    assert {span["parent_id"] for span in spans} == {None}


def post_on_one_connection(server: Server, number: int, *, traced: bool = True) -> list[str]:
    """Post so many long bodies one after another; return the parent that each said it has."""
    parents = [f"{int(PARENT_ID, 16) + index:016x}" for index in range(number)]
    with httpx.Client(base_url=server.base, timeout=20, trust_env=False) as client:
        for parent in parents:
            headers = {"traceparent": f"00-{TRACE_ID}-{parent}-01"} if traced else {}
            client.post(PATH, content=LONG, headers=headers).raise_for_status()
    return parents


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("handler", [at_once, streaming])
def test_pipelined_requests(telemetry: Telemetry, loop: str, handler: Any) -> None:
    """Sent at once on one connection: one outcome each, none within another."""
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    one = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{{}}".encode()
    with (
        serving(bare(telemetry, handler), loop=loop) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection,
    ):
        connection.sendall(3 * one)
        read = b""
        while read.count(b"HTTP/1.1 200") < 3:
            read += connection.recv(65536)
        spans = ended(telemetry, 3)
    assert [outcome(span)["inference.outcome"] for span in spans] == ["completed"] * 3
    assert {span["parent_id"] for span in spans} == {None}


def test_app_that_calls_another_within_its_process(telemetry: Telemetry) -> None:
    """A gateway and its backend are two exchanges, so two requests: the inner one is the child of the outer one."""
    backend = bare(telemetry, streaming)

    async def gateway(request: Request) -> Response:
        await request.body()
        transport = httpx.ASGITransport(app=backend)
        async with httpx.AsyncClient(transport=transport, base_url="http://backend") as client:
            answer = await client.post(PATH, content=b"{}")
        return Response(answer.content)

    with serving(bare(telemetry, gateway)) as server:
        assert httpx.post(server.base + PATH, content=b"{}", trust_env=False).text == "t0 t1 t2 "
        inner, outer = sorted(ended(telemetry, 2), key=lambda span: span["parent_id"] is None)
    assert (inner["parent_id"], token_count(inner)) == (outer["span_id"], 3)
    assert (outer["parent_id"], outcome(outer)["inference.outcome"]) == (None, "completed")
