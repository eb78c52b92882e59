"""The pages of docs/instrument: their code runs as it stands, and their tables are those of the code."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

import otel_lifecycle as lifecycle
from tests.integration.support_http import serving, wait_for
from tests.servers.ends_page import PAGE, page
from tests.servers.support import request_spans
from tests.support.telemetry import Telemetry

FOLDER = PAGE.parent
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)\)")
HEAVY = ("ray-serve.md", "bentoml.md")


def sync_engine(prompt: Any) -> Iterator[str]:
    """The model of the pages, of a server in threads."""
    yield from ("t0 ", "t1 ", "t2 ")


async def async_engine(prompt: Any) -> AsyncIterator[str]:
    """The same on an event loop."""
    for token in sync_engine(prompt):
        await asyncio.sleep(0)
        yield token


def run_page(name: str, engine: Any, slots: Any = None, blocks: int | None = None) -> dict[str, Any]:
    """Run the Python of a page, or its first blocks, in one module; returns its names."""
    module = ModuleType(name.partition(".")[0].replace("-", "_"))
    module.__dict__.update(engine=engine, slots=slots, lifecycle=lifecycle)
    for source in BLOCK.findall((FOLDER / name).read_text(encoding="utf-8"))[:blocks]:
        exec(compile(source, name, "exec"), module.__dict__)
    return module.__dict__


@pytest.fixture
def page_telemetry(fresh_globals: None, telemetry: Telemetry) -> Telemetry:
    """Providers that are the global ones: the pages do not name any."""
    from opentelemetry import metrics, trace

    trace.set_tracer_provider(telemetry.tracer_provider)
    metrics.set_meter_provider(telemetry.meter_provider)
    return telemetry


def the_request(telemetry: Telemetry) -> Any:
    """The attributes of the one request."""
    (span,) = [span for span in telemetry.spans() if "inference.outcome" in span["attributes"]]
    return span["attributes"]


def test_the_table_of_ends_is_that_of_the_code() -> None:
    """Written by ``python -m tests.servers.ends_page``."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_page_is_linked_and_every_link_leads_somewhere() -> None:
    """From the index, and between the pages."""
    linked = set(LINK.findall((FOLDER / "README.md").read_text(encoding="utf-8")))
    assert linked == {path.name for path in FOLDER.glob("*.md")} - {"README.md"}
    for path in FOLDER.glob("*.md"):
        for link in LINK.findall(path.read_text(encoding="utf-8")):
            assert (FOLDER / link).exists(), f"{path.name}: {link}"


def test_lines_stay_readable() -> None:
    """Prose is wrapped; tables may be wider."""
    for path in FOLDER.glob("*.md"):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert len(line) <= 128 or line.startswith("|"), f"{path.name}: {line}"


def test_asgi(page_telemetry: Telemetry) -> None:
    """FastAPI streams, with every stage."""
    app = run_page("asgi.md", async_engine)["app"]

    async def call() -> str:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            response = await client.post("/generate", params={"prompt": "a b"})
            return response.text

    assert asyncio.run(call()) == "t0 t1 t2 "
    found = the_request(page_telemetry)
    assert (found["inference.outcome"], found["inference.streamed_tokens"]) == ("completed", 3)
    assert {"inference.queue_wait", "inference.preprocessing", "inference.prefill"} <= set(found)


def test_wsgi(page_telemetry: Telemetry) -> None:
    """Flask streams, with every stage."""
    app = run_page("wsgi.md", sync_engine)["app"]
    assert app.test_client().post("/generate", data="a b").text == "t0 t1 t2 "
    found = the_request(page_telemetry)
    assert (found["inference.outcome"], found["inference.streamed_tokens"]) == ("completed", 3)
    assert {"inference.queue_wait", "inference.preprocessing", "inference.prefill"} <= set(found)


def test_grpc(page_telemetry: Telemetry) -> None:
    """A call of the page's own server."""
    import grpc.aio

    async def call() -> list[bytes]:
        names = run_page("grpc.md", async_engine, asyncio.Semaphore(1))
        server = names["make_server"]()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            method: Any = channel.unary_stream("/inference.Model/Generate")
            answer = [token async for token in method(b"a b")]
        await server.stop(1)
        return answer

    assert asyncio.run(call()) == [b"t0 ", b"t1 ", b"t2 "]
    found = the_request(page_telemetry)
    assert (found["inference.outcome"], found["inference.streamed_tokens"]) == ("completed", 3)


def test_websocket(page_telemetry: Telemetry) -> None:
    """Two prompts on one socket."""
    import websockets.sync.client

    names = run_page("websocket.md", async_engine)
    with serving(names["app"], ws="websockets-sansio") as server:
        with websockets.sync.client.connect(f"ws://127.0.0.1:{server.port}/chat", proxy=None) as socket:
            for _ in range(2):
                socket.send("a b")
                assert [socket.recv() for _ in range(3)] == ["t0 ", "t1 ", "t2 "]
        wait_for(lambda: len(request_spans(page_telemetry)) == 2)
    outcomes = [span["attributes"].get("inference.outcome") for span in page_telemetry.spans()]
    assert [outcome for outcome in outcomes if outcome] == ["completed", "completed"]
    begins = names["messages"].begins
    assert begins('{"model": "tiny"}') == {"model": "tiny"}


