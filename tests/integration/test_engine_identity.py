"""Which engine the drop-ins say a request runs on: two engines are two, adapters of one are one, workers share one."""

from __future__ import annotations

import gc
import inspect
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from otel_lifecycle import driver
from otel_lifecycle._core.engines import EngineLogs
from otel_lifecycle._runtime import runtime
from otel_lifecycle.integrations import _sglang_adapter, _vllm_adapter, litserve
from otel_lifecycle.integrations._engine_names import EngineNames
from otel_lifecycle.integrations.llama_cpp import _Generation, _Method
from otel_lifecycle.integrations.xllamacpp import _Handler
from tests.support.telemetry import Telemetry


class Engine:
    """Stands for an engine object; it has what an instrumentor asks of one."""

    model_path = "/models/tiny.gguf"
    listening_address = "http://127.0.0.1:4711"


def test_two_engines_of_one_model_have_two_names() -> None:
    """The first is called as the model, also after the second was made; the name of one that is gone is free again."""
    names, first, second = EngineNames("kind"), Engine(), Engine()
    assert [names.of(first, "tiny"), names.of(second, "tiny"), names.of(first, "adapter")] == [
        "tiny",
        "tiny #2",
        "tiny",
    ]
    assert names.of(Engine(), None) == "kind"
    del first
    gc.collect()
    assert names.of(Engine(), "tiny") == "tiny"


calls = itertools.count()


def found(telemetry: Telemetry, engine: str | None) -> dict[str, Any]:
    """Play a request that waits 40 ms beside another one, both of one engine; return what its span says."""
    # At another time each: requests of an earlier call are not neighbours.
    start = 1_700_000_000_000_000_000 + next(calls) * 1_000_000_000
    neighbour = telemetry.request(model="m", engine=engine, arrived_at_ns=start)
    neighbour.admit(at_ns=start)
    victim = telemetry.request(model="m", engine=engine, request_id="victim", arrived_at_ns=start)
    victim.admit(at_ns=start + 40_000_000)
    victim.cancel(at_ns=start + 50_000_000)
    neighbour.cancel(at_ns=start + 60_000_000)
    (span,) = [one for one in telemetry.spans() if one["attributes"].get("inference.request.id") == "victim"]
    told = span["attributes"]
    return {name: told[name] for name in told if name.startswith(("inference.queue.", "inference.interference"))}


BESIDE = {
    "inference.queue.ahead": 0,
    "inference.queue.running": 1,
    "inference.queue.beside.preprocessing": 0.04,
    "inference.queue.beside.prefill": 0.0,
    "inference.queue.beside.decode": 0.0,
    "inference.queue.idle": 0.0,
}
PART = {"inference.interference.complete": False}


@pytest.mark.parametrize("before", [True, False], ids=["said-first", "said-after-a-request"])
def test_engine_that_other_processes_feed_too(make_telemetry: Any, before: bool) -> None:
    """Of that engine alone nothing is claimed that the other processes could make wrong, in a forked child either."""
    name = f"fed by many, {before}"
    if not before:
        assert found(make_telemetry(), name) == BESIDE
    driver.engine_is_shared(name)
    assert found(make_telemetry(), name) == PART
    runtime().engines = runtime().engines.fresh()
    assert found(make_telemetry(), name) == PART
    assert found(make_telemetry(), "alone") == BESIDE


def test_engines_behind_one_name_blame_nobody(make_telemetry: Any) -> None:
    """Which of them has a request is not known, so none of its neighbours may have held it; nothing is kept of them."""
    driver.engines_are_mixed("replicas")
    assert found(make_telemetry(), "replicas") == PART
    logs = EngineLogs()
    logs.mix("replicas")
    assert logs.log("replicas") is not logs.log("replicas")


def vllm_engine(clients: int, replicas: int) -> str | None:
    """Make a frontend of vLLM known to the hooks; return what its requests compete for."""
    frontend = _vllm_adapter._Frontend(None)
    processor = Engine()
    config = SimpleNamespace(
        model_config=SimpleNamespace(served_model_name="tiny", model="/models/tiny"),
        parallel_config=SimpleNamespace(data_parallel_size=replicas),
    )
    made = SimpleNamespace(output_processor=processor, vllm_config=config)
    frontend.engine_made(None, None, made, vllm_config=config, client_count=clients, client_index=0)
    asked = SimpleNamespace(
        request_id="a", prompt_token_ids=[1], sampling_params=None, lora_request=SimpleNamespace(lora_name="adapter")
    )
    engine = frontend._of(processor)
    told = _vllm_adapter._asked(asked, engine.model, engine.name)
    assert told["model"] == "adapter"
    return str(told["engine"])


