"""Cases of requests that have not ended, and of those that must no longer be counted as open."""

from __future__ import annotations

import time

from tests.support.telemetry import Telemetry

from .notation import NS


def active(telemetry: Telemetry) -> dict[str, float | None]:
    """Return the requests in flight by stage, zeros too."""
    points = telemetry.points("inference.active_requests")
    return {point["attributes"]["inference.stage"]: point["value"] for point in points}


def test_c26_cancelled_in_the_queue(telemetry: Telemetry) -> None:
    """The gauge goes up to 1 and comes down to 0; it does not vanish."""
    request = telemetry.request(model="tiny")
    before = active(telemetry)
    request.cancel()
    assert (before, active(telemetry)) == ({"queue": 1}, {"queue": 0})


def test_c39_stuck_request_shows(telemetry: Telemetry) -> None:
    """Ten minutes in prefill: no outcome, one active request, and its age."""
    now = time.time_ns()
    request = telemetry.request(model="tiny", arrived_at_ns=now - 600 * NS)
    request.admit(at_ns=now - 599 * NS)
    request.input_ready(at_ns=now - 598 * NS)
    assert {stage: count for stage, count in active(telemetry).items() if count} == {"prefill": 1}
    (age,) = telemetry.points("inference.oldest_request.age")
    assert age["value"] is not None
    assert age["value"] >= 600
    assert [point for point in telemetry.points("inference.requests") if point["value"]] == []
    assert request.report is None


def test_c55_jammed_queue_shows_before_anything_ends(telemetry: Telemetry) -> None:
    """Three queued requests, none admitted: no sample in the queue histogram, three in the gauge."""
    now = time.time_ns()
    requests = [telemetry.request(model="tiny", arrived_at_ns=now - 30 * NS) for _ in range(3)]
    assert active(telemetry) == {"queue": 3}
    assert telemetry.points("inference.stage.duration") == []
    requests[0].admit()
    assert active(telemetry) == {"queue": 2, "preprocessing": 1}
    for request in requests:
        request.cancel()
    assert active(telemetry) == {"queue": 0, "preprocessing": 0}


def test_c43_preempted_request_is_not_in_the_stage_it_left(telemetry: Telemetry) -> None:
    """While it waits to be resumed it is counted as preempted."""
    request = telemetry.request(model="tiny")
    request.admit()
    request.input_ready()
    request.first_token()
    request.preempt()
    found = {stage: count for stage, count in active(telemetry).items() if count}
    request.resume()
    request.complete()
    assert found == {"preempted": 1}
    assert set(active(telemetry).values()) == {0}


def test_c50_new_attempt_is_one_active_request(telemetry: Telemetry) -> None:
    """A retry does not count its failed forerunner a second time."""
    first = telemetry.request(model="tiny", attempt=1, request_id="r")
    first.fail("engine_error")
    second = telemetry.request(model="tiny", attempt=2, request_id="r", previous=first)
    assert active(telemetry) == {"queue": 1}
    second.cancel()
    assert active(telemetry) == {"queue": 0}
