"""LitServe as it is run: ``opentelemetry-instrument python app.py``, workers in processes of their own, real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.support_engines import free_port, instrumented, wait_for_http
from tests.integration.support_http import event_names, outcome, token_count
from tests.support.otlp_receiver import HttpReceiver
from tests.support.plain import Span

pytestmark = pytest.mark.slow

PROGRAM = """
import sys, time
import litserve

class Plain(litserve.LitAPI):
    def setup(self, device): pass
    def decode_request(self, request):
        time.sleep(0.03)
        return request["x"]
    def predict(self, x):
        time.sleep(0.06)
        if x == "bad":
            raise ValueError("secret")
        return x
    def encode_response(self, y): return {"y": y}

class Batch(Plain):
    def predict(self, x): return x

class Stream(litserve.LitAPI):
    def setup(self, device): pass
    def decode_request(self, request): return request["x"]
    def predict(self, x):
        for part in "abc":
            time.sleep(0.02)
            yield part
            if x == "bad":
                raise ValueError("secret")
    def encode_response(self, ys):
        for y in ys:
            yield y

class Chat(litserve.LitAPI):
    def setup(self, device): pass
    def predict(self, messages):
        for part in "abcd":
            time.sleep(0.02)
            yield part
            if "bad" in str(messages):
                raise ValueError("secret")

class Async(litserve.LitAPI):
    def setup(self, device): pass
    async def decode_request(self, request): return request["x"]
    async def predict(self, x): return x
    async def encode_response(self, y): return {"y": y}

APIS = {
    "plain": lambda: Plain(),
    "batch": lambda: Batch(max_batch_size=2, batch_timeout=0.05),
    "stream": lambda: Stream(stream=True),
    "chat": lambda: Chat(spec=litserve.OpenAISpec()),
    "async": lambda: Async(enable_async=True),
    "workers": lambda: Plain(),
    "servers": lambda: Plain(),
}

if __name__ == "__main__":
    kind = sys.argv[2]
    server = litserve.LitServer(APIS[kind](), accelerator="cpu", workers_per_device=2 if kind == "workers" else 1)
    server.run(port=int(sys.argv[1]), generate_client_file=False, num_api_servers=2 if kind == "servers" else 1)
"""
COMPLETED = {"inference.outcome": "completed", "inference.legal": True}
STAGES = ["inference.queue_wait", "inference.preprocessing", "inference.prefill", "inference.decode_time"]
CHAT = "/v1/chat/completions"


@contextmanager
def litserve(folder: Path, kind: str, otlp: HttpReceiver) -> Iterator[httpx.Client]:
    """One of the APIs, served while the block runs; other instrumentations are not what is looked at."""
    program = folder / "app.py"
    program.write_text(PROGRAM)
    port = free_port()
    others = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "fastapi,asgi", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    with instrumented(program, port, kind, otlp=otlp.endpoint, **others) as process:
        base = f"http://127.0.0.1:{port}"
        wait_for_http(process, f"{base}/health")
        with httpx.Client(base_url=base, timeout=30, trust_env=False) as client:
            yield client


def request_spans(otlp: HttpReceiver, count: int) -> list[Span]:
    """The request spans in order of arrival, once so many have come."""

    def found() -> list[Span]:
        return [span for span in otlp.spans() if "inference.outcome" in span["attributes"]]

    otlp.wait_for(lambda: len(found()) == count)
    return sorted(found(), key=lambda span: span["start_ns"])


def stages(span: Span) -> list[bool]:
    """Which of the four stages have a duration."""
    return [name in span["attributes"] for name in STAGES]


def test_whole_answers(tmp_path: Path, otlp_http: HttpReceiver) -> None:
    """Queue and preprocessing are the worker's own marks; an error of the worker is a failure in prefill."""
    with litserve(tmp_path, "plain", otlp_http) as client:
        codes = [client.post("/predict", json={"x": x}).status_code for x in ("good", "bad")]
        good, bad = request_spans(otlp_http, 2)
    assert codes == [200, 500]
    assert outcome(good) == COMPLETED
    assert event_names(good) == ["arrive", "admit", "input_ready", "output", "delivered", "complete"]
    assert stages(good) == [True, True, False, False]
    assert good["attributes"]["inference.preprocessing"] >= 0.03
    assert outcome(bad) == {
        "inference.outcome": "failed",
        "error.type": "500",
        "inference.failure.stage": "prefill",
        "inference.legal": True,
    }
    assert "secret" not in repr(otlp_http.spans())


