"""Usual requests on their way into the instruments: nothing is computed before they are folded.

How it works.  All usual requests of one label set with the same bottleneck feed the same columns, so these are looked
up once for each such combination, and a request is a list of values that are added to them in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from opentelemetry.trace import SpanContext

from otel_lifecycle import semconv
from otel_lifecycle._core.lifecycle import SHAPES
from otel_lifecycle._core.slo import Slo
from otel_lifecycle._core.usual import USUAL_STAGES, UsualEnd, UsualVerdict, judge_objectives, judge_usual
from otel_lifecycle._instruments.label_sets import LabelSet, LabelSets
from otel_lifecycle._instruments.moment import Moment

_DONE = "completed"
_NO_USAGE: Mapping[str, int] = {}


class Rules(NamedTuple):
    """What a processor judges by, and whether it feeds the GenAI convention's metrics, too."""

    threshold: float
    slo: Slo | None
    convention: bool


class UsualRequest(NamedTuple):
    """A usual request, its span, when it ended, and what it is judged by; ``verdict``: if it has been judged."""

    end: UsualEnd
    span_context: SpanContext
    time_unix_nano: int
    rules: Rules
    verdict: UsualVerdict | None = None

    def fold(self, sets: LabelSets) -> None:
        """Judge it and add its samples: the same as ``FinishedRequest`` of a request that is whole."""
        end, span_context, time, rules, judged = self
        labels, moment = sets.of(end.labels), Moment(span_context, time)
        shape, verdict = end.shape, judge_usual(end, rules.threshold) if judged is None else judged
        values: list[float] = [*verdict.stages, 1, verdict.e2e]
        live = rules.convention and end.labels.traffic == "live"
        if live:
            values.append(verdict.e2e)
        ttft = verdict.ttft
        if ttft is not None:
            values += (ttft, ttft) if live else (ttft,)
        key = (shape, verdict.bottleneck, verdict.cause, live)
        for column, value in zip(labels.group(key, _rows), values, strict=True):
            column.add((value, moment))
        _fold_tokens(labels, end, verdict, moment, live=live)
        _fold_held(labels, shape, verdict, moment)
        if rules.slo is not None:
            for objective, met, stage in judge_objectives(rules.slo, shape, verdict):
                labels.add((1, moment), semconv.SLO_RESULTS, objective, met, stage)


def _rows(key: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return the metric and its own attributes of each value, in the order in which :meth:`fold` lists them."""
    shape, bottleneck, cause, live = key
    rows: list[tuple[Any, ...]] = [(semconv.STAGE_DURATION, stage) for stage in USUAL_STAGES[shape]]
    rows += [(semconv.REQUESTS, _DONE, None, bottleneck, cause, None), (semconv.REQUEST_DURATION, _DONE)]
    if live:
        rows.append((semconv.GEN_AI_REQUEST_DURATION, None))
    if SHAPES[shape].streams:
        rows.append((semconv.TIME_TO_FIRST_TOKEN, _DONE))
        if live:
            rows.append((semconv.GEN_AI_TIME_TO_FIRST_TOKEN,))
    return rows


def _fold_tokens(labels: LabelSet, end: UsualEnd, verdict: UsualVerdict, moment: Moment, *, live: bool) -> None:
    if verdict.tpot is not None:
        labels.add((verdict.tpot, moment), semconv.TIME_PER_OUTPUT_TOKEN, _DONE)
        labels.add((verdict.gaps, moment), semconv.INTER_TOKEN_LATENCY)
        if live:
            labels.add((verdict.convention_time_per_output_token, moment), semconv.GEN_AI_TIME_PER_OUTPUT_TOKEN)
    usage = end.usage or _NO_USAGE
    # A count of 0 would add nothing but a series.
    if read := usage.get("input_tokens"):
        labels.add((read, moment), semconv.TOKENS, "input")
    # The engine's own figure is what it billed; marks count what was seen of it.
    if written := usage.get("output_tokens", verdict.tokens):
        labels.add((written, moment), semconv.TOKENS, "output")


def _fold_held(labels: LabelSet, shape: str, verdict: UsualVerdict, moment: Moment) -> None:
    # In the stage histogram a mixed request is one among all. Its alert names the stages that cost it time.
    if verdict.bottleneck == "mixed":
        for stage, spent in zip(USUAL_STAGES[shape], verdict.stages, strict=True):
            labels.add((spent, moment), semconv.MIXED_TIME, stage)
    for cause, lost in verdict.queue_time.items():
        labels.add((lost, moment), semconv.QUEUE_TIME, cause)
    for cause, lost in verdict.stall_time.items():
        labels.add((lost, moment), semconv.STALLED_TIME, cause)
