"""What the servers of every kind do in these tests, and what is expected of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from tests.integration.support_http import PARENT_ID, TRACE_ID, wait_for
from tests.support.plain import Span
from tests.support.telemetry import Telemetry

LEFT = {"inference.outcome": "cancelled", "inference.end.reason": "client_disconnected"}
COMPLETED = {"inference.outcome": "completed"}
DEADLINE = {"inference.outcome": "timed_out", "inference.end.reason": "deadline", "error.type": "timeout"}


class EngineError(RuntimeError):
    """What the engine of these tests raises."""


FAILED = {"inference.outcome": "failed", "error.type": f"{__name__}.EngineError"}


def refused(reason: str) -> dict[str, Any]:
    """Return how a request ends that is turned away."""
    return {"inference.outcome": "failed", "inference.end.reason": reason, "error.type": reason}


def engine(kind: str, pause: float = 0.005) -> Iterator[str]:
    """Three tokens; ``broken``: an error before the first, ``cut``: one after two, ``endless``: tokens without end."""
    if kind == "broken":
        raise EngineError(kind)
    count = 0
    while kind == "endless" or count < 3:
        if kind == "cut" and count == 2:
            raise EngineError(kind)
        time.sleep(pause)
        yield f"t{count} "
        count += 1


async def async_engine(kind: str, pause: float = 0.005) -> AsyncIterator[str]:
    """The same on an event loop."""
    tokens = engine(kind, 0)
    for token in tokens:
        await asyncio.sleep(pause)
        yield token


def request_spans(telemetry: Telemetry) -> list[Span]:
    """Every request span so far."""
    return [span for span in telemetry.spans() if "inference.outcome" in span["attributes"]]


def the_span(telemetry: Telemetry) -> Span:
    """The one request span, once it is there."""
    wait_for(lambda: request_spans(telemetry))
    found = request_spans(telemetry)
    assert len(found) == 1, found
    return found[0]


def ending_of(span: Span) -> dict[str, Any]:
    """How a request ended: outcome, reason and error type."""
    keys = ("inference.outcome", "inference.end.reason", "error.type")
    return {key: span["attributes"][key] for key in keys if key in span["attributes"]}


def check(telemetry: Telemetry, ending: dict[str, Any], *, tokens: int | None = None) -> Span:
    """Check that the one request ended so, legally, below the caller, with so many tokens; return its span."""
    span = the_span(telemetry)
    assert ending_of(span) == ending
    assert span["attributes"]["inference.legal"] is True
    assert (span["trace_id"], span["parent_id"]) == (TRACE_ID, PARENT_ID)
    if tokens is not None:
        assert span["attributes"].get("inference.streamed_tokens", 0) == tokens
    assert sum(point["value"] or 0 for point in telemetry.points("inference.active_requests")) == 0
    return span


class LoopThread:
    """An event loop in a thread; ``run`` awaits something there."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-loop", daemon=True)
        self._thread.start()

    def run(self, make: Callable[[], Any]) -> Any:
        """Await what ``make`` returns on the loop, and return its result."""

        async def call() -> Any:
            return await make()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(30)

    def stop(self) -> None:
        """Stop the loop."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()
