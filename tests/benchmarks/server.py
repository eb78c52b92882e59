"""A FastAPI server whose engine yields as fast as the event loop allows, with and without instrumentation.

``python -m tests.benchmarks.server PORT ENDPOINT STACK``: the mode and the length of the answer are in the path, so
that one program serves in every mode.  ``GET /cpu`` exports what waits to be and gives the CPU time of the
process, its exporter threads included, so that the spans of a window are paid for in it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from time import perf_counter, perf_counter_ns, process_time_ns, time_ns
from typing import Any

import uvicorn
from fastapi import FastAPI, Response
from fastapi.responses import StreamingResponse
from opentelemetry.context import Context, attach, detach
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, set_span_in_context

import otel_lifecycle as lifecycle
from otel_lifecycle import semconv
from otel_lifecycle.processor import LifecycleSpanProcessor
from tests.benchmarks.floors import STAGES, EndByHand, OpenRequest
from tests.benchmarks.subjects import EDGES, LABELS, MODEL, OBJECTIVES

STACKS: dict[str, dict[str, Any]] = {
    "h11": {"loop": "asyncio", "http": "h11"},
    "httptools": {"loop": "uvloop", "http": "httptools"},
}
"""What `pip install uvicorn` and what `pip install uvicorn[standard]` run on."""

GIVE_UP_S = 1
"""How long the exporter tries an endpoint that is down; between tries it waits, and that costs nothing."""

app = FastAPI()
slots = asyncio.Semaphore(100_000)


class Telemetry:
    """Providers that export to an OTLP/HTTP endpoint.

    They are not the global ones: FastAPI reports to those by itself, and then the bare server would be no bare one.
    """

    def __init__(self, endpoint: str) -> None:
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{endpoint}/v1/metrics"))
        self.meter_provider = MeterProvider([reader])
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(
            LifecycleSpanProcessor(meter_provider=self.meter_provider, slo=OBJECTIVES)
        )
        exporter = OTLPSpanExporter(f"{endpoint}/v1/traces", timeout=GIVE_UP_S)
        self.tracer_provider.add_span_processor(BatchSpanProcessor(exporter))
        self.tracer = self.tracer_provider.get_tracer("naive")
        self.gaps = self.meter_provider.get_meter("naive").create_histogram(
            "itl", "s", explicit_bucket_boundaries_advisory=EDGES
        )

    def request(self) -> Any:
        """Open a request."""
        return lifecycle.request(model=MODEL, tracer_provider=self.tracer_provider)


def telemetry() -> Telemetry:
    """Return the providers of this process."""
    providers: Telemetry = app.state.telemetry
    return providers


async def engine(tokens: int) -> AsyncIterator[str]:
    """Yield a token whenever the event loop comes round."""
    for _ in range(tokens):
        await asyncio.sleep(0)
        yield " token"


def frame(token: str) -> bytes:
    """Return the chunk of a chat completion that carries the token, as every OpenAI-compatible server sends it."""
    choice = {"index": 0, "delta": {"content": token}, "logprobs": None, "finish_reason": None}
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": MODEL, "choices": [choice]}
    return f"data: {json.dumps(chunk)}\n\n".encode()


async def plain(tokens: int) -> AsyncIterator[bytes]:
    """Serve without instrumentation."""
    async with slots:
        async for token in engine(tokens):
            yield frame(token)


async def streamed(tokens: int, request: Any) -> AsyncIterator[bytes]:
    """Serve as the README does: stages as blocks, the engine's iterator wrapped."""
    with request:
        with request.stage("queue"):
            await slots.acquire()
        try:
            with request.stage("preprocessing"):
                pass
            async for token in request.stream(engine(tokens)):
                yield frame(token)
        finally:
            slots.release()


async def marked(tokens: int, request: Any) -> AsyncIterator[bytes]:
    """Serve with every token marked by hand."""
    with request:
        async with slots:
            request.admit()
            request.input_ready()
            async for token in engine(tokens):
                request.token()
                yield frame(token)


async def naive(tokens: int) -> AsyncIterator[bytes]:
    """Serve with plain OpenTelemetry: an event and a histogram sample for every token."""
    span = telemetry().tracer.start_span("chat", attributes=LABELS)
    gaps, last = telemetry().gaps, perf_counter()
    async with slots:
        async for token in engine(tokens):
            span.add_event("token")
            now = perf_counter()
            gaps.record(now - last, LABELS)
            last = now
            yield frame(token)
    span.end()


