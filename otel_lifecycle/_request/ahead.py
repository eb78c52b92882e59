"""Which events show that the boundaries before them have been passed.

How it works.  A server may mark some boundaries and leave others out.  An event that is legal only in a later state
proves that the request has reached that state.  Rejected: to refuse such an event, which would lose a real boundary.
"""

from __future__ import annotations

from typing import Final

from otel_lifecycle._core.lifecycle import Shape

PASSING: Final = frozenset({"admit", "input_ready", "first_token", "output", "complete"})
"""Events that pass what lies before them.  A preemption does not: it does not say how far the request had come."""


def allowing_ahead(shape: Shape, state: str, event: str) -> str | None:
    """Return the state ahead of ``state`` that allows an event; None where no state up to prefill does.

    Decode is left out: a request passes into it by a token, which nobody has seen.
    """
    # Every shape has these three, in its own order; decode is the fourth.
    before_output = [stage.state for stage in shape.stages[:3]]
    if event not in PASSING or state not in before_output:
        return None
    ahead = before_output[before_output.index(state) + 1 :]
    return next((one for one in ahead if event in shape.table[one]), None)
