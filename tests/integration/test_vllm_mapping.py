"""How the drop-in reads vLLM's objects: the mapping table of its adapter, without the engine.

The objects here have the attributes that the adapter reads, in the shape of 0.12 and of 0.32; that vLLM has them too is
shown on the engine itself, by ``make test-engines ENGINE=vllm``.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from otel_lifecycle.integrations import _vllm_adapter
from tests.support.plain import Span
from tests.support.telemetry import Telemetry

QUEUED, SCHEDULED, PREEMPTED = 1, 2, 3


class Processor:
    """Stands for vLLM's ``OutputProcessor``: it knows its open requests by their ids."""

    def __init__(self) -> None:
        self.request_states: dict[str, object] = {}


class Engine:
    """A frontend of vLLM with the hooks around it, driven one step at a time."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self.hooks = _vllm_adapter._Frontend(telemetry.tracer_provider)
        self.processor = Processor()
        config = SimpleNamespace(
            model_config=SimpleNamespace(served_model_name=["tiny", "alias"], model="/models/tiny")
        )
        self.hooks.engine_made(None, None, SimpleNamespace(output_processor=self.processor, vllm_config=config))
        self.clock = time.monotonic()

    def add(self, name: str, parent: Any = None, index: int = 0, **changed: Any) -> None:
        """Add a request, as the frontend does once its prompt is rendered."""
        values = {
            "request_id": name,
            "external_req_id": f"cmpl-{name}",
            "prompt_token_ids": [1, 2, 3],
            "prompt_embeds": None,
            "sampling_params": SimpleNamespace(max_tokens=8, output_kind=SimpleNamespace(value=1)),
            "pooling_params": None,
            "lora_request": None,
            "arrival_time": time.time(),
        }
        self.processor.request_states[name] = object()
        self.hooks.added(None, None, self.processor, SimpleNamespace(**{**values, **changed}), "text", parent, index)
        self.clock = time.monotonic()

    def step(self, *outputs: Any, ended: tuple[str, ...] = ()) -> None:
        """Bring one step's outputs; the frontend forgets the requests that have ended."""
        self.clock += 0.001
        # The frontend never reads an output before the engine core has stamped it.
        while time.monotonic() < self.clock:
            time.sleep(0.0005)
        noted = self.hooks.stepped(self.processor, list(outputs), self.clock)
        for name in ended:
            self.processor.request_states.pop(name)
        self.hooks.settled(noted, None, self.processor, list(outputs))

    def output(self, name: str, tokens: int, *events: tuple[int, float], reason: str | None = None, **more: Any) -> Any:
        """Return one output; each event is its type and its distance from now in seconds."""
        stamped = [SimpleNamespace(type=kind, timestamp=self.clock + offset) for kind, offset in events]
        return SimpleNamespace(
            request_id=name, new_token_ids=[7] * tokens, events=stamped or None, finish_reason=reason, **more
        )

    def requests(self) -> list[Span]:
        """The request spans."""
        return [span for span in self._telemetry.spans() if "inference.outcome" in span["attributes"]]


@pytest.fixture
def engine(telemetry: Telemetry) -> Engine:
    """Return an engine without requests."""
    return Engine(telemetry)


def test_request_has_the_engine_cores_own_times(engine: Engine) -> None:
    """Admission and tokens lie at the stamps that travelled with the outputs."""
    engine.add("a")
    cached = SimpleNamespace(num_cached_tokens=2)
    engine.step(engine.output("a", 1, (QUEUED, 0.0), (SCHEDULED, 0.0005), prefill_stats=cached))
    engine.step(engine.output("a", 1))
    engine.step(engine.output("a", 1, reason="length"), ended=("a",))
    [request] = engine.requests()
    attributes = request["attributes"]
    assert {name: attributes[name] for name in attributes if name.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 8,
        "gen_ai.request.stream": True,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.finish_reasons": ["length"],
    }
    assert attributes["inference.request.id"] == "cmpl-a"
    assert attributes["inference.prefill"] == pytest.approx(0.0005, abs=1e-6)
    assert attributes["inference.tpot"] == pytest.approx(0.001, abs=1e-6)
    assert attributes["inference.violations"] == 0
    assert attributes["inference.outcome"] == "completed"


def test_preemption_has_its_own_times(engine: Engine) -> None:
    """PREEMPTED and SCHEDULED ride on the next output and come before its token."""
    engine.add("a")
    engine.step(engine.output("a", 1, (QUEUED, 0.0), (SCHEDULED, 0.0005)))
    engine.clock += 0.01
    engine.step(engine.output("a", 1, (PREEMPTED, -0.008), (SCHEDULED, -0.001)))
    engine.step(engine.output("a", 1, reason="stop"), ended=("a",))
    [request] = engine.requests()
    assert request["attributes"]["inference.preemptions"] == 1
    assert request["attributes"]["inference.preempted"] == pytest.approx(0.007, abs=1e-6)
    assert request["attributes"]["inference.violations"] == 0


def test_stop_string_found_by_the_frontend_is_a_normal_end(engine: Engine) -> None:
    """The engine core gave no reason, yet the frontend has forgotten the request."""
    engine.add("a")
    engine.step(engine.output("a", 1, (SCHEDULED, 0.0005)), ended=("a",))
    [request] = engine.requests()
    assert request["attributes"]["inference.outcome"] == "completed"
    assert list(request["attributes"]["gen_ai.response.finish_reasons"]) == ["stop"]


