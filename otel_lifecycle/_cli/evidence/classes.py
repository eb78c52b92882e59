"""What kind of workload a set of requests is, where nobody labelled it.

The length of the input tells short from long, request by request; how requests arrive tells the rest, and only the
whole set shows that: all at once is a batch, in clumps is bursty.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from otel_lifecycle._cli.evidence.evidence import Evidence
from otel_lifecycle._cli.requests.model import Request

CLASS_LENGTH: Final = 4096
"""Input tokens from which on a context is long."""
SHORT: Final = "interactive short"
LONG: Final = "long context"
UNKNOWN: Final = "unknown length"

BURSTY: Final = 4.0
"""Variance over mean of arrivals: independent ones have 1; at 4 they clump plainly, even in ten intervals."""
REGULAR: Final = 0.4
BATCH_SPAN: Final = 0.05
"""A batch: nine tenths of the arrivals lie within this part of the run."""
AT_ONCE: Final = 0.1
"""A client that sends again at once does it within this part of the time between two arrivals."""
VARIES: Final = 0.5
"""One that thinks first thinks for a time whose spread is no more than this part of that between arrivals."""
FEW: Final = 20
"""Below so many arrivals a pattern is not told."""


def length_class(request: Request, long_context: int) -> str:
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
    if late - early <= BATCH_SPAN * max(float(ends.max() - starts.min()), 1e-9):
        return "at once"
    told = evidence.timeline.dispersion()
    # Clumps that arrive together see the same number in flight, too: nobody, when all of the last have gone.
    clumped = told is not None and told[0] >= BURSTY
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
    arrived = np.searchsorted(np.sort(starts), starts, side="left")
    left = np.searchsorted(np.sort(ends), starts, side="right")
    return (arrived - left).astype(np.float64)


def is_closed_loop(evidence: Evidence) -> bool:
    """Return whether a new request comes only when one has ended: always as many in flight, but for the ramps.

    So few that none waits, or a metronome, keep the level, too; but their arrivals do not follow the ends.
    """
    level = in_flight_at_arrival(evidence)
    low, high = np.quantile(level, [0.1, 0.95])
    return bool(high - low <= max(1.0, 0.1 * high)) and _follow(evidence)


def _follow(evidence: Evidence) -> bool:
    """Return whether arrivals follow ends: at once, or after a time that varies less than from arrival to arrival."""
    starts, ends = np.sort(evidence.sample.column("start")), np.sort(evidence.sample.column("end"))
    before = np.searchsorted(ends, starts, side="right")
    after = starts[before > 0] - ends[before[before > 0] - 1]
    if len(after) < FEW // 2:
        return False
    between = np.diff(starts)
    if np.median(after) <= AT_ONCE * between.mean():
        return True
    spread, usual = (float(np.subtract(*np.quantile(values, [0.75, 0.25]))) for values in (after, between))
    return spread <= VARIES * usual


def class_name(name: str, evidence: Evidence) -> str:
    """Return a class's name after its arrivals are known; a label given by the server stays."""
    if name not in {SHORT, UNKNOWN}:
        return name
    pattern = arrival_pattern(evidence)
    return {"at once": "batch", "bursty": "bursty"}.get(pattern, name)
