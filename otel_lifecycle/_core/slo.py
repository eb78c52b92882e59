"""Service level objectives of single requests.

How it works.  An objective is a limit in seconds on one figure of a request.  It is judged only where that figure is
known, so missing evidence never counts as met or missed.  The request as a whole meets its SLO if it completed and met
every objective that was judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from otel_lifecycle._core.lifecycle import get_shape
from otel_lifecycle._core.text import shown
from otel_lifecycle._core.values import seconds
from otel_lifecycle.errors import ConfigurationError

WHOLE = "all"
"""The objective under which the verdict on the request as a whole is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a request must keep to, in seconds: ``ttft``, ``tpot``, ``e2e``; None is not an objective.

    An objective is judged only where its metric exists.  A request meets its SLO if it completed and met every
    objective that was judged.  Raises ConfigurationError unless each is a positive finite number and there is one.
    """

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def __post_init__(self) -> None:
        objectives = self._objectives()
        if all(value is None for value in objectives.values()):
            raise ConfigurationError(f"an SLO needs one of {', '.join(objectives)}")
        for name, value in objectives.items():
            limit = seconds(value)
            if value is not None and (limit is None or limit <= 0):
                raise ConfigurationError(
                    f"the SLO of {name} is {shown(value)}; it must be a positive number of seconds"
                )

    def _objectives(self) -> dict[str, float | None]:
        # Not by `dataclasses.fields`, which would be half of what judging costs.
        return {"ttft": self.ttft, "tpot": self.tpot, "e2e": self.e2e}

    def judge(self, figures: Mapping[str, Any], *, completed: bool) -> dict[str, bool]:
        """Return each objective that can be judged and whether it was met, and the whole under :data:`WHOLE`."""
        verdict = {
            name: figures[name] <= limit
            for name, limit in self._objectives().items()
            if limit is not None and figures.get(name) is not None
        }
        # A request that did not complete misses its SLO, however good its figures are.
        return {**verdict, WHOLE: completed and all(verdict.values())}


def missed_stages(results: Mapping[str, bool], stages: Mapping[str, float], shape: str) -> dict[str, str]:
    """Return the stage that took most of the time that each missed objective covers.

    TTFT covers the stages up to the first token, TPOT the decode, E2E all of them.  Where one of those is not known,
    nothing is said.  ``stages``: the seconds of each that is known.
    """
    every = [stage.name for stage in get_shape(shape).stages]
    covered = {"ttft": [name for name in every if name != "decode"], "tpot": ["decode"], "e2e": every}
    return {
        name: max(covered[name], key=stages.__getitem__)
        for name, met in results.items()
        # The whole is not in `covered`: no single stage can be blamed for it.
        if not met and name in covered and stages.keys() >= set(covered[name])
    }