def sglang_engine(workers: int, replicas: int) -> str | None:
    """Make a tokenizer manager of SGLang known to the hooks; return what its requests compete for."""
    frontend = _sglang_adapter._SglangFrontend(None)
    manager = Engine()
    vars(manager).update(
        served_model_name="tiny", server_args=SimpleNamespace(tokenizer_worker_num=workers, dp_size=replicas)
    )
    frontend.made(None, None, manager)
    asked = SimpleNamespace(lora_path="adapter", sampling_params={}, stream=True, rid="a")
    told = _sglang_adapter._asked(manager, asked, frontend._names, generates=True)
    assert told["model"] == "adapter"
    return str(told["engine"])


@pytest.fixture(autouse=True)
def engines_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test says of an engine named "tiny" must not hold in the next one."""
    monkeypatch.setattr(runtime(), "engines", EngineLogs())


@pytest.mark.parametrize("engine", [vllm_engine, sglang_engine], ids=["vllm", "sglang"])
@pytest.mark.parametrize(
    ("processes", "replicas", "told"),
    [(1, 1, BESIDE), (4, 1, PART), (1, 2, PART)],
    ids=["alone", "workers", "replicas"],
)
def test_server_with_several_processes(
    telemetry: Telemetry, engine: Any, processes: int, replicas: int, told: dict[str, Any]
) -> None:
    """Several API servers feed one engine; several engines answer one API server.  Adapters share the engine."""
    name = engine(processes, replicas)
    assert name == "tiny"
    assert found(telemetry, name) == told


def test_workers_of_litserve_are_engines(make_telemetry: Any) -> None:
    """One worker is its API's engine; of several, each is one; forked API servers share all, threads share none."""

    def start_server(port: int, num_uvicorn_servers: int, sockets: Any, uvicorn_worker_type: str) -> None: ...

    signature = inspect.signature(start_server)
    for kind, servers in (("thread", 2), ("process", 1)):
        litserve._say_who_competes(signature, {"/one": 1}, (80, servers, [], kind), {})
    assert found(make_telemetry(), "/one") == BESIDE
    litserve._say_who_competes(signature, {"/two": 2}, (80, 1, []), {"uvicorn_worker_type": "process"})
    assert found(make_telemetry(), "/two") == PART
    assert found(make_telemetry(), "/two #1") == BESIDE
    litserve._say_who_competes(signature, {"/one": 1, "/two": 2}, (80, 2, [], "process"), {})
    assert [found(make_telemetry(), name) for name in ("/one", "/two #0")] == [PART, PART]


def test_llama_cpp_names_the_loaded_file(telemetry: Telemetry) -> None:
    """Whatever a client calls the model, and one object is one engine."""
    method = _Method({}, "default", telemetry.tracer_provider, EngineNames("llama.cpp")).around(lambda *_, **__: "text")
    first, second = Engine(), Engine()
    for engine, model in ((first, "gpt-5"), (first, None), (second, None)):
        method(engine, model=model)
    told = [span["attributes"]["inference.engine"] for span in telemetry.spans() if span["name"] != "prefill"]
    assert told == ["tiny", "tiny", "tiny #2"]


def test_llama_cpp_without_its_vocabulary(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """The private attribute may be gone: the engine generates as before, and the end token counts as output."""
    generate = _Generation(lambda _vocab, token: token == 0).around(lambda *_: (number for number in (5, 6, 0)))
    engine = SimpleNamespace(draft_model=None)
    request = telemetry.request(model="m")
    with driver.adopt(request, owned=False).active():
        assert list(generate(engine, [1, 2])) == [5, 6, 0]
    request.complete()
    assert telemetry.span("chat m")["attributes"]["inference.streamed_tokens"] == 3
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "llama-cpp-python does not tell its end tokens"
    ]


def test_xllamacpp_names_the_address_of_its_server(telemetry: Telemetry) -> None:
    """A server does not tell which model it has loaded, and two of them have two addresses."""
    handle = _Handler({"operation": "chat"}, "default", telemetry.tracer_provider).around(lambda *_: {})
    handle(Engine(), {"model": "tiny"})
    assert telemetry.span("chat tiny")["attributes"]["inference.engine"] == "llama.cpp 127.0.0.1:4711"
