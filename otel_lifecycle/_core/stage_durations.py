"""How long each stage of a request has taken so far, before the request has ended.

How it works.  Only stages with both boundaries known by one clock are given.  The figures at the end of a request come
from its report instead, which also compares the clocks.
"""

from __future__ import annotations

from otel_lifecycle._core.timeline import Timeline


def stage_durations(timeline: Timeline, per_second: int) -> dict[str, float]:
    """Return the seconds of each stage that is over, by its name; stages of unknown length are left out.

    ``per_second``: units of the timeline's clock in a second.  A stage that two clocks bound has no known length here:
    they are compared only when the request has ended.
    """
    # Another thread may mark meanwhile, so the times are copied once.
    times, remote = dict(timeline.times), set(timeline.remote)
    durations = {}
    for stage in timeline.shape.stages:
        entered, left = times.get(stage.entered), times.get(stage.left)
        if entered is not None and left is not None and (stage.entered in remote) == (stage.left in remote):
            durations[stage.name] = (left - entered) / per_second
    return durations
