"""From a finished request to its verdict: durations in seconds, shares, bottleneck, SLO, gaps.

The live handle and the reader of foreign spans both make a :class:`Finished`; :func:`assess` turns it into a
:class:`Verdict`.  Instruments and span attributes are written from these two alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from otel_lifecycle._core.interference import Cause, Interference, QueueSplit, StallSplit
from otel_lifecycle._core.labels import RequestLabels
from otel_lifecycle._core.lifecycle import get_shape
from otel_lifecycle._core.metrics import RequestMetrics, request_metrics, time_to_first
from otel_lifecycle._core.outcome import DOMINANCE_THRESHOLD, dominant, stage_shares
from otel_lifecycle._core.outputs import OutputFigures
from otel_lifecycle._core.report import Report
from otel_lifecycle._core.slo import Slo, missed_stages
from otel_lifecycle._core.workload import quantile
from otel_lifecycle.errors import InvalidValue
from otel_lifecycle.semconv import VIOLATION_KINDS, WIRE_STAGE

SECOND = 1e9
"""Nanoseconds in a second; dividing by it rounds once, multiplying by 1e-9 twice."""

# Immutable, so one serves every request whose engine has no log.
NO_INTERFERENCE: Final = Interference()
DURATIONS = ("queue_wait", "preprocessing", "prefill", "ttft", "tpot", "decode_time", "token_span", "e2e")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A request that has ended, as it is handed on: times in integer nanoseconds of one axis.

    ``usage``: the token counts the server gave, by ``input_tokens``, ``output_tokens``, ``cached_tokens``.
    ``gaps_held``: whether ``report['itl']`` has every gap; ``longest_folded``: the longest of those it no longer has.
    ``truncated``: the SDK dropped events of the span, so the rest proves nothing about the server.
    ``gaps``: ``report['itl']`` sorted, if it is sorted already; else None.  ``interference``: what the other
    requests of its engine did to it; None where no log was kept.
    """

    report: Report
    reason: str | None = None
    error_type: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    violations: Mapping[str, int] = field(default_factory=dict)
    preemptions: Mapping[str, int] = field(default_factory=dict)
    truncated: bool = False
    longest_folded: int | None = None
    gaps_held: bool = True
    events_dropped: int = 0
    client_disconnected: bool = False
    delivered: int | None = None
    labels: RequestLabels = field(default_factory=RequestLabels)
    gaps: list[int] | None = None
    interference: Interference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is published about a finished request.

    ``seconds``: the durations of the contract that are known.  ``stages``: seconds of every stage that finished
    (decode: by any end), under its name on the wire.  ``gaps``: every ITL sample at hand, sorted, in nanoseconds.
    ``output_tokens``: as the marks count them, or else the usage figure; ``streamed_tokens`` the same, unless what was
    streamed were ``streamed_chunks`` of unknown size.  ``slo``: the objectives that were judged; ``slo_stages``: of
    each that was missed, the stage that took most of the time it covers.  ``cause``: what held the bottleneck.
    ``queue_time`` and ``stall_time``: seconds of both by cause, without those that are zero.
    ``outputs``: of a request whose outputs are not tokens, which has no figure about tokens.
    ``convention_time_per_output_token``: the GenAI convention's own figure, (e2e - ttft) / (tokens after the first).
    """

    outcome: str
    failure_stage: str | None
    seconds: Mapping[str, float]
    stages: Mapping[str, float]
    output_tokens: int | None
    streamed_tokens: int | None
    streamed_chunks: int | None
    gaps: list[int]
    shares: Mapping[str, float] | None
    bottleneck: str | None
    dominant_share: float | None
    preempted: float | None
    slo: Mapping[str, bool] | None
    slo_stages: Mapping[str, str]
    convention_time_per_output_token: float | None
    cause: Cause | None
    queue_time: Mapping[str, float]
    stall_time: Mapping[str, float]
    outputs: OutputFigures | None = None

    @property
    def dominant_stage(self) -> str | None:
        """The stage with the largest share, whether it reaches the threshold or not."""
        return max(self.shares, key=self.shares.__getitem__) if self.shares else None

    @property
    def output_gaps(self) -> list[int]:
        """The gaps between its outputs, tokens or not, sorted, in nanoseconds."""
        return self.gaps if self.outputs is None else self.outputs.gaps

    def gap(self, q: float) -> float | None:
        """Return a quantile of the gaps between its outputs in seconds; None without gaps."""
        gap = quantile(self.output_gaps, q)
        return None if gap is None else gap / SECOND


def assess(finished: Finished, *, threshold: float = DOMINANCE_THRESHOLD, slo: Slo | None = None) -> Verdict:
    """Judge one finished request."""
    report = finished.report
    metrics = request_metrics(report)
    # The type checker lets no variable index a TypedDict.
    known: Mapping[str, Any] = metrics
    seconds = {name: known[name] / SECOND for name in DURATIONS if known[name] is not None}
    shares = _shares(finished, metrics)
    bottleneck, share = dominant(shares, threshold)
    completed = report["status"] == "completed"
    # How an incomplete request ended is not known, so it neither met nor missed anything.
    judged = slo is not None and report["status"] != "incomplete"
    failed_in = report["failure_stage"]
    stages = _stages(report, seconds)
    slo_results = slo.judge(seconds, completed=completed) if judged and slo is not None else None
    held = finished.interference or NO_INTERFERENCE
    return Verdict(
        outcome=report["status"],
        failure_stage=None if failed_in is None else WIRE_STAGE[failed_in],
        seconds=seconds,
        stages=stages,
        output_tokens=report["output_tokens"],
        streamed_tokens=metrics["streamed_tokens"],
        streamed_chunks=report.get("streamed_chunks"),
        gaps=[] if "unit" in report else sorted(report["itl"]) if finished.gaps is None else finished.gaps,
        shares=shares,
        bottleneck=bottleneck,
        dominant_share=share,
        preempted=_preempted(report),
        convention_time_per_output_token=_convention_time_per_token(report, metrics),
        slo=slo_results,
        slo_stages=missed_stages(slo_results or {}, stages, report["shape"]),
        cause=held.cause(bottleneck, metrics["decode_time"]),
        queue_time=by_cause(held.queue),
        stall_time=by_cause(held.stall_split),
        outputs=_outputs(finished),
    )


def by_cause(split: QueueSplit | StallSplit | None) -> dict[str, float]:
    """Return the seconds of a split by cause, without those that are 0."""
    if split is None:
        return {}
    # Parts of 0 are left out: a counter that adds 0 only makes a series that never moves.
    return {cause: time / SECOND for cause in split.__slots__ if (time := getattr(split, cause))}


def _outputs(finished: Finished) -> OutputFigures | None:
    report = finished.report
    if "unit" not in report:
        return None
    first = time_to_first(report)
    return OutputFigures(
        unit=report["unit"],
        amount=report["outputs"],
        first=None if first is None else first / SECOND,
        gaps=sorted(report["output_gaps"]) if finished.gaps is None else finished.gaps,
    )


def _shares(finished: Finished, metrics: RequestMetrics) -> dict[str, float] | None:
    try:
        return stage_shares(finished.report, metrics)
    except InvalidValue:  # Every boundary at one instant: there is nothing to share out.
        return None


def _stages(report: Report, seconds: Mapping[str, float]) -> dict[str, float]:
    stages = get_shape(report["shape"]).stages
    return {stage.name: seconds[stage.metric] for stage in stages if stage.metric in seconds}


def _convention_time_per_token(report: Report, metrics: RequestMetrics) -> float | None:
    after_first = (report["output_tokens"] or 0) - 1
    if after_first < 1 or metrics["e2e"] is None or metrics["ttft"] is None:
        return None
    # In whole nanoseconds up to here, or 0.1 s would land above the edge of its bucket.
    seconds: float = (metrics["e2e"] - metrics["ttft"]) / after_first / SECOND
    return seconds


def _preempted(report: Report) -> float | None:
    """Seconds preempted in all; None where there was none, or one of unknown length."""
    lost: list[Any] = list(report["preempted"].values())
    if not lost or None in lost:
        return None
    seconds: float = sum(lost) / SECOND
    return seconds


def violation_total(violations: Mapping[str, int]) -> int:
    """Return the number of violations of all kinds."""
    return sum(violations.get(kind, 0) for kind in VIOLATION_KINDS)
