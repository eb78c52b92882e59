"""Cases of how a request ends: deadlines, cancellations, generators closed early, tokens after the end."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Generator
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from tests.support.plain import Span
from tests.support.telemetry import Telemetry

from .live import near, play
from .notation import NS
from .table import BY_ID


def prefilling(telemetry: Telemetry, **arguments: Any) -> Any:
    """Open a request and bring it to prefill."""
    request = telemetry.request(model="tiny", **arguments)
    request.admit()
    request.input_ready()
    return request


def decoding(telemetry: Telemetry, **arguments: Any) -> Any:
    """Open a request and bring it to decode."""
    request = prefilling(telemetry, **arguments)
    request.first_token()
    return request


def end(span: Span) -> dict[str, Any]:
    """Return what a span says of its end."""
    names = ("inference.outcome", "inference.failure.stage", "inference.end.reason", "error.type")
    return {name: span["attributes"][name] for name in names if name in span["attributes"]} | {"status": span["status"]}


def outcomes(telemetry: Telemetry) -> dict[str, float | None]:
    """Return the requests counted, by outcome."""
    points = telemetry.points("inference.requests")
    return {point["attributes"]["inference.outcome"]: point["value"] for point in points}


# -------------------------------------------------------------------------------------------------- C35: deadlines


async def wait_for_the_engine(request: Any, seen: list[BaseException]) -> None:
    """Serve a request whose engine never answers; note what came out of its block."""
    try:
        with request:
            await asyncio.sleep(3600)
    except BaseException as error:
        seen.append(error)
        raise


@pytest.mark.parametrize(
    ("deadline", "outcome"), [(1.0, "timed_out"), (3600.0, "cancelled"), (None, "cancelled")], ids=repr
)
def test_c35_cancelled_by_a_deadline(telemetry: Telemetry, deadline: float | None, outcome: str) -> None:
    """wait_for cancels from outside: a timeout if the deadline is known and reached, else a cancel; never complete."""
    seen: list[BaseException] = []

    async def main() -> None:
        arrival = time.time_ns() - 2 * NS
        request = prefilling(telemetry, deadline=deadline, arrived_at_ns=arrival)
        await asyncio.wait_for(wait_for_the_engine(request, seen), 0.02)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(main())
    assert [type(error) for error in seen] == [asyncio.CancelledError]
    span = telemetry.span("chat tiny")
    assert (span["attributes"]["inference.outcome"], span["attributes"]["inference.failure.stage"]) == (
        outcome,
        "prefill",
    )
    assert "inference.ttft" not in span["attributes"]
    assert outcomes(telemetry) == {outcome: 1}


@pytest.mark.parametrize(
    ("elapsed", "deadline", "outcome"),
    [(0.493, 0.5, "timed_out"), (99.5, 100, "timed_out"), (98.0, 100, "cancelled"), (0.1, 0.5, "cancelled")],
)
@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit])
def test_c35_tolerance(
    telemetry: Telemetry, elapsed: float, deadline: float, outcome: str, error: type[BaseException]
) -> None:
    """The caller's clock starts a little before ours: 10 ms or 1 % before the deadline it is reached."""
    arrival = time.time_ns() - int(elapsed * NS)
    request = prefilling(telemetry, deadline=deadline, arrived_at_ns=arrival)
    with pytest.raises(error), request:
        raise error
    assert outcomes(telemetry) == {outcome: 1}


def test_c35_first_end_wins(telemetry: Telemetry) -> None:
    """The block was cancelled; what the outer code says afterwards is a second end, counted and without effect."""
    request = prefilling(telemetry)
    with pytest.raises(asyncio.CancelledError), request:
        raise asyncio.CancelledError
    request.timeout("deadline")
    assert end(telemetry.span("chat tiny")) == {
        "inference.outcome": "cancelled",
        "inference.failure.stage": "prefill",
        "status": "UNSET",
    }
    assert outcomes(telemetry) == {"cancelled": 1}
    violations = telemetry.point("inference.transition.violations")
    assert (violations["attributes"]["inference.violation.kind"], violations["value"]) == ("duplicate_terminal", 1)


def test_c35_end_within_the_block_wins(telemetry: Telemetry) -> None:
    """The other order: the server called timeout, and the cancellation that follows adds nothing."""
    request = prefilling(telemetry)

    def serve() -> None:
        with request:
            request.timeout("deadline")
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        serve()
    assert end(telemetry.span("chat tiny")) == {
        "inference.outcome": "timed_out",
        "inference.failure.stage": "prefill",
        "inference.end.reason": "deadline",
        "error.type": "timeout",
        "status": "ERROR",
    }
    assert telemetry.points("inference.transition.violations") == []


# ---------------------------------------------------------------------------------- C36: what except Exception misses

