"""One iteration of a batching engine as a block."""

from __future__ import annotations

from typing import Any

import pytest

import otel_lifecycle as lifecycle
from tests.support.telemetry import Telemetry


def in_prefill(telemetry: Telemetry, **given: Any) -> Any:
    """Open a request whose input is ready."""
    request = telemetry.request(model="tiny", **given)
    request.admit()
    request.input_ready()
    return request


def steps(telemetry: Telemetry) -> dict[str, tuple[int | None, float | None]]:
    """Return kind -> number of iterations and sum of their requests."""
    points = telemetry.points("inference.step.requests")
    timed = {point["attributes"]["inference.step.kind"]: point["count"] for point in telemetry.points(DURATION)}
    found = {point["attributes"]["inference.step.kind"]: (point["count"], point["sum"]) for point in points}
    assert {kind: count for kind, (count, _) in found.items()} == timed
    return {str(kind): value for kind, value in found.items()}


DURATION = "inference.step.duration"


def test_one_iteration_marks_all_of_its_requests(telemetry: Telemetry) -> None:
    """Who decodes gets a token, who ends its prefill its first one, all at one instant; the third stays in prefill."""
    decoding, ending, staying = (in_prefill(telemetry) for _ in range(3))
    decoding.first_token()
    with lifecycle.engine_step(decode=[decoding], prefill=[ending, staying]) as step:
        step.first_token(ending)
    assert [request.state for request in (decoding, ending, staying)] == ["decode", "decode", "prefill"]
    assert steps(telemetry) == {"mixed": (1, 3)}
    with lifecycle.engine_step(decode=[decoding, ending], prefill=[staying]):
        pass
    for request in (decoding, ending):
        request.complete()
    staying.cancel()
    reports = [request.report for request in (decoding, ending, staying)]
    assert [report["output_tokens"] for report in reports] == [3, 2, 0]
    marked = [report["token_times"] for report in reports]
    assert marked[0][1:] == marked[1]


def test_kinds(telemetry: Telemetry) -> None:
    """The histograms tell iterations by what their requests did."""
    decoding, prefilling = in_prefill(telemetry), in_prefill(telemetry)
    decoding.first_token()
    for _ in range(2):
        with lifecycle.engine_step(prefill=[prefilling]):
            pass
    with lifecycle.engine_step(decode=[decoding]):
        pass
    with lifecycle.engine_step():
        pass
    assert steps(telemetry) == {"prefill": (2, 2), "decode": (1, 1)}
    point = telemetry.point(DURATION, inference__step__kind="decode")
    assert (point["unit"], point["attributes"]["gen_ai.request.model"]) == ("s", "tiny")
    decoding.complete()
    prefilling.cancel()


def test_iteration_that_fails(telemetry: Telemetry) -> None:
    """The exception goes on, and nothing is marked or recorded: no token came of it."""
    request = in_prefill(telemetry)
    request.first_token()
    with pytest.raises(ZeroDivisionError), lifecycle.engine_step(decode=[request]):
        raise ZeroDivisionError
    request.complete()
    assert (request.report["output_tokens"], steps(telemetry)) == (1, {})


def test_no_sdk_and_requests_that_ended(telemetry: Telemetry) -> None:
    """Without a request that is real there is nothing to record; one that has ended wasted its token."""
    ended = in_prefill(telemetry)
    ended.cancel()
    with lifecycle.engine_step(decode=[lifecycle.current(), ended]) as step:
        step.first_token(lifecycle.current())
    assert telemetry.point("inference.tokens", inference__token__direction="wasted")["value"] == 1