def test_openai_spec(tmp_path: Path, otlp_http: HttpReceiver) -> None:
    """Every stage and every token of a stream; a worker that breaks in it is a failure though the status was 200."""
    with litserve(tmp_path, "chat", otlp_http) as client:
        for words in ("good", "bad"):
            body = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": words}]}
            assert client.post(CHAT, json=body).status_code == 200
        good, bad = request_spans(otlp_http, 2)
    assert (outcome(good), token_count(good), stages(good)) == (COMPLETED, 4, [True] * 4)
    assert good["attributes"]["gen_ai.usage.output_tokens"] == 4
    # predict puts out its four tokens 20 ms apart.
    assert good["attributes"]["inference.prefill"] >= 0.02
    assert good["attributes"]["inference.decode_time"] >= 0.03
    assert outcome(bad) == {
        "inference.outcome": "failed",
        "inference.end.reason": "engine_error",
        "error.type": "engine_error",
        "inference.failure.stage": "decode",
        "inference.legal": True,
    }
    assert token_count(bad) == 1


def test_openai_spec_without_a_count(tmp_path: Path, otlp_http: HttpReceiver) -> None:
    """A whole answer of an API that counts nothing comes with a usage of 0: how many tokens it has is not known."""
    with litserve(tmp_path, "chat", otlp_http) as client:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "good"}]}
        answer = client.post(CHAT, json=body).json()
        (span,) = request_spans(otlp_http, 1)
    assert (answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]) == ("abcd", 0)
    assert (outcome(span), token_count(span)) == (COMPLETED, None)
    assert "gen_ai.usage.output_tokens" not in span["attributes"]


def test_stream_of_an_api_of_ones_own(tmp_path: Path, otlp_http: HttpReceiver) -> None:
    """Output of unknown size: it has a first time and no count; a stream that breaks off quietly is a failure."""
    with litserve(tmp_path, "stream", otlp_http) as client:
        texts = [client.post("/predict", json={"x": x}).text for x in ("good", "bad")]
        good, bad = request_spans(otlp_http, 2)
    assert texts == ["abc", "a"]
    assert (outcome(good), token_count(good), stages(good)) == (COMPLETED, None, [True] * 4)
    assert "inference.tpot" not in good["attributes"]
    assert outcome(bad)["inference.outcome"] == "failed"


@pytest.mark.parametrize(
    ("kind", "known"), [("batch", [True, True, False, False]), ("async", [True, False, False, False])]
)
def test_what_cannot_be_told_is_absent(tmp_path: Path, otlp_http: HttpReceiver, kind: str, known: Any) -> None:
    """A batch is decoded together; of a worker that decodes several at once nobody says which is which."""
    with litserve(tmp_path, kind, otlp_http) as client:
        assert client.post("/predict", json={"x": "good"}).json() == {"y": "good"}
        (span,) = request_spans(otlp_http, 1)
    assert (outcome(span), stages(span)) == (COMPLETED, known)


def test_each_request_is_counted_once(tmp_path: Path, otlp_http: HttpReceiver) -> None:
    """The process that answers is forked from one that set everything up: the counts are those of the requests."""
    with litserve(tmp_path, "plain", otlp_http) as client:
        for _ in range(5):
            client.post("/predict", json={"x": "good"})
        otlp_http.wait_for(lambda: sum(point["value"] or 0 for point in otlp_http.points("inference.requests")) >= 5)
    assert [point["value"] for point in otlp_http.points("inference.requests")] == [5]


def interference(span: Span) -> dict[str, Any]:
    """What is said of who held a request: its engine, what it waited beside, and whether that is all."""
    told = span["attributes"]
    names = ("inference.engine", "inference.interference.complete", "inference.queue.running")
    return {name.removeprefix("inference."): told[name] for name in names if name in told}


def test_each_worker_is_an_engine(tmp_path: Path, otlp_http: HttpReceiver) -> None:
    """Four requests at once for two workers: each is compared with those of the worker that took it."""
    with litserve(tmp_path, "workers", otlp_http) as client, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: client.post("/predict", json={"x": "good"}), range(4)))
        spans = request_spans(otlp_http, 4)
    engines = {interference(span)["engine"] for span in spans}
    assert engines <= {"/predict #0", "/predict #1"}
    assert all("inference.queue.idle" in span["attributes"] for span in spans)


def test_engine_of_several_api_servers(tmp_path: Path, otlp_http: HttpReceiver) -> None:
    """Each of them sees a part of the requests of one worker, and says so."""
    with litserve(tmp_path, "servers", otlp_http) as client:
        for _ in range(3):
            client.post("/predict", json={"x": "good"})
        told = [interference(span) for span in request_spans(otlp_http, 3)]
    assert told == [{"engine": "/predict", "interference.complete": False}] * 3
