"""Boundaries that follow from how long stages took, for engines that tell nothing else.

How it works.  The stages after the queue are laid backwards from the first token; of a whole answer, whose first token
nobody saw, from the time it appeared.  The stages before the queue are laid forwards from arrival.  What remains is the
queue.  A boundary that was marked is never moved.  The report names every time that was found in this way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from otel_lifecycle._core.lifecycle import Shape, get_shape
from otel_lifecycle._core.report import Report
from otel_lifecycle._core.tokens import Time

TOLERANCE: Final = 0.02
"""How much longer than the request its stages may be, as a share of it: the engine's clock is read at other moments."""

QUEUE: Final = "queue"
OPTIONAL: Final = "preprocessing"
"""A stage that an engine need not tell of: what it took is then part of the queue."""


def with_derived(report: Report, durations: Mapping[str, Time], answered: Time | None = None) -> Report:
    """Return the report of a completed request with the boundaries that ``durations``, by stage, leave no choice about.

    It is returned as it is where they do not determine every missing boundary, or are longer than the request.
    ``durations`` are in the unit of the report.  ``answered``: when a whole answer appeared.
    """
    if not durations or report["status"] != "completed" or "foreign" in report:
        return report
    shape, known = get_shape(report["shape"]), report["timestamps"]
    times = _laid_out(known, shape, durations, answered)
    missing = [key for key in times or () if key not in known]
    if times is None or not missing:
        return report
    return {**report, "timestamps": {**times, **known}, "derived": missing}


def derived_stages(report: Report) -> list[str]:
    """Return the stages with a bound that was derived, in their order."""
    derived = report.get("derived", ())
    stages = get_shape(report["shape"]).stages
    return [stage.name for stage in stages if stage.entered in derived or stage.left in derived]


def _laid_out(
    known: Mapping[str, Time], shape: Shape, durations: Mapping[str, Time], answered: Time | None
) -> dict[str, Time] | None:
    """Return all boundaries in their order; None where one of them stays unknown."""
    keys = [*(stage.entered for stage in shape.stages), "terminal"]
    names = [stage.name for stage in shape.stages]
    queue = names.index(QUEUE)
    times: list[Time | None] = [known.get(key) for key in keys]
    first, last = times[0], times[-1]
    if first is None or last is None:
        return None
    _lay_forwards(times, names[:queue], durations)
    _lay_backwards(times, names, queue, durations, last if answered is None else answered)
    placed = [time for time in times if time is not None]
    if len(placed) < len(times) or not _fit(placed, TOLERANCE * (last - first)):
        return None
    return dict(zip(keys, _in_order(placed), strict=True))


def _lay_forwards(times: list[Time | None], names: Sequence[str], durations: Mapping[str, Time]) -> None:
    for i, name in enumerate(names):
        entered = times[i]
        if times[i + 1] is None and entered is not None:
            times[i + 1] = entered + durations.get(name, 0)


def _lay_backwards(
    times: list[Time | None], names: Sequence[str], queue: int, durations: Mapping[str, Time], answered: Time
) -> None:
    for i in range(len(names) - 1, queue, -1):
        # The engine's last stage ends when the answer is there, which may be before the end of the request.
        left = answered if i == len(names) - 1 else times[i + 1]
        took = durations.get(names[i], 0 if names[i] == OPTIONAL else None)
        if times[i] is None and left is not None and took is not None:
            times[i] = left - took


def _fit(times: Sequence[Time], tolerance: Time) -> bool:
    return all(later - earlier >= -tolerance for earlier, later in pairwise(times))


def _in_order(times: Sequence[Time]) -> list[Time]:
    """Return times between the first and the last that cross by no more than the tolerance, in order."""
    first, last = times[0], times[-1]
    ordered = list(times)
    # From the back: what was laid from the end is nearer to what the engine measured.
    latest = last
    for i in range(len(times) - 1, -1, -1):
        latest = ordered[i] = max(first, min(times[i], latest))
    return ordered
