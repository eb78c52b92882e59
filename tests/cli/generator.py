"""Writes the traces of a simulated server as OTLP JSON, a batch a line, as the Collector's file exporter does.

    python -m tests.cli.generator 1000000 > traces.json

The server has some slots and a queue.  A request waits for a slot, is tokenised, prefilled (a time that grows with its
input) and decoded (a time that grows with its output).  The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np
import orjson

START_NS = 1_770_000_000_000_000_000
BATCH = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is simulated.  Times in seconds, ``rate`` in requests per second."""

    requests: int
    seed: int = 1
    slots: int = 4
    rate: float = 3.0
    input_tokens: float = 500.0
    output_tokens: float = 60.0
    prefill_per_token: float = 0.0004
    time_per_token: float = 0.015
    cancelled: float = 0.03
    failed: float = 0.01
    stalled: float = 0.005
    attributes: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """One simulated request: its boundaries in seconds after the run's start, None where it never came so far."""

    number: int
    arrive: float
    admit: float
    input_ready: float
    first_token: float
    end: float
    event: str
    input_tokens: int
    output_tokens: int
    gap: float
    longest: float


def simulate(load: Load) -> Iterator[Simulated]:
    """Yield the requests in the order they arrive."""
    random = np.random.default_rng(load.seed)
    slots = [0.0] * load.slots
    now = 0.0
    for number in range(load.requests):
        now += float(random.exponential(1 / load.rate))
        incoming = max(8, int(random.lognormal(np.log(load.input_tokens), 0.6)))
        outgoing = max(2, int(random.lognormal(np.log(load.output_tokens), 0.4)))
        gap = load.time_per_token * float(random.uniform(0.9, 1.1))
        admit = max(now, heapq.heappop(slots))
        ready = admit + 0.002 + incoming * 2e-6
        first = ready + 0.01 + incoming * load.prefill_per_token * float(random.uniform(0.95, 1.05))
        longest = gap * 1.4 + (float(random.uniform(1, 3)) if random.random() < load.stalled else 0.0)
        draw = random.random()
        event = "cancel" if draw < load.cancelled else "fail" if draw < load.cancelled + load.failed else "complete"
        if event != "complete":
            outgoing = max(2, outgoing // 3)
        end = first + gap * (outgoing - 2) + longest
        heapq.heappush(slots, end)
        yield Simulated(
            number=number,
            arrive=now,
            admit=admit,
            input_ready=ready,
            first_token=first,
            end=end,
            event=event,
            input_tokens=incoming,
            output_tokens=outgoing,
            gap=gap,
            longest=longest,
        )


def write(load: Load, out: BinaryIO) -> None:
    """Write the whole run."""
    # Many tests write the same small run; a large one passes through line by line.
    out.writelines([_written(load)] if load.requests <= 1000 else _lines(load))


@lru_cache(maxsize=16)
def _written(load: Load) -> bytes:
    return b"".join(_lines(load))


def _lines(load: Load) -> Iterator[bytes]:
    spans: list[dict[str, Any]] = []
    for request in simulate(load):
        spans += spans_of(request, load)
        if (request.number + 1) % BATCH == 0:
            yield line(spans)
            spans = []
    if spans:
        yield line(spans)


def line(spans: list[dict[str, Any]]) -> bytes:
    """Return one batch as the exporter writes it."""
    resource = {"attributes": encode({"service.name": "tiny-llm", "host.arch": "amd64"})}
    scope = {"name": "otel_lifecycle", "version": "0"}
    return orjson.dumps(
        {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]},
        option=orjson.OPT_APPEND_NEWLINE,
    )


