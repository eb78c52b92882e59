"""A request whose arrival is in the future, because the clock of its caller is ahead of ours."""

from __future__ import annotations

import time

from tests.support.telemetry import Telemetry


def test_a_stage_does_not_end_before_it_began(telemetry: Telemetry) -> None:
    """The span of a block spent in a stage has no negative length."""
    with telemetry.request(arrived_at_ns=time.time_ns() + 10 * 10**9) as request:
        with request.stage("queue"):
            pass
        request.cancel()
    spans = telemetry.spans()
    assert [span["name"] for span in spans if span["end_ns"] < span["start_ns"]] == []
    assert [span["name"] for span in spans] == ["queue", "chat"]
