"""Which events show, where they come, that the boundaries before them have been passed."""

from __future__ import annotations

from typing import Final

from otel_lifecycle._core.lifecycle import Shape

PASSING: Final = frozenset({"admit", "input_ready", "first_token", "output", "complete"})
"""Events that pass what lies before them.  A preemption does not: it says nothing of how far the request had come."""


def allowing_ahead(shape: Shape, state: str, event: str) -> str | None:
    """Return the state ahead of ``state`` that allows an event; None where no state up to prefill does.

    Decode is left out: a request passes into it by a token, which nobody has seen.
    """
    before_output = [stage.state for stage in shape.stages[:3]]
    if event not in PASSING or state not in before_output:
        return None
    ahead = before_output[before_output.index(state) + 1 :]
    return next((one for one in ahead if event in shape.table[one]), None)
