"""``--fail-on``: a change that must fail a build."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from otel_lifecycle._analysis.comparison.figure import Comparison
from otel_lifecycle._analysis.comparison.rates import RATES, THROUGHPUTS
from otel_lifecycle._analysis.comparison.verdicts import FIGURES, STATISTICS
from otel_lifecycle._table.errors import Unusable

METRICS: Final = (
    *(f"{column}.{name}" for column in FIGURES for name in STATISTICS),
    *RATES,
    *THROUGHPUTS,
)
# The sign is required: whether more is better depends on the metric, and a build must not guess.
_FORM: Final = re.compile(r"(?P<metric>[a-z0-9_.]+)=(?P<sign>[+-])(?P<size>\d+(\.\d+)?)(?P<unit>%|pt|ms|s|)")
_SCALE: Final = {"%": 0.01, "pt": 0.01, "ms": 0.001, "s": 1.0, "": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A limit on the change of one metric: ``limit`` is a part of the baseline, or an absolute amount."""

    text: str
    metric: str
    limit: float
    relative: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """A gate, the change it found, and whether it failed.

    ``judged``: whether there was any evidence.  ``reason``: why it is not judged, or passed beyond its limit.
    """

    gate: Gate
    change: float
    failed: bool
    beyond: bool
    reason: str
    judged: bool = True


def gate_of(text: str) -> Gate:
    """Return the gate that ``ttft.p95=+5%``, ``e2e.p50=+20ms`` or ``success_rate=-1pt`` states; Unusable if none."""
    matched = _FORM.fullmatch(text)
    if matched is None:
        raise Unusable(f"--fail-on {text}: it is written METRIC=+5%, METRIC=+20ms or METRIC=-1pt")
    if matched["metric"] not in METRICS:
        raise Unusable(f"--fail-on {text}: no metric {matched['metric']!r}; the metrics are {', '.join(METRICS)}")
    size = float(matched["size"]) * _SCALE[matched["unit"]]
    return Gate(
        text=text,
        metric=matched["metric"],
        limit=size if matched["sign"] == "+" else -size,
        relative=matched["unit"] == "%",
    )


def rule(gate: Gate, found: Sequence[Comparison], *, evidence: bool) -> Ruling:
    """Return whether a gate fails: the change is beyond its limit and, with ``evidence``, there is a verdict on it.

    Raises Unusable where a side has no samples of the metric.
    """
    one = next((one for one in found if one.metric == gate.metric), None)
    if one is None or one.difference is None:
        side = "both sides have" if one is None else f"the {'baseline' if one.baseline is None else 'candidate'} has"
        raise Unusable(f"--fail-on {gate.text}: {side} no samples of {gate.metric}")
    if gate.relative and one.relative is None:
        raise Unusable(f"--fail-on {gate.text}: the baseline is 0, so there is no percentage")
    change = (one.relative if gate.relative else one.difference) or 0.0
    beyond = change > gate.limit if gate.limit >= 0 else change < gate.limit
    # Neither passed nor failed: a build that takes "no data" for "passed" hides the regression.
    if evidence and not one.tested:
        return Ruling(gate=gate, change=change, failed=False, beyond=beyond, reason=one.reason, judged=False)
    failed = beyond and (one.told or not evidence)
    reason = "" if not beyond or failed else f"beyond the limit, but no verdict: {one.reason}"
    return Ruling(gate=gate, change=change, failed=failed, beyond=beyond, reason=reason)


def not_judged(rulings: Sequence[Ruling]) -> str:
    """Return why gates cannot be judged, a line each, and what to do about it; empty if all are judged."""
    lines = [f"--fail-on {one.gate.text} cannot be judged: {one.reason}" for one in rulings if not one.judged]
    return "\n".join([*lines, "--gate estimate goes by the bare estimate"]) if lines else ""