def test_aiohttp(page_telemetry: Telemetry) -> None:
    """A real server and client of aiohttp."""
    from aiohttp.test_utils import TestClient, TestServer

    async def call() -> str:
        app = run_page("aiohttp.md", async_engine, asyncio.Semaphore(1))["app"]
        async with TestClient(TestServer(app)) as client:
            response = await client.post("/generate", data="a b")
            text: str = await response.text()
            return text

    assert asyncio.run(call()) == "t0 t1 t2 "
    assert the_request(page_telemetry)["inference.streamed_tokens"] == 3


def test_tornado(page_telemetry: Telemetry) -> None:
    """A real server and client of Tornado."""
    import tornado.httpclient
    import tornado.httpserver
    import tornado.netutil

    async def call() -> bytes:
        app = run_page("tornado.md", async_engine, asyncio.Semaphore(1))["app"]
        (listening,) = tornado.netutil.bind_sockets(0, "127.0.0.1")
        server = tornado.httpserver.HTTPServer(app)
        server.add_sockets([listening])
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/generate"
        client = tornado.httpclient.AsyncHTTPClient(force_instance=True)
        response = await client.fetch(url, method="POST", body="a b")
        client.close()
        server.stop()
        await server.close_all_connections()
        body: bytes = response.body
        return body

    assert asyncio.run(call()) == b"t0 t1 t2 "
    assert the_request(page_telemetry)["inference.streamed_tokens"] == 3


def test_sanic_defines_its_route() -> None:
    """The server of this page is tried in test_serving."""
    app = run_page("sanic.md", async_engine)["app"]
    assert [route.path for route in app.router.routes] == ["generate"]


def test_loops(page_telemetry: Telemetry) -> None:
    """A loop, and a decorated function: one request for each prompt."""
    names = run_page("loops.md", sync_engine)
    assert names["answer_all"](["a", "b"]) == ["t0 t1 t2 "] * 2
    assert "".join(names["answer"]("c")) == "t0 t1 t2 "
    found = [span["attributes"] for span in page_telemetry.spans() if "inference.outcome" in span["attributes"]]
    assert [(one["inference.outcome"], one["inference.traffic"]) for one in found] == [("completed", "batch")] * 3


def test_workers(page_telemetry: Telemetry) -> None:
    """An engine's thread, and a worker (a thread here; test_processes_engine has processes)."""
    names = run_page("workers.md", sync_engine)
    assert names["serve"]("a b") == "t0 t1 t2 "
    names["jobs"].put(None)

    class Pool:
        """A pool as multiprocessing has it."""

        def apply(self, function: Any, arguments: Any) -> Any:
            """Run elsewhere."""
            with ThreadPoolExecutor(1) as threads:
                return threads.submit(function, *arguments).result()

    assert names["serve_from"](Pool(), "a b") == "t0 t1 t2 "
    found = [span["attributes"] for span in page_telemetry.spans() if "inference.outcome" in span["attributes"]]
    assert [(one["inference.outcome"], one["inference.streamed_tokens"]) for one in found] == [("completed", 3)] * 2
    assert all(one["inference.legal"] for one in found)


def test_other_outputs(page_telemetry: Telemetry) -> None:
    """Speech by the second, an image by its steps."""
    names = run_page("other-outputs.md", sync_engine)
    names.update(voice=lambda text: iter([bytes(24_000), bytes(12_000)]), encode=len, denoise=int, decode=bytes)
    assert sum(map(len, names["speak"]("hello"))) == 36_000
    assert names["draw"]("a house", 5) == bytes(7)
    found = [span["attributes"] for span in page_telemetry.spans() if "inference.outcome" in span["attributes"]]
    told = ("inference.output.unit", "inference.outputs", "inference.outcome", "inference.violations")
    assert [tuple(one[name] for name in told) for one in found] == [
        ("audio_s", 0.75, "completed", 0),
        ("step", 5.0, "completed", 0),
    ]


def test_parts(page_telemetry: Telemetry) -> None:
    """Three passes of a reranker, and two answers."""
    names = run_page("parts.md", sync_engine, threading.Semaphore(1))
    names.update(score=lambda pairs: [1.0] * len(pairs))
    assert len(names["rerank"]("q", ["d"] * 80)) == 80
    assert names["answers"]("a b", 2) == ["t0 t1 t2 "] * 2
    found = [span["attributes"] for span in page_telemetry.spans() if "inference.outcome" in span["attributes"]]
    assert {one["inference.outcome"] for one in found} == {"completed"}
    assert sum(one["inference.violations"] for one in found) == 0
    roles = [one.get("inference.request.role", "whole") for one in found]
    assert "inference.prefill" in found[0]
    assert roles == ["part"] * 3 + ["whole"] + ["part"] * 2 + ["whole"]
    assert found[-1]["inference.streamed_tokens"] == 6


@pytest.mark.parametrize("name", HEAVY)
def test_pages_of_heavy_frameworks_compile(name: str) -> None:
    """They run in the lane that installs them."""
    for source in BLOCK.findall((FOLDER / name).read_text(encoding="utf-8")):
        compile(source, name, "exec")


def test_pages_name_no_page_that_is_not_tried() -> None:
    """Each page with Python has a test in this folder."""
    tested = {"asgi", "wsgi", "grpc", "websocket", "aiohttp", "tornado", "sanic", "celery", "loops", "workers"} | {
        "other-outputs",
        "parts",
    }
    with_code = {path.stem for path in FOLDER.glob("*.md") if BLOCK.search(path.read_text(encoding="utf-8"))}
    assert with_code == tested | {Path(name).stem for name in HEAVY}