def test_abort_is_a_cancel_in_the_state_it_met(engine: Engine) -> None:
    """A request that waits is cancelled in its queue; outputs that still come are not read."""
    engine.add("a")
    engine.processor.request_states.pop("a")
    engine.hooks.aborted(None, ["a"], engine.processor, ["cmpl-a"], internal=False)
    engine.step(engine.output("a", 1, (SCHEDULED, 0.0005)))
    [request] = engine.requests()
    assert request["attributes"]["inference.outcome"] == "cancelled"
    assert request["attributes"]["inference.failure.stage"] == "queue"


def test_dead_engine_fails_every_open_request(engine: Engine) -> None:
    """The exception's type is the error type of each."""

    class EngineDeadError(Exception):
        """As vLLM's."""

    engine.add("a")
    engine.add("b")
    engine.hooks.failed(None, None, engine.processor, EngineDeadError())
    assert [
        (span["attributes"]["inference.outcome"], span["attributes"]["error.type"]) for span in engine.requests()
    ] == [("failed", "EngineDeadError")] * 2


def test_two_choices_are_one_request(engine: Engine) -> None:
    """The children of a parent share its request, which ends with the last of them."""
    parent = SimpleNamespace(request_id="p", n=2)
    engine.add("0_p", parent, 0)
    engine.add("1_p", parent, 1)
    engine.step(engine.output("0_p", 1, (SCHEDULED, 0.0004)), engine.output("1_p", 1, (SCHEDULED, 0.0005)))
    engine.step(engine.output("0_p", 1, reason="length"), engine.output("1_p", 1), ended=("0_p",))
    assert engine.requests() == []
    engine.step(engine.output("1_p", 1, reason="stop"), ended=("1_p",))
    [request] = engine.requests()
    assert request["attributes"]["gen_ai.usage.output_tokens"] == 5
    assert list(request["attributes"]["gen_ai.response.finish_reasons"]) == ["length", "stop"]
    assert request["attributes"]["inference.violations"] == 0


def test_pooling_request_has_a_queue_and_a_prefill(engine: Engine) -> None:
    """Its one pass lies between admission and the end, without tokens."""
    engine.add("a", external_req_id="embd-a", sampling_params=None, pooling_params=object())
    engine.step(engine.output("a", 0, (SCHEDULED, 0.0005), reason="stop"), ended=("a",))
    [request] = engine.requests()
    attributes = request["attributes"]
    assert attributes["gen_ai.operation.name"] == "embeddings"
    assert attributes["inference.outcome"] == "completed"
    assert attributes["inference.queue_wait"] > 0
    assert attributes["inference.prefill"] > 0
    assert attributes["inference.violations"] == 0


def test_adapter_names_the_model_and_the_base_names_the_engine(engine: Engine) -> None:
    """Requests for several adapters compete for the same engine."""
    engine.add("a", lora_request=SimpleNamespace(lora_name="my-adapter"))
    engine.step(engine.output("a", 1, (SCHEDULED, 0.0005), reason="stop"), ended=("a",))
    [request] = engine.requests()
    assert request["attributes"]["gen_ai.request.model"] == "my-adapter"
    assert request["attributes"]["inference.engine"] == "tiny"


def test_version_without_external_ids_and_prefill_stats(engine: Engine) -> None:
    """0.12 has neither: the request's own id is the client's, and cached tokens stand on the output."""
    request = SimpleNamespace(
        request_id="chatcmpl-a",
        prompt_token_ids=[1],
        prompt_embeds=None,
        sampling_params=SimpleNamespace(max_tokens=None, output_kind=SimpleNamespace(value=2)),
        pooling_params=None,
        lora_request=None,
        arrival_time=time.time(),
    )
    engine.processor.request_states["chatcmpl-a"] = object()
    engine.hooks.added(None, None, engine.processor, request, "text")
    engine.step(
        engine.output("chatcmpl-a", 1, (SCHEDULED, 0.0005), reason="stop", num_cached_tokens=1), ended=("chatcmpl-a",)
    )
    [span] = engine.requests()
    assert span["attributes"]["inference.request.id"] == "chatcmpl-a"
    assert span["attributes"]["gen_ai.operation.name"] == "chat"
    assert "gen_ai.request.stream" not in span["attributes"]
    assert span["attributes"]["gen_ai.usage.cache_read.input_tokens"] == 1


def test_iterations_are_steps(engine: Engine, telemetry: Telemetry) -> None:
    """An engine core that times its iterations feeds the step histograms; one that does not feeds none."""
    engine.hooks.iterated(None, None, engine.processor, SimpleNamespace())
    engine.hooks.iterated(None, None, engine.processor, _stats(3.0, 1, 2))
    engine.add("a")
    for stats in (_stats(250.0, 0, 4), _stats(500.0, 1, 3), _stats(125.0, 2, 0), _stats(9.0, 0, 0), None):
        engine.hooks.iterated(None, None, engine.processor, stats)
    engine.hooks.iterated(None, None, engine.processor, _stats(9.0, 0, 1, is_dummy=True))
    durations = {
        point["attributes"]["inference.step.kind"]: point["sum"]
        for point in telemetry.points("inference.step.duration")
    }
    sizes = {
        point["attributes"]["inference.step.kind"]: point["sum"]
        for point in telemetry.points("inference.step.requests")
    }
    assert durations == {"decode": 0.25, "mixed": 0.5, "prefill": 0.125}
    assert sizes == {"decode": 4, "mixed": 4, "prefill": 2}


def _stats(elapsed_ms: float, prefill: int, decode: int, *, is_dummy: bool = False) -> Any:
    """Return what the engine core says of one iteration."""
    details = SimpleNamespace(
        elapsed_ms=elapsed_ms, num_ctx_requests=prefill, num_generation_requests=decode, is_dummy=is_dummy
    )
    return SimpleNamespace(iteration_details=details)
