"""One run of the demo's server under a fixed load, written down as OTLP JSON.

    python -m tests.cli.demo_run SLOTS FILE [--requests N] [--mix long]

Eight clients send the same prompts in the same order, each the next one as soon as it has its answer.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from random import Random

import httpx
from opentelemetry import trace

from examples import llama_server, model
from examples.engine import Engine
from examples.load import chapter
from tests.cli.live import Server, server

CLIENTS = 8
PROMPTS = {
    "short": ("Name three colours.", "Why is the sky blue?", "Say hello in French.", "What is two plus two?"),
    "long": (chapter("with", 1800), chapter("lambda", 1800)),
}


def asks(mix: str, requests: int) -> Iterator[tuple[str, int]]:
    """Yield (prompt, tokens to answer with); the seed is fixed, so two runs of a mix are the same workload."""
    random = Random(7)
    for prompt, _ in zip(cycle(PROMPTS[mix]), range(requests), strict=False):
        yield prompt, random.choice((8, 12, 16, 24))


async def play(address: str, todo: Iterator[tuple[str, int]]) -> None:
    """Send the load, as many at a time as there are clients."""
    async with httpx.AsyncClient(base_url=address, timeout=300, trust_env=False) as client:

        async def send() -> None:
            for prompt, tokens in todo:
                body = {
                    "messages": [{"role": "user", "content": prompt}],
                    "max_tokens": tokens,
                    "ignore_eos": True,
                }
                answer = await client.post("/v1/chat/completions", json=body)
                answer.raise_for_status()

        await asyncio.gather(*(send() for _ in range(CLIENTS)))


def run(made: Server, slots: int, requests: int, mix: str) -> bytes:
    """Serve the load and return the spans and metrics as lines."""
    trace.set_tracer_provider(made.provider)
    engine = Engine(model.fetch(), name=model.NAME, slots=slots)
    with llama_server.served(engine) as address:
        asyncio.run(play(address, asks(mix, requests)))
    return made.json_line() + made.metrics_line()


def main() -> None:
    """Run once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("slots", type=int)
    parser.add_argument("file", type=Path)
    parser.add_argument("--requests", type=int, default=72)
    parser.add_argument("--mix", choices=list(PROMPTS), default="short")
    options = parser.parse_args()
    with server(token_times=True) as made:
        options.file.write_bytes(run(made, options.slots, options.requests, options.mix))


if __name__ == "__main__":
    main()