CANCELLED = {"inference.outcome": "cancelled", "inference.failure.stage": "decode", "status": "UNSET"}
ENDS = [
    pytest.param(asyncio.CancelledError, CANCELLED, id="CancelledError"),
    pytest.param(GeneratorExit, CANCELLED, id="GeneratorExit"),
    pytest.param(KeyboardInterrupt, CANCELLED | {"inference.end.reason": "shutdown"}, id="KeyboardInterrupt"),
    pytest.param(SystemExit, CANCELLED | {"inference.end.reason": "shutdown"}, id="SystemExit"),
    pytest.param(
        TimeoutError,
        {
            "inference.outcome": "timed_out",
            "inference.failure.stage": "decode",
            "error.type": "timeout",
            "status": "ERROR",
        },
        id="TimeoutError",
    ),
    pytest.param(
        ZeroDivisionError,
        {
            "inference.outcome": "failed",
            "inference.failure.stage": "decode",
            "error.type": "ZeroDivisionError",
            "status": "ERROR",
        },
        id="ZeroDivisionError",
    ),
]


@pytest.mark.parametrize(("kind", "expected"), ENDS)
def test_c36_exception_out_of_the_block(
    telemetry: Telemetry, kind: type[BaseException], expected: dict[str, Any]
) -> None:
    """Every exception ends the request once, as what it is, and goes on unchanged."""
    request, raised = decoding(telemetry), kind()
    with pytest.raises(kind) as caught, request:
        raise raised
    assert caught.value is raised
    found = end(telemetry.span("chat tiny"))
    assert {name: value for name, value in found.items() if name in expected or kind is not TimeoutError} == expected
    assert sum(filter(None, outcomes(telemetry).values())) == 1


def test_c36_task_cancelled_in_decode(telemetry: Telemetry) -> None:
    """(a) A cancelled task is a cancelled request."""

    async def serve(request: Any, started: asyncio.Event) -> None:
        async with request:
            started.set()
            await asyncio.sleep(3600)

    async def main() -> None:
        started = asyncio.Event()
        task = asyncio.create_task(serve(decoding(telemetry), started))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert end(telemetry.span("chat tiny")) == CANCELLED


def test_c36_async_generator_closed(telemetry: Telemetry) -> None:
    """(b) aclose() after two tokens: cancelled in decode, with two tokens."""

    @lifecycle.traced(model="tiny", tracer_provider=telemetry.tracer_provider)
    async def generate() -> AsyncIterator[str]:
        for word in ("a", "b", "c"):
            yield word

    async def main() -> None:
        stream: Any = generate()
        assert [await stream.__anext__(), await stream.__anext__()] == ["a", "b"]
        await stream.aclose()

    asyncio.run(main())
    span = telemetry.span("chat tiny")
    assert (span["attributes"]["inference.outcome"], span["attributes"]["inference.streamed_tokens"]) == (
        "cancelled",
        2,
    )
    assert (span["status"], outcomes(telemetry)) == ("UNSET", {"cancelled": 1})


def test_c36_stream_closed(telemetry: Telemetry) -> None:
    """The same of a sync generator around request.stream."""

    def serve() -> Generator[int, None, None]:
        with decoding(telemetry) as request:
            yield from request.stream(iter(range(5)))

    stream = serve()
    assert [next(stream), next(stream)] == [0, 1]
    stream.close()
    assert end(telemetry.span("chat tiny")) == CANCELLED


# ------------------------------------------------------------------------------------------- C29, C30: after the end


def test_c29_server_that_runs_on_completes(telemetry: Telemetry) -> None:
    """The client is noted as gone; the outcome is what the engine did, and later tokens count."""
    with decoding(telemetry) as request:
        request.client_disconnected()
        request.token()
        request.token()
    found = telemetry.span("chat tiny")["attributes"]
    names = ("inference.outcome", "inference.client.disconnected", "inference.streamed_tokens", "inference.legal")
    assert [found[name] for name in names] == ["completed", True, 3, True]


def test_c30_tokens_after_the_end_are_wasted(telemetry: Telemetry) -> None:
    """One violation a request, each token counted as wasted, and the lag to the last of them once it is known."""
    request = play(BY_ID["C30"], telemetry)
    for late in range(2, 12):
        request.token(at_ns=1_700_000_002 * NS + late * NS // 100)
    report = request.report
    wasted = telemetry.point("inference.tokens", inference__token__direction="wasted")
    violations = telemetry.point("inference.transition.violations")
    assert (wasted["value"], violations["value"]) == (11, 1)
    assert (report["output_tokens"], report["timestamps"]["terminal"]) == (2, 1_700_000_002 * NS)
    del request
    gc.collect()
    lag = telemetry.point("inference.cancel.lag")
    assert (lag["count"], lag["sum"]) == (1, near(0.11))


def test_c30_wasted_chunk_counts_its_tokens(telemetry: Telemetry) -> None:
    """A late chunk wastes as many tokens as it holds."""
    request = decoding(telemetry)
    request.cancel()
    request.token(4)
    request.token(2)
    wasted = telemetry.point("inference.tokens", inference__token__direction="wasted")
    assert wasted["value"] == 6
    output = telemetry.point("inference.tokens", inference__token__direction="output")
    assert output["value"] == 1
