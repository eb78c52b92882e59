"""From a verdict to metrics: which of a request's figures go into which instrument."""

from __future__ import annotations

from opentelemetry.context import Context

from otel_lifecycle import semconv
from otel_lifecycle._core.verdict import Finished, Verdict
from otel_lifecycle._instruments._occasion import Occasion
from otel_lifecycle._instruments.instruments import Combination, Instruments


def record_finished(
    instruments: Instruments, finished: Finished, verdict: Verdict, context: Context | None = None
) -> None:
    """Record everything a finished request adds to the metrics; ``context`` is that of its span, for exemplars.

    The parts of a disaggregated request, whose role is not ``whole``, feed stage durations and violations only.
    """
    labels, occasion = instruments.labels(finished.labels), Occasion(context)
    for stage, seconds in verdict.stages.items():
        instruments.record(occasion, semconv.STAGE_DURATION, seconds, labels, stage)
    for kind, count in finished.violations.items():
        instruments.add(occasion, semconv.TRANSITION_VIOLATIONS, count, labels, kind)
    if finished.labels.role != "whole":
        return
    _record_outcome(instruments, finished, verdict, labels, occasion)
    _record_tokens(instruments, finished, verdict, labels, occasion)
    for state, count in finished.preemptions.items():
        instruments.add(occasion, semconv.PREEMPTION_COUNT, count, labels, semconv.WIRE_STAGE[state])
    for objective, met in (verdict.slo or {}).items():
        instruments.add(occasion, semconv.SLO_RESULTS, 1, labels, objective, met)
    if finished.labels.traffic == "live":
        _record_convention(instruments, finished, verdict, labels, occasion)


def _record_outcome(
    instruments: Instruments, finished: Finished, verdict: Verdict, labels: Combination, occasion: Occasion
) -> None:
    error = instruments.error(finished.error_type)
    own = (verdict.outcome, verdict.failure_stage, verdict.bottleneck, error)
    instruments.add(occasion, semconv.REQUESTS, 1, labels, *own)
    for metric, name in (
        (semconv.REQUEST_DURATION, "e2e"),
        (semconv.TIME_TO_FIRST_TOKEN, "ttft"),
        (semconv.TIME_PER_OUTPUT_TOKEN, "tpot"),
    ):
        instruments.record(occasion, metric, verdict.seconds.get(name), labels, verdict.outcome)


def _record_tokens(
    instruments: Instruments, finished: Finished, verdict: Verdict, labels: Combination, occasion: Occasion
) -> None:
    instruments.record_gaps(occasion, verdict.gaps, labels)
    usage = finished.usage
    # The engine's own figure is what it billed; marks count what was seen of it.
    output = usage.get("output_tokens", verdict.output_tokens)
    counts = {"input": usage.get("input_tokens"), "output": output}
    for direction, count in counts.items():
        if count:
            instruments.add(occasion, semconv.TOKENS, count, labels, direction)


def _record_convention(
    instruments: Instruments, finished: Finished, verdict: Verdict, labels: Combination, occasion: Occasion
) -> None:
    """The GenAI convention's server metrics; its TTFT and time per output token are of successful responses only."""
    error = instruments.error(finished.error_type)
    instruments.record(occasion, semconv.GEN_AI_REQUEST_DURATION, verdict.seconds.get("e2e"), labels, error)
    if verdict.outcome == "completed":
        ttft, per_token = verdict.seconds.get("ttft"), verdict.convention_time_per_output_token
        instruments.record(occasion, semconv.GEN_AI_TIME_TO_FIRST_TOKEN, ttft, labels)
        instruments.record(occasion, semconv.GEN_AI_TIME_PER_OUTPUT_TOKEN, per_token, labels)
