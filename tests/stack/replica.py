"""One replica of a service: a process that serves a scripted load and then says what it measured of it.

``python -m tests.stack.replica LOAD SEED OPEN`` is configured by the environment alone, as a deployed server is.  It
says ``served`` when it has played its load, holds OPEN more requests until its standard input ends, then shuts down and
prints a :class:`Statement`.  All times of the load are given (``at_ns``) and lie within the last three minutes.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypedDict

from opentelemetry import metrics
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader

import otel_lifecycle as lifecycle

MODELS: Final = ("smollm2", "qwen3")
CHOICES: Final = "best-of"
"""The model whose answers have two choices: the offsets of their tokens do not say which is whose."""
STAGES: Final = ("queue", "preprocessing", "prefill", "decode")

Mark = tuple[Any, ...]
"""A method of the handle, the seconds after arrival (None: unknown), and what else the method is given."""
Load = Iterator[tuple[Mapping[str, Any], list[Mark]]]
"""The conditions of each request, and its marks; without a terminal one it is left ``incomplete``."""

START: Final[list[Mark]] = [("admit", 0.1), ("input_ready", 0.2), ("first_token", 0.5)]


class Statement(TypedDict):
    """What a replica says in the end: every point of its metrics, and how many of its requests were sampled."""

    points: list[dict[str, Any]]
    sampled: int


def streamed(rng: random.Random, *end: Any, stage: str = "decode", preempted: float = 0.0) -> list[Mark]:
    """Return the marks of an answer that comes token by token and ends by ``end`` (complete) in a stage."""
    admit = rng.choice((0.002, 0.02, 0.5)) * rng.uniform(0.5, 2)
    ready = admit + rng.choice((0.002, 0.2)) * rng.uniform(0.5, 2)
    first = ready + rng.choice((0.05, 0.3)) * rng.uniform(0.5, 2)
    marks: list[Mark] = [("admit", admit), ("input_ready", ready), ("first_token", first)]
    if preempted:
        marks += [("preempt", first + 0.001), ("resume", first + 0.001 + preempted)]
    gap = rng.uniform(0.004, 0.09)
    for _ in range(rng.randint(0, 30)):
        marks.append(("token", marks[-1][1] + gap * rng.uniform(0.3, 2)))
    reached = marks if stage == "decode" else marks[: STAGES.index(stage)]
    method, *given = end or ("complete",)
    ended = (reached[-1][1] if reached else 0.0) + rng.uniform(0.001, 0.4)
    return [*reached, (method, ended, *given)]


def ends(rng: random.Random) -> Iterator[list[Mark]]:
    """Yield requests that end in every way and stage, refusals among them."""
    for reason, count in (("queue_full", 4), ("rate_limited", 3)):
        for _ in range(count):
            yield streamed(rng, "fail", reason, stage="queue")
    for stage in STAGES:
        yield streamed(rng, "fail", "out_of_memory", stage=stage)
        yield streamed(rng, "fail", ValueError("of the engine"), stage=stage)
        yield streamed(rng, "timeout", "deadline", stage=stage)
        yield streamed(rng, "cancel", "client_disconnected", stage=stage)
        yield streamed(rng, "cancel", stage=stage)
    yield streamed(rng, "timeout", "queue_timeout", stage="queue")
    late = streamed(rng, "cancel", "client_disconnected")
    yield [*late, *(("token", late[-1][1] + 0.1 * number) for number in range(1, 4))]
    # Nothing of these two ends them.
    yield START[:1]
    yield [*START, ("token", 0.6)]


def oddities(rng: random.Random) -> Iterator[list[Mark]]:
    """Yield requests that complete with a boundary missing, an interruption, or something illegal."""
    for tokens in (12, 1, None):
        yield [*START[:2], ("output", 1.0, tokens), ("complete", 1.1)]
    yield [("admit", None), ("input_ready", 0.2), ("first_token", 0.5), ("token", 0.6), ("complete", 0.7)]
    yield [("resume", 0.0), *streamed(rng)]
    yield [("admit", 0.2), ("input_ready", 0.1), ("first_token", 0.5), ("complete", 0.7)]
    for preempted in (0.3, 2.5):
        yield streamed(rng, preempted=preempted)


def chunked(rng: random.Random) -> Iterator[list[Mark]]:
    """Yield answers that come in chunks, and one with a chunk of unknown size."""
    for _ in range(3):
        at = [0.75 + number / 4 + rng.uniform(0, 0.2) for number in range(9)]
        yield [*START, *(("token", seconds, rng.choice((1, 1, 3))) for seconds in at), ("complete", 3.0)]
    yield [*START, ("token", 0.6), ("token", 0.7, None), ("token", 0.8), ("complete", 1.0)]


def everything(rng: random.Random) -> Load:
    """Yield every kind of request, for both models."""
    for model in MODELS:
        for _ in range(40 if model == MODELS[0] else 25):
            yield {"model": model, "input_tokens": rng.randint(8, 4000)}, streamed(rng)
        for kind in (ends, oddities, chunked):
            for marks in kind(rng):
                yield {"model": model, "input_tokens": 100}, marks
    in_turn = [("token", 0.5 + 0.031 * number, 1, number % 2) for number in range(1, 12)]
    yield {"model": CHOICES}, [*START, *in_turn, ("complete", 1.0)]
    for _ in range(3):
        embedded = [*START[:2], ("complete", rng.uniform(0.3, 0.4))]
        yield {"model": "bge", "operation": "embeddings", "shape": "pooling", "input_tokens": 50}, embedded
        warm = [*START[:2], ("first_token", 30.0), ("token", 33.0), ("cancel", 34.0), ("token", 35.0), ("token", 36.0)]
        yield {"model": MODELS[0], "traffic": "warmup", "input_tokens": 9}, warm
        for role in ("prefill", "decode"):
            yield {"model": MODELS[0], "role": role}, streamed(rng)


def steady(rng: random.Random) -> Load:
    """Yield requests that all complete, with every boundary."""
    for _ in range(40):
        yield {"model": MODELS[0], "input_tokens": 100}, streamed(rng)


LOADS: Final[Mapping[str, Callable[[random.Random], Load]]] = {"everything": everything, "steady": steady}


def play(load: Load) -> int:
    """Play a load as if it had arrived, one after the other, until a minute ago; return how many were sampled."""
    sampled = 0
    begin = time.time_ns() - _ns(150)
    for number, (conditions, marks) in enumerate(load):
        arrived = begin + _ns(0.3 * number)
        with lifecycle.request(arrived_at_ns=arrived, request_id=str(number), **conditions) as request:
            for method, seconds, *given in marks:
                at = None if seconds is None else arrived + _ns(seconds)
                getattr(request, method)(*given, at_ns=at)
        sampled += is_sampled(request)
    return sampled


def is_sampled(request: Any) -> bool:
    """Return whether a request's span is exported: what its trace context tells the next process."""
    return bool(int(request.carrier()["traceparent"].rsplit("-", 1)[1], 16) & 1)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def points(reader: InMemoryMetricReader) -> Iterator[dict[str, Any]]:
    """Yield every point of the metrics: its metric's name, its attributes, and its numbers."""
    data = reader.get_metrics_data()
    assert data is not None
    for resource in data.resource_metrics:
        told = resource.resource.attributes
        labels = {"job": told["service.name"], "instance": told["service.instance.id"]}
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    numbers = ("value", "count", "sum", "bucket_counts", "explicit_bounds")
                    known = {name: getattr(point, name) for name in numbers if hasattr(point, name)}
                    yield {"metric": metric.name, "labels": {**labels, **(point.attributes or {})}, **known}


def usage() -> Iterator[float]:
    """Yield the share of the cache in use, another at every reading."""
    return (share / 8 for share in itertools.cycle((1, 2, 7, 4)))


def main(load: str, seed: str, held: str) -> None:
    """Be one replica."""
    at_hand = InMemoryMetricReader()
    meters = MeterProvider([at_hand, PeriodicExportingMetricReader(OTLPMetricExporter())])
    metrics.set_meter_provider(meters)
    lifecycle.configure(resources={"cache_usage": partial(next, usage())})
    with lifecycle.startup("load_model"):
        chosen = LOADS[load](random.Random(int(seed)))
    sampled = play(chosen)
    waiting = [lifecycle.request(model=MODELS[0]) for _ in range(int(held))]
    sys.stdout.write("served\n")
    sys.stdout.flush()
    sys.stdin.read()
    lifecycle.shutdown()
    said: Statement = {"points": list(points(at_hand)), "sampled": sampled + sum(map(is_sampled, waiting))}
    meters.shutdown()
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