class ByHand(EndByHand):
    """The floor: the same spans, attributes and events written out by hand, and a sample for each figure of a request.

    The gaps between its tokens are not recorded: by the public API they cost more than everything else.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self.tracer = telemetry.tracer_provider.get_tracer("floor")
        self.handed_over = []
        meter = telemetry.meter_provider.get_meter("floor")
        self._record = {
            row.name: meter.create_histogram(
                row.name, row.unit, row.description, explicit_bucket_boundaries_advisory=row.buckets
            ).record
            for row in semconv.METRICS
            if row.kind == "histogram"
        }
        self._add = {
            row.name: meter.create_counter(row.name, row.unit, row.description).add
            for row in semconv.METRICS
            if row.kind == "counter"
        }

    def end(self, request: OpenRequest) -> None:
        """Write its spans, and record its figures in the trace they are of."""
        super().end(request)
        bounds, gaps = self.handed_over.pop()
        context = set_span_in_context(request.span, Context())
        shared = {semconv.GEN_AI_OPERATION_NAME: "chat", semconv.GEN_AI_REQUEST_MODEL: MODEL}
        done = {**shared, semconv.OUTCOME: "completed"}
        spent = [(later - earlier) / 1e9 for earlier, later in pairwise(bounds)]
        for stage, seconds in zip(STAGES, spent, strict=True):
            self._record[semconv.STAGE_DURATION.name](seconds, {**shared, semconv.STAGE: stage}, context)
        e2e, ttft, tpot = sum(spent), sum(spent[:-1]), sum(gaps) / len(gaps) / 1e9
        for metric, convention, seconds in (
            (semconv.REQUEST_DURATION, semconv.GEN_AI_REQUEST_DURATION, e2e),
            (semconv.TIME_TO_FIRST_TOKEN, semconv.GEN_AI_TIME_TO_FIRST_TOKEN, ttft),
            (semconv.TIME_PER_OUTPUT_TOKEN, semconv.GEN_AI_TIME_PER_OUTPUT_TOKEN, tpot),
        ):
            self._record[metric.name](seconds, done, context)
            self._record[convention.name](seconds, shared, context)
        self._add[semconv.REQUESTS.name](1, {**done, semconv.BOTTLENECK: "decode"}, context)
        self._add[semconv.TOKENS.name](len(gaps) + 1, {**shared, semconv.TOKENS.attributes[0]: "output"}, context)
        for objective in ("ttft", "tpot", "e2e"):
            self._add[semconv.SLO_RESULTS.name](1, {**shared, semconv.SLO_OBJECTIVE: objective}, context)
        self._add[semconv.QUEUE_TIME.name](spent[0], {**shared, semconv.QUEUE_TIME.attributes[0]: "idle"}, context)


async def in_span(span: Span, iterable: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield what an iterable yields; a span is current while it makes an item."""
    context, iterator = set_span_in_context(span), aiter(iterable)
    while True:
        token = attach(context)
        try:
            item = await anext(iterator)
        except StopAsyncIteration:
            return
        finally:
            detach(token)
        yield item


async def by_hand(tokens: int) -> AsyncIterator[bytes]:
    """Serve with the least that keeps the time of each token and writes the spans of a request.

    The span is current in each step of the engine, as the contract has it, and nowhere else.
    """
    floor: ByHand = app.state.by_hand
    span = floor.tracer.start_span(f"chat {MODEL}", attributes=LABELS)
    bounds, log = [perf_counter_ns()], []
    async with slots:
        bounds += [perf_counter_ns(), perf_counter_ns()]
        async for token in in_span(span, engine(tokens)):
            log.append(perf_counter_ns())
            yield frame(token)
    floor.end(OpenRequest(span, [*bounds, log[0]], log, time_ns() - perf_counter_ns()))


MODES: dict[str, Callable[[int], AsyncIterator[bytes]]] = {
    "plain": plain,
    "stream": lambda tokens: streamed(tokens, telemetry().request()),
    "token": lambda tokens: marked(tokens, telemetry().request()),
    "naive": naive,
    "hand": by_hand,
}


@app.post("/answer/{mode}/{tokens}")
async def answer(mode: str, tokens: int) -> StreamingResponse:
    """Stream an answer."""
    return StreamingResponse(MODES[mode](tokens), media_type="text/event-stream")


@app.get("/cpu")
async def cpu() -> Response:
    """Return the CPU nanoseconds that the process has taken, once every finished span is exported or given up."""
    await asyncio.to_thread(telemetry().tracer_provider.force_flush, 5000)
    return Response(str(process_time_ns()))


def main() -> None:
    """Serve on loopback until killed."""
    app.state.telemetry = Telemetry(sys.argv[2])
    app.state.by_hand = ByHand(app.state.telemetry)
    stack = STACKS[sys.argv[3]]
    uvicorn.run(
        app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False, backlog=4096, **stack
    )


if __name__ == "__main__":
    main()
