"""Serves short requests that end in every way there is, under ``configure()``: ``soak.py COUNT``.

Prints, every twentieth part, how many were served and the resident memory in bytes; at the end how many were opened.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator

import otel_lifecycle as lifecycle
from otel_lifecycle.resources import process_memory
from tests.faults.programs.serving import say, serve_one

PARTS = 20


def complete(number: int) -> None:
    """Serve it to its end."""
    serve_one(tokens=8)


def fail(number: int) -> None:
    """Raise out of a stage."""
    try:
        with lifecycle.request(model="tiny", request_id=f"id-{number}") as request, request.stage("queue"):
            raise ValueError(number)
    except ValueError:
        pass


def drop(number: int) -> None:
    """Lose the handle in a cycle."""
    cycle: list[object] = [lifecycle.request(model=f"model-{number}")]
    cycle.append(cycle)


def leave(number: int) -> None:
    """Leave a generator in the middle."""

    @lifecycle.traced(model="tiny")
    def answer() -> Iterator[int]:
        yield from range(8)

    for token in answer():
        if token == 3:
            return


def go_on(number: int) -> None:
    """Produce tokens after the end, as a backend does whose client has left."""
    request = lifecycle.request(model="tiny")
    for _ in range(3):
        request.token()
    request.cancel("client_disconnected")
    request.token()


def stream(number: int) -> None:
    """Stream in an event loop, several at once."""

    async def generate() -> AsyncIterator[int]:
        for token in range(8):
            await asyncio.sleep(0)
            yield token

    async def one() -> None:
        with lifecycle.request(model="tiny") as request:
            async for _ in request.stream(generate()):
                pass

    async def several() -> None:
        await asyncio.gather(*(one() for _ in range(STREAMS)))

    asyncio.run(several())


STREAMS = 10
KINDS = (complete, complete, complete, complete, fail, drop, leave, go_on)


def main(count: int) -> None:
    """Run."""
    lifecycle.configure()
    opened = 0
    for part in range(PARTS):
        for number in range(count * part // PARTS, count * (part + 1) // PARTS - STREAMS):
            KINDS[number % len(KINDS)](number)
            opened += 1
        stream(part)
        opened += STREAMS
        ((resident, _),) = process_memory()
        say(opened, int(resident))
    say("opened", opened)


if __name__ == "__main__":
    main(int(sys.argv[1]))
