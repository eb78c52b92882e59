"""``make demo``: serve a real model, load it, and show where each request spent its time.

    python -m examples.demo [--model my.gguf]

With OTEL_EXPORTER_OTLP_ENDPOINT set, the same spans and the metrics also go to that Collector.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import otel_lifecycle as lifecycle
from examples import breakdown, llama_server, load, model
from otel_lifecycle import semconv
from otel_lifecycle.processor import LifecycleSpanProcessor

SERVICE: Final = "lifecycle-demo"
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PATIENCE: Final = 15.0
"""Seconds to wait, after the last answer, for the last span: a client that left does not see its request end."""


def set_up(memory: InMemorySpanExporter) -> str | None:
    """Send finished spans to ``memory``, and to a Collector if the environment names one; return its address."""
    endpoint = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), None)
    if endpoint is None:
        # No exporter without a Collector: it would log its failures between the tables.
        provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}))
        provider.add_span_processor(LifecycleSpanProcessor())
        trace.set_tracer_provider(provider)
    else:
        lifecycle.configure(service_name=SERVICE)
    # Not batched: the tables are printed right after the last request has ended.
    trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(memory))  # type: ignore[attr-defined]  # the API's own type has no processors
    return endpoint


def run(path: Path, console: Console, memory: InMemorySpanExporter) -> tuple[list[load.Act], list[list[load.Answer]]]:
    """Load the model, serve it, send the load, and wait until every request has ended."""
    with console.status("loading the model"):
        engine = llama_server.load(path)
    acts = list(load.acts())
    total = sum(len(act.asks) for act in acts)
    console.print(
        f"[bold]{engine.name}[/bold] on llama.cpp, {engine.slots} slots of {engine.context} tokens; "
        f"{total} requests over HTTP, about a minute"
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        llama_server.served(engine) as address,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task("requests answered", total=total)
        answers = asyncio.run(load.play(address, acts, lambda _: progress.advance(task)))
        deadline = time.monotonic() + PATIENCE
        # Inside the block that serves: a server that stops would cancel what is still running.
        while len(breakdown.read_requests(memory.get_finished_spans())) < total and time.monotonic() < deadline:
            time.sleep(0.05)
    return acts, answers


def show(
    console: Console, acts: Sequence[load.Act], answers: Sequence[Sequence[load.Answer]], memory: InMemorySpanExporter
) -> bool:
    """Print the breakdown; return whether every request that was sent left exactly one legal span."""
    found = breakdown.read_requests(memory.get_finished_spans())
    ascii_only = console.options.ascii_only
    console.print("From arrival to end:", breakdown.legend(ascii_only=ascii_only))
    console.print("in/out: tokens.  Bottleneck: the stage that took 45% of the time or more, else mixed.", style="dim")
    console.print("Beside: what most of the requests that held this one were doing meanwhile.", style="dim")
    for act, given in zip(acts, answers, strict=True):
        rows = [
            (f"{row} {answer.ask.label}", found[answer.request_id])
            for row, answer in enumerate(given, start=1)
            if answer.request_id in found
        ]
        console.print()
        console.print(breakdown.request_table(rows, title=act.title, width=console.width, ascii_only=ascii_only))
    requests = list(found.values())
    summary = lifecycle.summarize_workload(breakdown.results(requests))
    console.print(f"\n[bold]The workload: {breakdown.success_line(summary)}[/bold]")
    console.print(breakdown.latency_table(summary), "", breakdown.count_table(requests, summary), "", sep="\n")
    flat = [answer for given in answers for answer in given]
    console.print(*breakdown.violation_lines(requests), sep="\n")
    console.print(ground_truth(flat, found))
    missing = [answer.request_id for answer in flat if answer.request_id not in found]
    if missing:
        console.print(f"[red]no span came for {', '.join(missing)}[/red]")
    return not missing and not any(request.violations for request in requests)


def names(acts: Sequence[load.Act], answers: Sequence[Sequence[load.Answer]]) -> dict[str, str]:
    """Return where each request stands in the tables, by its id: labels occur more than once."""
    return {
        answer.request_id: f"{act.title.partition(':')[0]} {row} ({answer.ask.label})"
        for act, given in zip(acts, answers, strict=True)
        for row, answer in enumerate(given, start=1)
    }


def ground_truth(answers: Sequence[load.Answer], found: dict[str, breakdown.Request]) -> str:
    """Compare what was measured around the engine with llama.cpp's own timings of the same requests."""
    pairs = [(answer.timings, found[answer.request_id].attributes) for answer in answers if answer.timings]
    prefill = [attributes[semconv.PREFILL] * 1000 - timings["prompt_ms"] for timings, attributes in pairs]
    decode = [attributes[semconv.TOKEN_SPAN] * 1000 - timings["predicted_ms"] for timings, attributes in pairs]
    if not pairs:
        return "llama.cpp gave no timings to hold this against."
    return (
        f"Held against llama.cpp's own timings, median of {len(pairs)} requests: "
        f"prefill {statistics.median(prefill):+.1f} ms, decode {statistics.median(decode):+.1f} ms."
    )


def main() -> int:
    """Run the demo; the exit code is 0 if every request was accounted for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0].replace("``", ""))
    parser.add_argument("--model", type=Path, help="a GGUF file of your own; without it a small one is fetched once")
    arguments = parser.parse_args()
    # The width of an output that is not a terminal is unknown, and 80 columns are too few for the bars.
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 100, highlight=False)
    memory = InMemorySpanExporter()
    endpoint = set_up(memory)
    try:
        with console.status(f"looking for the model, or fetching it once ({model.MEGABYTES} MB)"):
            path = model.find(arguments.model)
        acts, answers = run(path, console, memory)
        accounted = show(console, acts, answers, memory)
    except model.ModelUnavailable as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("stopped")
        return 130
    finally:
        lifecycle.shutdown()
    console.print(
        f"The same run went to {endpoint}."
        if endpoint
        else "Set OTEL_EXPORTER_OTLP_ENDPOINT to send the same run to a Collector as well."
    )
    found = breakdown.read_requests(memory.get_finished_spans())
    console.print(breakdown.worst_pair(found.values(), names(acts, answers)))
    return 0 if accounted else 1


if __name__ == "__main__":
    sys.exit(main())
