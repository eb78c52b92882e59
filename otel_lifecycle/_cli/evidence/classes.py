"""The kind of workload of a set of requests without a label.

The length of the input separates short from long, request by request.  The arrivals of the whole set show the rest:
all at once is a batch, in clumps is bursty.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from otel_lifecycle._cli.evidence.evidence import Evidence
from otel_lifecycle._cli.requests.model import SeenRequest

CLASS_LENGTH: Final = 4096
"""Input tokens at and above which a context is long."""
SHORT: Final = "interactive short"
LONG: Final = "long context"
UNKNOWN: Final = "unknown length"

BURSTY: Final = 4.0
"""Variance over mean of arrivals: 1 if they are independent; 4 is a clear clump, even in ten intervals."""
# Below it arrivals are more even than chance: a timer or a rate limiter.
REGULAR: Final = 0.4
BATCH_SPAN: Final = 0.05
"""A batch: nine tenths of the arrivals lie within this part of the run."""
AT_ONCE: Final = 0.1
"""A client that sends again at once does so within this part of the time between two arrivals."""
VARIES: Final = 0.5
"""A client with a think time: its spread is at most this part of the spread of the time between arrivals."""
FEW: Final = 20
"""With fewer arrivals no pattern is stated."""


def length_class(request: SeenRequest, long_context: int) -> str:
    """Return the class of a request by the length of its input."""
    if request.input_tokens is None:
        return UNKNOWN
    return LONG if request.input_tokens >= long_context else SHORT


def arrival_pattern(evidence: Evidence) -> str:
    """Return ``at once``, ``bursty``, ``independent``, ``regular``, ``closed loop`` or ``too few to tell``."""
    if evidence.total < FEW:
        return "too few to tell"
    starts, ends = evidence.sample.column("start"), evidence.sample.column("end")
    early, late = np.quantile(starts, [0.05, 0.95])
    # Quantiles and not the extremes, so that a few stragglers do not hide a batch.
    if late - early <= BATCH_SPAN * max(float(ends.max() - starts.min()), 1e-9):
        return "at once"
    told = evidence.timeline.dispersion()
    # Clumps also see a constant number in flight: 0, once the last clump has ended.
    clumped = told is not None and told[0] >= BURSTY
    # A sample breaks the succession of ends and arrivals, so a loop is only searched for in complete data.
    if evidence.exact and not clumped and is_closed_loop(evidence):
        return "closed loop"
    if told is None:
        return "too few to tell"
    return "bursty" if told[0] >= BURSTY else "regular" if told[0] <= REGULAR else "independent"


def in_flight_at_arrival(evidence: Evidence) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return, row by row of the sample, how many others were in flight when the request arrived.

    Exact where the sample is complete, else the mean level in the request's bin of the timeline.
    """
    starts, ends = evidence.sample.column("start"), evidence.sample.column("end")
    if not evidence.exact:
        return evidence.timeline.in_flight_at(starts)
    # side="left" leaves out the request itself and those that arrived with it.
    arrived = np.searchsorted(np.sort(starts), starts, side="left")
    left = np.searchsorted(np.sort(ends), starts, side="right")
    return (arrived - left).astype(np.float64)


def is_closed_loop(evidence: Evidence) -> bool:
    """Return whether a new request comes only when one has ended: a constant number in flight, except on the ramps.

    A very low load or a fixed rate keeps the level as well, but its arrivals do not follow the ends.
    """
    level = in_flight_at_arrival(evidence)
    # The low quantile cuts the ramps at both ends of the run.
    low, high = np.quantile(level, [0.1, 0.95])
    return bool(high - low <= max(1.0, 0.1 * high)) and _follow(evidence)


def _follow(evidence: Evidence) -> bool:
    """Return whether arrivals follow ends: at once, or after a time that varies less than from arrival to arrival."""
    starts, ends = np.sort(evidence.sample.column("start")), np.sort(evidence.sample.column("end"))
    before = np.searchsorted(ends, starts, side="right")
    # The newest end before each arrival: in a closed loop that one triggered it.
    after = starts[before > 0] - ends[before[before > 0] - 1]
    if len(after) < FEW // 2:
        return False
    between = np.diff(starts)
    if np.median(after) <= AT_ONCE * between.mean():
        return True
    # Interquartile ranges: one pause of the client must not decide.
    spread, usual = (float(np.subtract(*np.quantile(values, [0.75, 0.25]))) for values in (after, between))
    return spread <= VARIES * usual


def class_name(name: str, evidence: Evidence) -> str:
    """Return the name of a class once its arrivals are known; a label given by the server stays."""
    if name not in {SHORT, UNKNOWN}:
        return name
    pattern = arrival_pattern(evidence)
    return {"at once": "batch", "bursty": "bursty"}.get(pattern, name)
