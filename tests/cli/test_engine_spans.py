"""Request spans that vLLM, SGLang and Dynamo write themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Ran

START = 1_770_000_000_000_000_000


def written(path: Path, name: str, scope: str, seconds: float, attributes: dict[str, Any]) -> None:
    """Write one span as OTLP JSON."""
    kinds = {int: "intValue", float: "doubleValue", str: "stringValue", bool: "boolValue"}
    span = {
        "traceId": "0af7651916cd43dd8448eb211c80319c",
        "spanId": "b7ad6b7169203331",
        "name": name,
        "startTimeUnixNano": str(START),
        "endTimeUnixNano": str(START + round(seconds * 1e9)),
        "attributes": [
            {"key": key, "value": {kinds[type(value)]: str(value) if type(value) is int else value}}
            for key, value in attributes.items()
        ],
    }
    batch = {"resourceSpans": [{"scopeSpans": [{"scope": {"name": scope}, "spans": [span]}]}]}
    path.write_text(json.dumps(batch))


VLLM = {
    "gen_ai.latency.time_to_first_token": 0.5,
    "gen_ai.latency.e2e": 2.5,
    "gen_ai.latency.time_in_queue": 0.2,
    "gen_ai.latency.time_in_model_prefill": 0.25,
    "gen_ai.latency.time_in_model_decode": 1.9,
    "gen_ai.latency.time_in_model_inference": 2.15,
    "gen_ai.usage.prompt_tokens": 100,
    "gen_ai.usage.completion_tokens": 20,
    "gen_ai.request.id": "cmpl-1",
    "gen_ai.response.model": "tiny",
}


def row(cli: Callable[..., Ran], path: Path) -> dict[str, Any]:
    """Return the one row of the table."""
    (found,) = cli("export", path).json_lines
    return dict(found)


def test_a_span_of_vllm_has_every_stage(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """What lies before the queue is the frontend's preparation."""
    written(tmp_path / "run.json", "llm_request", "vllm.llm_engine", 2.51, VLLM)
    found = row(cli, tmp_path / "run.json")
    names = ("preprocessing", "queue_wait", "prefill", "decode_time", "ttft", "tpot", "e2e")
    assert [found[name] for name in names] == pytest.approx([0.05, 0.2, 0.25, 2.0, 0.5, 0.1, 2.5])
    told = {name: found[name] for name in ("outcome", "bottleneck", "input_tokens", "output_tokens", "legal")}
    assert told == {
        "outcome": "completed",
        "bottleneck": "decode",
        "input_tokens": 100,
        "output_tokens": 20,
        "legal": True,
    }
    assert (found["request_id"], found["model"], found["backend"]) == ("cmpl-1", "tiny", "vllm")


def test_a_span_of_sglang_has_no_guess(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Its prefill includes the queue, so neither is known; the rest is."""
    told = {key: value for key, value in VLLM.items() if key != "gen_ai.latency.time_in_queue"}
    told["gen_ai.response.finish_reasons"] = "{'type': 'abort'}"
    written(tmp_path / "run.json", "Req cmpl-1", "sglang", 2.51, told)
    found = row(cli, tmp_path / "run.json")
    assert [found[name] for name in ("queue_wait", "preprocessing", "prefill", "bottleneck")] == [None] * 4
    assert (found["ttft"], found["e2e"], found["outcome"], found["legal"]) == (0.5, 2.5, "cancelled", True)


def test_a_span_of_dynamo_has_milliseconds_as_text(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """The frontend's span: TTFT and the mean gap."""
    told = {
        "ttft_ms": "120.5",
        "avg_itl_ms": "10.0",
        "input_tokens": "7",
        "output_tokens": "11",
        "model": "qwen",
        "request_id": "r1",
    }
    written(tmp_path / "run.json", "http-request", "dynamo", 0.3, told)
    found = row(cli, tmp_path / "run.json")
    assert [found[name] for name in ("ttft", "tpot", "e2e")] == pytest.approx([0.1205, 0.01, 0.3])
    assert (found["input_tokens"], found["output_tokens"], found["model"]) == (7, 11, "qwen")


def test_another_span_with_such_an_attribute_is_no_request(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """A name like `ttft_ms` belongs to nobody."""
    written(tmp_path / "run.json", "dashboard", "somebody", 0.3, {"ttft_ms": 3})
    assert cli("export", tmp_path / "run.json").code == 2
