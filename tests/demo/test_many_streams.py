"""Three hundred streams at once against the example server, a tenth of the clients leaving early."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from examples import load
from otel_lifecycle import semconv

if TYPE_CHECKING:
    from tests.support.plain import Span
    from tests.support.telemetry import Telemetry

pytestmark = pytest.mark.demo

STAY, LEAVE_IN_DECODE, LEAVE_IN_QUEUE = 270, 15, 15
ENDS = ("complete", "cancel", "timeout", "fail")


def asks() -> tuple[load.Ask, ...]:
    """Short requests; those that leave ask for far more than they stay for, and the last ones leave while they wait."""
    stay = [load.Ask(label="stays", prompt=f"Say {number}.", max_tokens=4) for number in range(STAY)]
    leave = [load.Ask(label="leaves", prompt="Tell a story.", max_tokens=1500, leaves_after=2)] * LEAVE_IN_DECODE
    waiting = [load.Ask(label="leaves at once", prompt="Hi.", max_tokens=4, leaves_after=0)] * LEAVE_IN_QUEUE
    # Every eighteenth of those that are served leaves; those that leave while they wait stand at the end of the line.
    mixed = [ask for number, one in enumerate(leave) for ask in (*stay[18 * number : 18 * number + 18], one)]
    return (*mixed, *waiting)


def wait_for_ends(telemetry: Telemetry, number: int) -> list[Span]:
    """Return the request spans once there are so many: a server learns a moment later that a client has left."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        spans = [span for span in telemetry.spans() if semconv.OUTCOME in span["attributes"]]
        if len(spans) >= number:
            return spans
        time.sleep(0.1)
    raise AssertionError(f"{len(spans)} of {number} requests ended")


def test_every_request_is_accounted_for_once(address: str, telemetry: Telemetry) -> None:
    """As many spans as requests, each with one outcome; clients, spans and counters agree; nothing stays active."""
    waiting: list[float] = []

    def answered(_: load.Answer) -> None:
        waiting.append(count(telemetry, semconv.ACTIVE_REQUESTS.name, semconv.STAGE).get("queue", 0))

    (answers,) = asyncio.run(load.play(address, [load.Act(title="", asks=asks())], answered))
    spans = wait_for_ends(telemetry, len(answers))
    by_id = {span["attributes"][semconv.REQUEST_ID]: span for span in spans}
    assert (len(spans), set(by_id)) == (300, {answer.request_id for answer in answers})

    outcomes = {load.DONE: "completed", load.LEFT: "cancelled"}
    assert Counter(answer.end for answer in answers) == {load.DONE: 270, load.LEFT: 30}
    assert [by_id[answer.request_id]["attributes"][semconv.OUTCOME] for answer in answers] == [
        outcomes[answer.end] for answer in answers
    ]
    assert [sum(event["name"] in ENDS for event in span["events"]) for span in spans] == [1] * 300
    assert {span["attributes"][semconv.LEGAL] for span in spans} == {True}

    stayed = [answer for answer in answers if answer.end == load.DONE]
    tokens = [by_id[answer.request_id]["attributes"][semconv.STREAMED_TOKENS] for answer in stayed]
    assert tokens == [answer.tokens for answer in stayed]

    assert count(telemetry, semconv.REQUESTS.name, semconv.OUTCOME) == {"completed": 270, "cancelled": 30}
    assert count(telemetry, semconv.REQUESTS.name, semconv.FAILURE_STAGE) == Counter(
        span["attributes"].get(semconv.FAILURE_STAGE) for span in spans
    )
    assert count(telemetry, semconv.TOKENS.name, semconv.TOKEN_DIRECTION)["output"] == sum(
        span["attributes"][semconv.STREAMED_TOKENS] for span in spans
    )
    assert telemetry.points(semconv.TRANSITION_VIOLATIONS.name) == []
    assert max(waiting) > 200
    assert set(count(telemetry, semconv.ACTIVE_REQUESTS.name, semconv.STAGE).values()) == {0}

    samples = sum(point["count"] or 0 for point in telemetry.points(semconv.TIME_TO_FIRST_TOKEN.name))
    assert samples == sum(semconv.TTFT in span["attributes"] for span in spans)


def count(telemetry: Telemetry, metric: str, attribute: str) -> dict[Any, float]:
    """Add up a counter's points by one of its attributes; None stands for those without it."""
    totals: dict[Any, float] = {}
    for point in telemetry.points(metric):
        label = point["attributes"].get(attribute)
        totals[label] = totals.get(label, 0) + (point["value"] or 0)
    return totals
