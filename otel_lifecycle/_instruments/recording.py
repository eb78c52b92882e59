"""The values that requests hand over, and the samples that each becomes.

:class:`FinishedRequest` is all that a finished request adds to the metrics.  :class:`OpenGaps` are inter-token gaps of
a stream that goes on, :class:`SingleSample` is whatever comes alone: a violation after the end, a wasted token, a
cold-start phase.  All are immutable; nothing is computed before they are folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from otel_lifecycle import semconv
from otel_lifecycle._core.labels import RequestLabels
from otel_lifecycle._core.verdict import Finished, Verdict
from otel_lifecycle._instruments.label_sets import LabelSet, LabelSets
from otel_lifecycle._instruments.moment import Moment
from otel_lifecycle.semconv import Metric


class FinishedRequest(NamedTuple):
    """A finished request and what it amounts to; ``convention``: for the GenAI convention's metrics, too."""

    finished: Finished
    verdict: Verdict
    moment: Moment
    convention: bool = True

    def fold(self, sets: LabelSets) -> None:
        """Add the samples.

        The halves of a disaggregated request, whose role is not ``whole``, feed stage durations and violations only.
        """
        finished, verdict, moment, convention = self
        labels = sets.of(finished.labels)
        # The stages of a part are in those of its request, which moves with it.
        for stage, seconds in verdict.stages.items() if finished.labels.role != "part" else ():
            labels.add((seconds, moment), semconv.STAGE_DURATION, stage)
        for kind, count in finished.violations.items():
            labels.add((count, moment), semconv.TRANSITION_VIOLATIONS, kind)
        if finished.labels.role != "whole":
            return
        # Bounded once for both metrics, so that they cannot disagree.
        error = sets.name("error", finished.error_type)
        self._fold_outcome(labels, error)
        self._fold_tokens(labels)
        self._fold_outputs(labels, sets)
        if convention and finished.labels.traffic == "live":
            self._fold_convention(labels, error)

    def _fold_outcome(self, labels: LabelSet, error: str | None) -> None:
        finished, verdict, moment, _ = self
        outcome, seconds = verdict.outcome, verdict.seconds
        own = (outcome, verdict.failure_stage, verdict.bottleneck, verdict.cause, error)
        labels.add((1, moment), semconv.REQUESTS, *own)
        for metric, name in _DURATIONS:
            if name in seconds:
                labels.add((seconds[name], moment), metric, outcome)
        # In the stage histogram a mixed request is one among all. Its alert names the stages that cost it time.
        if verdict.bottleneck == "mixed":
            for stage, spent in verdict.stages.items():
                if stage != "preempted":
                    labels.add((spent, moment), semconv.MIXED_TIME, stage)
        for state, count in finished.preemptions.items():
            labels.add((count, moment), semconv.PREEMPTION_COUNT, semconv.WIRE_STAGE[state])
        for objective, met in (verdict.slo or {}).items():
            labels.add((1, moment), semconv.SLO_RESULTS, objective, met, verdict.slo_stages.get(objective))
        for cause, lost in verdict.queue_time.items():
            labels.add((lost, moment), semconv.QUEUE_TIME, cause)
        for cause, lost in verdict.stall_time.items():
            labels.add((lost, moment), semconv.STALLED_TIME, cause)

    def _fold_tokens(self, labels: LabelSet) -> None:
        finished, verdict, moment, _ = self
        if verdict.gaps:
            labels.add((verdict.gaps, moment), semconv.INTER_TOKEN_LATENCY)
        # A count of 0 would add nothing but a series.
        if read := finished.usage.get("input_tokens"):
            labels.add((read, moment), semconv.TOKENS, "input")
        # The engine's own figure is what it billed; marks count what was seen of it.
        if written := finished.usage.get("output_tokens", verdict.output_tokens):
            labels.add((written, moment), semconv.TOKENS, "output")

    def _fold_outputs(self, labels: LabelSet, sets: LabelSets) -> None:
        outputs, moment = self.verdict.outputs, self.moment
        if outputs is None:
            return
        unit = sets.name("unit", outputs.unit)
        if outputs.first is not None:
            labels.add((outputs.first, moment), semconv.TIME_TO_FIRST_OUTPUT, unit, self.verdict.outcome)
        if outputs.gaps:
            labels.add((outputs.gaps, moment), semconv.OUTPUT_GAP, unit)
        if outputs.amount:
            labels.add((outputs.amount, moment), semconv.OUTPUTS, unit)

    def _fold_convention(self, labels: LabelSet, error: str | None) -> None:
        """Add the GenAI convention's server metrics.

        Its time to first token and time per output token are those of successful responses only.
        """
        _, verdict, moment, _ = self
        seconds = verdict.seconds
        if "e2e" in seconds:
            labels.add((seconds["e2e"], moment), semconv.GEN_AI_REQUEST_DURATION, error)
        if verdict.outcome != "completed":
            return
        if "ttft" in seconds:
            labels.add((seconds["ttft"], moment), semconv.GEN_AI_TIME_TO_FIRST_TOKEN)
        if (per_token := verdict.convention_time_per_output_token) is not None:
            labels.add((per_token, moment), semconv.GEN_AI_TIME_PER_OUTPUT_TOKEN)


_DURATIONS = (
    (semconv.REQUEST_DURATION, "e2e"),
    (semconv.TIME_TO_FIRST_TOKEN, "ttft"),
    (semconv.TIME_PER_OUTPUT_TOKEN, "tpot"),
)


class OpenGaps(NamedTuple):
    """Gaps between the outputs of a stream that goes on, tokens or not, nanoseconds, sorted."""

    labels: RequestLabels
    gaps: Sequence[int]
    moment: Moment

    def fold(self, sets: LabelSets) -> None:
        """Add the gaps."""
        sample, unit = (self.gaps, self.moment), self.labels.unit
        if unit is None:
            sets.of(self.labels).add(sample, semconv.INTER_TOKEN_LATENCY)
        else:
            sets.of(self.labels).add(sample, semconv.OUTPUT_GAP, sets.name("unit", unit))


class SingleSample(NamedTuple):
    """One sample of a request: a count or seconds; ``own`` are the values of the metric's own attributes."""

    labels: RequestLabels
    metric: Metric
    value: float
    own: tuple[str, ...]
    moment: Moment

    def fold(self, sets: LabelSets) -> None:
        """Add it."""
        sets.of(self.labels).add((self.value, self.moment), self.metric, *self.own)


class StartupPhase(NamedTuple):
    """A cold-start phase: it belongs to no request, so it has neither operation nor provider."""

    phase: str
    model: str | None
    seconds: float
    moment: Moment

    def fold(self, sets: LabelSets) -> None:
        """Add it."""
        phase = sets.name("phase", self.phase)
        sets.of_model(self.model).add((self.seconds, self.moment), semconv.STARTUP_DURATION, phase)


HandedOver: TypeAlias = "FinishedRequest | OpenGaps | SingleSample | StartupPhase"
