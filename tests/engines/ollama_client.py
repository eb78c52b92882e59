"""Calls of Ollama's Python client with the drop-in on: ``python -m tests.engines.ollama_client URL COUNT OUT``."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import ollama

from otel_lifecycle import configure, shutdown
from otel_lifecycle.integrations import ollama as drop_in

MESSAGES = [{"role": "user", "content": "say something"}]
OPTIONS = {"num_predict": 6, "temperature": 0}


def _sync(base: str, number: int) -> Any:
    """Return the last part of one answer."""
    client = ollama.Client(base)
    if number % 2 == 0:
        return client.chat("tiny", MESSAGES, options=OPTIONS)
    return list(client.generate("tiny", "say something", stream=True, options=OPTIONS))[-1]


async def _asynchronous(base: str) -> Any:
    answer: Any = await ollama.AsyncClient(base).chat("tiny", MESSAGES, stream=True, options=OPTIONS)
    return [part async for part in answer][-1]


def main() -> None:
    """Make the calls, and write what Ollama says of them."""
    base, count = sys.argv[1], int(sys.argv[2])
    configure(service_name="ollama-client")
    assert drop_in.instrument()
    last = [asyncio.run(_asynchronous(base)) if number % 3 == 2 else _sync(base, number) for number in range(count)]
    shutdown()
    told = {
        "requests": len(last),
        "tokens": sum(part.eval_count for part in last),
        "prefill": sum(part.prompt_eval_duration or 0 for part in last) / 1e9,
    }
    Path(sys.argv[3]).write_text(json.dumps(told))


if __name__ == "__main__":
    main()
