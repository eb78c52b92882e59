"""Cases of trace context: what is current where, and which trace an exemplar belongs to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace

import otel_lifecycle as lifecycle
from tests.support.telemetry import Telemetry


def parents(telemetry: Telemetry) -> dict[str, str | None]:
    """Return the name of the parent of every span."""
    spans = telemetry.spans()
    names = {span["span_id"]: span["name"] for span in spans}
    return {span["name"]: names.get(span["parent_id"] or "") for span in spans}


def traced_async(telemetry: Telemetry) -> Any:
    """Return a traced async generator whose body makes spans."""

    @lifecycle.traced(model="tiny", tracer_provider=telemetry.tracer_provider)
    async def generate() -> AsyncIterator[int]:
        for token in range(3):
            with telemetry.tracer().start_as_current_span(f"engine {token}"):
                await asyncio.sleep(0)
            yield token

    return generate()


def traced_sync(telemetry: Telemetry) -> Any:
    """Return a traced sync generator whose body makes spans."""

    @lifecycle.traced(model="tiny", tracer_provider=telemetry.tracer_provider)
    def generate() -> Iterator[int]:
        for token in range(3):
            with telemetry.tracer().start_as_current_span(f"engine {token}"):
                pass
            yield token

    return generate()


def streamed(telemetry: Telemetry) -> Any:
    """Return a stream of a request, around an engine that makes spans."""

    def engine() -> Iterator[int]:
        for token in range(3):
            with telemetry.tracer().start_as_current_span(f"engine {token}"):
                pass
            yield token

    def serve() -> Iterator[int]:
        with telemetry.request(model="tiny") as request:
            yield from request.stream(engine())

    return serve()


async def consume(telemetry: Telemetry, stream: Any) -> list[Any]:
    """Read a stream as a consumer that makes spans of its own; return what was current between the tokens."""
    seen: list[Any] = []

    def look(token: int) -> None:
        seen.append(trace.get_current_span())
        with telemetry.tracer().start_as_current_span(f"consumer {token}"):
            pass

    if hasattr(stream, "__aiter__"):
        async for token in stream:
            look(token)
    else:
        for token in stream:
            look(token)
    return seen


@pytest.mark.parametrize("make", [traced_async, traced_sync, streamed], ids=lambda make: str(make.__name__))
def test_c61_consumer_is_not_inside_the_request(telemetry: Telemetry, make: Callable[[Telemetry], Any]) -> None:
    """Spans made in the generator's body are children of the request; the consumer's own are not."""

    async def main() -> tuple[Any, list[Any]]:
        with telemetry.tracer().start_as_current_span("application") as application:
            return application, await consume(telemetry, make(telemetry))

    application, seen = asyncio.run(main())
    assert seen == [application] * 3
    found = parents(telemetry)
    assert {name: found[name] for name in found if name.startswith(("consumer", "engine", "chat"))} == {
        "chat tiny": "application",
        **{f"consumer {token}": "application" for token in range(3)},
        **{f"engine {token}": "chat tiny" for token in range(3)},
    }


@pytest.mark.parametrize("make", [traced_async, traced_sync, streamed], ids=lambda make: str(make.__name__))
def test_c61_current_request_is_not_the_consumers(telemetry: Telemetry, make: Callable[[Telemetry], Any]) -> None:
    """Between the tokens, current() finds what it found before there was a request."""
    outside = lifecycle.current()
    seen: list[Any] = []

    async def main() -> None:
        stream = make(telemetry)
        if hasattr(stream, "__aiter__"):
            seen.extend([lifecycle.current() async for _ in stream])
        else:
            seen.extend([lifecycle.current() for _ in stream])

    asyncio.run(main())
    assert [found is outside for found in seen] == [True] * 3


def test_c61_closed_from_another_task(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """A stream begun in one task and closed in another detaches nothing that is not its own, and logs nothing."""

    async def main() -> None:
        stream = traced_async(telemetry)
        assert await stream.__anext__() == 0
        await asyncio.create_task(stream.aclose())

    asyncio.run(main())
    outcome = telemetry.span("chat tiny")["attributes"]["inference.outcome"]
    assert (outcome, caplog.records) == ("cancelled", [])


def manual(telemetry: Telemetry) -> None:
    """End a request by its handle."""
    request = telemetry.request(model="tiny")
    request.admit()
    request.input_ready()
    request.first_token()
    request.token()
    request.complete()


def block(telemetry: Telemetry) -> None:
    """End a request by its block."""
    with telemetry.request(model="tiny") as request:
        request.admit()
        request.input_ready()
        request.first_token()
        request.token()


def within_another(telemetry: Telemetry) -> None:
    """End a request while a span that has nothing to do with it is current."""
    request = telemetry.request(model="tiny")
    with telemetry.tracer().start_as_current_span("other"):
        request.admit()
        request.input_ready()
        request.first_token()
        request.token()
        request.complete()


@pytest.mark.parametrize("serve", [manual, block, within_another], ids=lambda serve: str(serve.__name__))
def test_c73_exemplars_are_of_the_request(telemetry: Telemetry, serve: Callable[[Telemetry], None]) -> None:
    """Every histogram of a request has that request's trace and span as its exemplar."""
    serve(telemetry)
    points = [point for point in telemetry.points() if point["type"] == "histogram"]
    span = telemetry.span("chat tiny")
    assert {point["metric"] for point in points} >= {
        "inference.time_to_first_token",
        "inference.time_per_output_token",
        "inference.inter_token_latency",
        "inference.stage.duration",
        "inference.request.duration",
        "gen_ai.server.request.duration",
    }
    found = {
        point["metric"]: {(exemplar["trace_id"], exemplar["span_id"]) for exemplar in point["exemplars"]}
        for point in points
    }
    assert found == {metric: {(span["trace_id"], span["span_id"])} for metric in found}
