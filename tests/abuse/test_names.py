"""Names chosen by clients: they cannot grow series or memory, forge a log line or break an export batch."""

from __future__ import annotations

import gc
import logging
import re
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import otel_lifecycle as lifecycle
from otel_lifecycle._instruments import label_sets
from otel_lifecycle._request import kinds
from otel_lifecycle.processor import LifecycleSpanProcessor
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.telemetry import Telemetry

from .conftest import MIB, NASTY

TEXTS: tuple[str, ...] = (
    "model",
    "request_id",
    "operation",
    "provider",
    "dtype",
    "backend",
    "backend_version",
    "revision",
    "workload",
)
TEXTS += ("cache_policy", "traffic")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
MAX_CHARACTERS = 256


def strings_of(message: Message) -> Iterator[str]:
    """Yield every string in a protobuf message."""
    for _, value in message.ListFields():
        single = isinstance(value, (Message, str, bytes, int, float))
        items: Iterable[Any] = [value] if single else value
        for item in items:
            if isinstance(item, Message):
                yield from strings_of(item)
            elif isinstance(item, str):
                yield item


def serve(telemetry: Telemetry, value: Any) -> None:
    """Put a value wherever a name is taken, and let the request run through."""
    request = telemetry.request(**dict.fromkeys(TEXTS, value))
    request.admit()
    request.set(**dict.fromkeys(TEXTS, value))
    request.input_ready()
    request.response(id=value, model=value, finish_reasons=value)
    request.response(finish_reasons=[value])
    request.first_token()
    request.usage(input_tokens=value, output_tokens=value)
    request.record([{"event": value, "timestamp": value}, {value if isinstance(value, str) else "x": value}])
    request.fail(value)


@pytest.mark.parametrize("kind", list(NASTY))
def test_nasty_names_reach_the_wire_clean(telemetry: Telemetry, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    """Every string that is exported is short and free of control characters; no log line has a second one inside."""
    with caplog.at_level(logging.DEBUG):
        serve(telemetry, NASTY[kind])
        encoded = encode_spans(telemetry.exporter.get_finished_spans())
        points = telemetry.points()
    found = list(strings_of(encoded))
    assert [text for text in found if len(text) > MAX_CHARACTERS or CONTROL.search(text)] == []
    labels = [str(value) for point in points for value in point["attributes"].values()]
    assert [text for text in labels if len(text) > MAX_CHARACTERS or CONTROL.search(text)] == []
    assert [record.getMessage() for record in caplog.records if CONTROL.search(record.getMessage())] == []
    assert Counter(span["attributes"]["inference.outcome"] for span in telemetry.spans() if not span["parent_id"]) == {
        "failed": 1
    }


@given(value=st.text(st.characters(exclude_categories=()), max_size=400))
def test_any_text_is_encodable_and_clean(value: str) -> None:
    """Whatever text: the span encodes, each string of it is clean."""
    telemetry = Telemetry()
    serve(telemetry, value)
    found = list(strings_of(encode_spans(telemetry.exporter.get_finished_spans())))
    telemetry.shutdown()
    assert [text for text in found if len(text) > MAX_CHARACTERS or CONTROL.search(text)] == []


def test_nasty_names_break_no_batch(otlp: OtlpReceiver, fresh_globals: None) -> None:
    """All of them in one batch with an ordinary request, over a real exporter: every one of them arrives."""
    lifecycle.configure(endpoint=otlp.endpoint, protocol=otlp.scheme)
    for value in NASTY.values():
        with lifecycle.request(**dict.fromkeys(TEXTS, value)) as request:  # type: ignore[arg-type]  # nasty
            request.output()
    with lifecycle.request(model="ordinary") as request:
        request.admit()
        request.input_ready()
        request.first_token()
    lifecycle.shutdown()
    roots = [span for span in otlp.spans() if "inference.outcome" in span["attributes"]]
    assert len(roots) == len(NASTY) + 1
    assert sum(point["value"] or 0 for point in otlp.points("inference.requests")) == len(NASTY) + 1
    assert [span["attributes"]["inference.outcome"] for span in otlp.spans("chat ordinary")] == ["completed"]


def grown(serve_some: Callable[[int, int], None], first: int, batch: int) -> int:
    """Return by how many bytes the peak of memory in the last batch of requests is above that of the batch before it.

    What is remembered up to a number and then begun anew goes up and down; a batch is longer than one such round, so
    that both peaks are those of a full store. All is traced from the start, so that what is replaced counts as freed.
    """
    peaks = []
    tracemalloc.start()
    try:
        serve_some(0, first)
        for start in (first, first + batch):
            gc.collect()
            tracemalloc.reset_peak()
            serve_some(start, batch)
            peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    return peaks[1] - peaks[0]


def unexported(telemetry: Telemetry) -> Telemetry:
    """Let the telemetry count and keep no span."""
    telemetry.tracer_provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    telemetry.tracer_provider.add_span_processor(LifecycleSpanProcessor(meter_provider=telemetry.meter_provider))
    return telemetry


@pytest.mark.long
@pytest.mark.parametrize(
    ("remembered", "first", "batch"),
    [
        (64, 1000, 1000),
        pytest.param(None, 50_000, 5_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_distinct_names_grow_neither_series_nor_memory(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, remembered: int | None, first: int, batch: int
) -> None:
    """As many models, request ids, providers, operations, workloads, error types and reasons as requests."""
    if remembered is not None:
        # The stores are full after a few requests instead of thousands.
        monkeypatch.setattr(label_sets, "MOST_REMEMBERED", remembered)
        monkeypatch.setattr(kinds, "MAX_SETS", remembered)
    unexported(telemetry)

    def serve_some(start: int, number: int) -> None:
        for index in range(start, start + number):
            names = {name: f"{name}-{index}" for name in TEXTS}
            with telemetry.request(**names) as request:
                request.admit()
                request.input_ready()
                request.token()
                request.fail(f"Error{index}") if index % 2 else request.cancel(f"reason {index}")

    bytes_grown = grown(serve_some, first, batch)
    points = telemetry.points()
    assert sum(point["value"] or 0 for point in points if point["metric"] == "inference.requests") == first + 2 * batch
    assert max(Counter(point["metric"] for point in points).values()) <= 1001
    # A name kept for each request would be some 50 bytes of it, its series some 500.
    assert bytes_grown < 20 * batch


def test_open_requests_keep_no_long_name(telemetry: Telemetry) -> None:
    """A hundred open requests with ids and models of a mebibyte hold kilobytes, not a hundred mebibytes."""
    unexported(telemetry)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        handles = [telemetry.request(model=f"{index}" + "x" * MIB, request_id="y" * MIB) for index in range(100)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for handle in handles:
        handle.cancel()
    assert after - before < 2 * MIB
