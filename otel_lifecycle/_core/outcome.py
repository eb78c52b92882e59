"""How a request ended, and which stage took its time.

How it works.  The shares of a completed request are its stages, each without preempted time, divided by their sum.  The
largest share decides: from the threshold on, its stage is the bottleneck; below it, the request is ``mixed``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from otel_lifecycle._core.lifecycle import STAGE_ORDER, get_shape
from otel_lifecycle.errors import ConfigurationError, InvalidValue

# A value of the contract: an even share of four stages is 0.25, so a dominant one takes nearly twice that.
DOMINANCE_THRESHOLD = 0.45
MIXED = "mixed"


def check_threshold(threshold: object) -> float:
    """Return the dominance threshold; ConfigurationError unless it is a number in (0, 1]."""
    # True would pass as 1.0, and nearly every request would be mixed.
    number = isinstance(threshold, Real) and not isinstance(threshold, bool)
    if number and not math.isnan(threshold) and 0 < threshold <= 1:  # type: ignore[arg-type,operator]  # a Real, as just checked
        return float(threshold)  # type: ignore[arg-type]  # a Real, as just checked
    raise ConfigurationError(f"the dominance threshold is {threshold!r:.80}; it must be a number in (0, 1]")


def stage_shares(report: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, float] | None:
    """Return each stage's share of their sum, each net of preempted time, in the order of the stages.

    None unless the request completed with every boundary known and no preemption of unknown length.  Raises
    InvalidValue where the sum is not positive.
    """
    if report["status"] != "completed":
        return None
    preempted = report.get("preempted", {})
    stages = {stage.name: stage for stage in get_shape(report.get("shape", "default")).stages}
    net: dict[str, Any] = {}
    # `dominant` keeps the first of equals, so this order decides ties.
    for name in STAGE_ORDER:
        if name not in stages:
            continue
        gross, lost = metrics.get(stages[name].metric), preempted.get(stages[name].state, 0)
        # One unknown stage makes every share wrong, not only its own.
        if gross is None or lost is None:
            return None
        net[name] = gross - lost
    total = sum(net.values())
    # In this form NaN is refused too.
    if not total > 0:
        raise InvalidValue(f"the stages last {total!r} together; shares need a positive sum", state="completed")
    return {name: time / total for name, time in net.items()}


def classify_request_outcome(
    report: Mapping[str, Any], metrics: Mapping[str, Any], dominance_threshold: float = DOMINANCE_THRESHOLD
) -> dict[str, Any]:
    """Attribute one request: ``{'outcome', 'stage', 'dominant_share'}``.

    Not completed: the status, the state it ended in, and None.  Completed: ``stage`` is the one with the largest share
    of queue, preprocessing, prefill and decode (net of preempted time; the earlier one at a tie) if that share, the
    ``dominant_share``, reaches the threshold, else ``mixed``; both are None where a boundary is missing.

    Raises ConfigurationError for a threshold outside (0, 1], InvalidValue where the stages' sum is not positive.
    """
    threshold = check_threshold(dominance_threshold)
    if report["status"] != "completed":
        return {"outcome": report["status"], "stage": report["failure_stage"], "dominant_share": None}
    stage, share = dominant(stage_shares(report, metrics), threshold)
    return {"outcome": "completed", "stage": stage, "dominant_share": share}


def dominant(shares: Mapping[str, float] | None, threshold: float) -> tuple[str | None, float | None]:
    """Return the bottleneck, a stage or ``mixed``, and the largest share; None and None without shares."""
    if shares is None:
        return None, None
    stage = max(shares, key=shares.__getitem__)
    return (stage if shares[stage] >= threshold else MIXED), shares[stage]