def encode(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    """Return attributes in their OTLP JSON form."""
    return [{"key": key, "value": _value(value)} for key, value in attributes.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def _nano(seconds: float) -> str:
    return str(START_NS + round(seconds * 1e9))


def _ids(request: Simulated, load: Load) -> tuple[str, str]:
    return f"{load.seed:08x}{request.number + 1:024x}", f"{request.number * 8 + 1:016x}"


def _boundaries(request: Simulated) -> list[tuple[str, float]]:
    return [
        ("arrive", request.arrive),
        ("admit", request.admit),
        ("input_ready", request.input_ready),
        ("first_token", request.first_token),
        (request.event, request.end),
    ]


def request_span_of(request: Simulated, load: Load) -> dict[str, Any]:
    """Return the request span alone."""
    trace, span = _ids(request, load)
    boundaries = _boundaries(request)
    return {
        "traceId": trace,
        "spanId": span,
        "name": "chat smollm2",
        "kind": 2,
        "startTimeUnixNano": _nano(request.arrive),
        "endTimeUnixNano": _nano(request.end),
        "attributes": encode(_attributes(request, load)),
        "events": [{"timeUnixNano": _nano(time), "name": name} for name, time in boundaries],
        "status": {"code": 2} if request.event == "fail" else {},
    }


def spans_of(request: Simulated, load: Load) -> list[dict[str, Any]]:
    """Return the request span and its stage spans."""
    trace, span = _ids(request, load)
    boundaries = _boundaries(request)
    stages = ("queue", "preprocessing", "prefill", "decode")
    return [request_span_of(request, load)] + [
        {
            "traceId": trace,
            "spanId": f"{request.number * 8 + 2 + index:016x}",
            "parentSpanId": span,
            "name": stage,
            "kind": 1,
            "startTimeUnixNano": _nano(boundaries[index][1]),
            "endTimeUnixNano": _nano(boundaries[index + 1][1]),
            "attributes": encode({"inference.stage": stage}),
            "status": {},
        }
        for index, stage in enumerate(stages)
    ]


def _attributes(request: Simulated, load: Load) -> dict[str, Any]:
    stages = {
        "queue": request.admit - request.arrive,
        "preprocessing": request.input_ready - request.admit,
        "prefill": request.first_token - request.input_ready,
        "decode": request.end - request.first_token,
    }
    total = sum(stages.values())
    largest = max(stages, key=lambda stage: stages[stage])
    completed = request.event == "complete"
    outcome = {"complete": "completed", "cancel": "cancelled", "fail": "failed"}[request.event]
    attribution: dict[str, Any] = {}
    if completed:
        attribution = {
            "inference.bottleneck": largest if stages[largest] / total >= 0.45 else "mixed",
            "inference.dominant_stage": largest,
            "inference.dominant_share": stages[largest] / total,
            **{f"inference.share.{stage}": time / total for stage, time in stages.items()},
        }
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "_OTHER",
        "gen_ai.request.model": "smollm2",
        "inference.model.dtype": "q4_1",
        "inference.backend.name": "simulated",
        "inference.request.id": f"r{request.number}",
        "gen_ai.usage.input_tokens": request.input_tokens,
        "gen_ai.usage.output_tokens": request.output_tokens,
        "inference.streamed_tokens": request.output_tokens,
        "inference.outcome": outcome,
        "inference.failure.stage": None if completed else "decode",
        "inference.end.reason": {"cancel": "client_disconnected", "fail": "engine_error"}.get(request.event),
        "error.type": "engine_error" if request.event == "fail" else None,
        "inference.legal": True,
        "inference.violations": 0,
        **attribution,
        "inference.queue_wait": stages["queue"],
        "inference.preprocessing": stages["preprocessing"],
        "inference.prefill": stages["prefill"],
        "inference.decode_time": stages["decode"],
        "inference.token_span": stages["decode"],
        "inference.ttft": request.first_token - request.arrive,
        "inference.tpot": stages["decode"] / (request.output_tokens - 1),
        "inference.e2e": request.end - request.arrive,
        "inference.itl.p50": request.gap,
        "inference.itl.p95": request.gap * 1.2,
        "inference.itl.p99": request.gap * 1.3,
        "inference.itl.max": request.longest,
        **dict(load.attributes),
    }


def main() -> None:
    """Write a run to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("requests", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--rate", type=float, default=3.0)
    options = parser.parse_args()
    load = Load(requests=options.requests, seed=options.seed, slots=options.slots, rate=options.rate)
    write(load, sys.stdout.buffer)


if __name__ == "__main__":
    main()
