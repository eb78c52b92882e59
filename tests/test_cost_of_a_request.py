"""What a whole request costs, counted: bytecodes against those of bare spans, and what it leaves in memory.

`make bench` measures time; this fails on a change that makes a request dearer, on a machine of any speed.  The limits
are what was counted when they were written and a tenth, not the budgets of the contract.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from otel_lifecycle._core.engine_log import EngineLog
from otel_lifecycle._core.lifecycle import SHAPES
from otel_lifecycle._core.report import build_report
from otel_lifecycle._core.stalls import Stalls
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._runtime import runtime
from tests.support.telemetry import Telemetry
from tests.test_hot_path import blocks, bytecodes

SDK = tuple(map(int, version("opentelemetry-sdk").split(".")[:2]))

pytestmark = pytest.mark.skipif(SDK < (1, 44), reason="the spans of older SDKs, which this is held against, cost less")

BATCH = 66
"""Requests that are served to one collection."""


@pytest.fixture
def serve(make_telemetry: Callable[..., Telemetry]) -> Callable[..., Callable[[], None]]:
    """Return what makes a function that serves one request."""

    def make(telemetry: Telemetry, shape: str, tokens: int = 1) -> Callable[[], None]:
        def one() -> None:
            with telemetry.request(model="m", shape=shape) as request:
                request.admit()
                request.input_ready()
                for _ in range(tokens if shape == "default" else 0):
                    request.token()

        # No processor sees an unsampled span: say whose requests these are.
        runtime().seen_with(telemetry.tracer_provider, telemetry.processor)
        for _ in range(BATCH):
            one()
        telemetry.reader.get_metrics_data()
        return one

    return make


def bare(sampled: bool) -> int:
    """Count the bytecodes of five bare spans."""
    tracer = TracerProvider(sampler=ALWAYS_ON if sampled else ALWAYS_OFF, shutdown_on_exit=False).get_tracer("bare")

    def five() -> None:
        for _ in range(5):
            tracer.start_span("bare").end()

    five()
    return bytecodes(five)


@pytest.mark.parametrize(("shape", "most"), [("default", 1.15), ("pooling", 0.97)])
def test_an_unsampled_request_on_the_serving_thread(
    make_telemetry: Callable[..., Telemetry], serve: Any, shape: str, most: float
) -> None:
    """From its arrival to its end, without the fold that a collection makes."""
    one = serve(make_telemetry(sampler=ALWAYS_OFF), shape)
    assert bytecodes(one) <= most * bare(sampled=False)


@pytest.mark.parametrize(("shape", "most"), [("default", 1.24), ("pooling", 1.04)])
def test_an_unsampled_request_with_its_metrics(
    make_telemetry: Callable[..., Telemetry], serve: Any, shape: str, most: float
) -> None:
    """All of it, the fold into the instruments included; collected once for a batch."""
    telemetry = make_telemetry(sampler=ALWAYS_OFF)
    one = serve(telemetry, shape)

    def batch() -> None:
        for _ in range(BATCH):
            one()
        telemetry.processor.force_flush()

    assert bytecodes(batch) <= most * BATCH * bare(sampled=False)


def test_the_end_of_a_long_unsampled_request_is_that_of_a_short_one(
    make_telemetry: Callable[..., Telemetry],
) -> None:
    """Nothing is computed of its tokens when it ends: a thousand of them cost the serving thread nothing."""
    telemetry = make_telemetry(sampler=ALWAYS_OFF)
    runtime().seen_with(telemetry.tracer_provider, telemetry.processor)
    counted = []
    for tokens in (2, 2, 1000):
        request = telemetry.request()
        request.admit()
        request.input_ready()
        for _ in range(tokens):
            request.token()
        counted.append(bytecodes(request.complete))
    assert counted[2] == counted[1]


def test_an_unsampled_request_that_waits_for_a_collection_holds_little(
    make_telemetry: Callable[..., Telemetry], serve: Any
) -> None:
    """What it hands over is times and numbers: the request itself is gone with its handle."""
    one = serve(make_telemetry(sampler=ALWAYS_OFF), "default")
    # Its times and its moment, one tuple around them, its span's identity, and its place in the log of its engine.
    assert blocks(one) <= 19


def test_a_sampled_request_on_the_serving_thread(make_telemetry: Callable[..., Telemetry], serve: Any) -> None:
    """Five spans with everything that they say."""
    one = serve(make_telemetry(sampler=ALWAYS_ON), "default")
    assert bytecodes(one) <= 2.77 * bare(sampled=True)


def test_the_end_of_a_request_that_came_and_went_with_sixty_three_others() -> None:
    """All of them begin in its wait and end near its end, so that each is compared with every other one."""
    log = EngineLog()
    slots = [log.open(number, "default", number * 200_000) for number in range(64)]
    times = [(number * 200_000, *(at + number * 230_000 for at in (15_000_000, 15_050_000))) for number in range(64)]
    rows = [(*row, row[2] + 3_400_000, 220_000_000 + row[0] // 2) for row in times]
    for slot, row in zip(slots, rows, strict=True):
        for state, at in zip(("preprocessing", "prefill", "decode"), row[1:], strict=False):
            log.move(slot, state, at)
    for slot, row in zip(slots, rows, strict=True):
        log.end(slot, row[-1], by=row[-1])
    names = ("arrival", "admitted", "input_ready", "first_token", "terminal")
    report = build_report(Timeline(SHAPES["default"]), "completed")
    report["timestamps"] = dict(zip(names, rows[40], strict=True))
    stalls = Stalls(intervals=((rows[40][3], rows[40][3] + 50_000_000),))
    found = log.interference(slots[40], report, stalls)
    assert (found.complete, found.culprits) == (True, ())
    assert bytecodes(lambda: log.interference(slots[40], report, stalls)) <= 6.8 * bare(sampled=True)
