"""Usual requests on their way into the instruments: nothing is computed before they are folded.

How it works.  Usual requests of one label set and shape have the same samples, so these are added column by column, and
each column is looked up once for all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from opentelemetry.trace import SpanContext

from otel_lifecycle import semconv
from otel_lifecycle._core.lifecycle import SHAPES
from otel_lifecycle._core.slo import Slo
from otel_lifecycle._core.usual import USUAL_STAGES, UsualEnd, UsualVerdict, judge_objectives, judge_usual
from otel_lifecycle._instruments.label_sets import LabelSet, LabelSets
from otel_lifecycle._instruments.moment import Moment
from otel_lifecycle._log import say

_DONE = "completed"


_One: TypeAlias = tuple[UsualEnd, UsualVerdict, Moment]


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


def fold_usual(requests: Iterable[UsualRequest], sets: LabelSets) -> None:
    """Judge usual requests and add their samples: the same as ``FinishedRequest`` of requests that are whole."""
    # By identity: requests of one server share these objects, and comparing them costs more than a further column.
    alike: dict[tuple[int, str, int], tuple[UsualEnd, Rules, list[_One]]] = {}
    for request in requests:
        end, span_context, time, rules, verdict = request
        try:
            verdict = judge_usual(end, rules.threshold) if verdict is None else verdict
        except Exception as error:  # noqa: BLE001  # one bad value must not cost the others
            say("fold", "the metrics of a request could not be recorded", level=logging.ERROR, error=error)
            continue
        judged = (end, verdict, Moment(span_context, time))
        alike.setdefault((id(end.labels), end.shape, id(rules)), (end, rules, []))[2].append(judged)
    for end, rules, together in alike.values():
        _fold_alike(sets.of(end.labels), end, rules, together)


def _fold_alike(labels: LabelSet, one: UsualEnd, rules: Rules, judged: Sequence[_One]) -> None:
    """Add the samples of requests with the same labels and shape; ``one`` of them has both."""
    live = rules.convention and one.labels.traffic == "live"
    _fold_times(labels, one.shape, judged, live=live)
    ended: dict[tuple[str | None, str | None], list[tuple[int, Moment]]] = {}
    for _, verdict, moment in judged:
        ended.setdefault((verdict.bottleneck, verdict.cause), []).append((1, moment))
    for (bottleneck, cause), samples in ended.items():
        labels.extend(samples, semconv.REQUESTS, _DONE, None, bottleneck, cause, None)
    _fold_tokens(labels, judged, live=live)
    for end, verdict, moment in judged:
        _fold_held(labels, end.shape, verdict, moment)
        if rules.slo is not None:
            for objective, met, stage in judge_objectives(rules.slo, end.shape, verdict):
                labels.add((1, moment), semconv.SLO_RESULTS, objective, met, stage)


def _fold_times(labels: LabelSet, shape: str, judged: Sequence[_One], *, live: bool) -> None:
    for place, stage in enumerate(USUAL_STAGES[shape]):
        spent = [(verdict.stages[place], moment) for _, verdict, moment in judged]
        labels.extend(spent, semconv.STAGE_DURATION, stage)
    whole = [(verdict.e2e, moment) for _, verdict, moment in judged]
    labels.extend(whole, semconv.REQUEST_DURATION, _DONE)
    if live:
        labels.extend(whole, semconv.GEN_AI_REQUEST_DURATION, None)
    if SHAPES[shape].streams:
        first = [(verdict.ttft, moment) for _, verdict, moment in judged]
        labels.extend(first, semconv.TIME_TO_FIRST_TOKEN, _DONE)
        if live:
            labels.extend(first, semconv.GEN_AI_TIME_TO_FIRST_TOKEN)


def _fold_tokens(labels: LabelSet, judged: Iterable[_One], *, live: bool) -> None:
    read: list[tuple[int, Moment]] = []
    written: list[tuple[int, Moment]] = []
    for end, verdict, moment in judged:
        if verdict.tpot is not None:
            labels.add((verdict.tpot, moment), semconv.TIME_PER_OUTPUT_TOKEN, _DONE)
            labels.add((verdict.gaps, moment), semconv.INTER_TOKEN_LATENCY)
            if live:
                labels.add((verdict.convention_time_per_output_token, moment), semconv.GEN_AI_TIME_PER_OUTPUT_TOKEN)
        usage, tokens = end.usage, verdict.tokens
        if usage is not None:
            # The engine's own figure is what it billed; marks count what was seen of it.
            tokens = usage.get("output_tokens", tokens)
            # A count of 0 would add nothing but a series.
            if input_tokens := usage.get("input_tokens"):
                read.append((input_tokens, moment))
        if tokens:
            written.append((tokens, moment))
    if read:
        labels.extend(read, semconv.TOKENS, "input")
    if written:
        labels.extend(written, semconv.TOKENS, "output")


def _fold_held(labels: LabelSet, shape: str, verdict: UsualVerdict, moment: Moment) -> None:
    # In the stage histogram a mixed request is one among all. Its alert names the stages that cost it time.
    if verdict.bottleneck == "mixed":
        for stage, spent in zip(USUAL_STAGES[shape], verdict.stages, strict=True):
            labels.add((spent, moment), semconv.MIXED_TIME, stage)
    for cause, lost in verdict.queue_time.items():
        labels.add((lost, moment), semconv.QUEUE_TIME, cause)
    for cause, lost in verdict.stall_time.items():
        labels.add((lost, moment), semconv.STALLED_TIME, cause)
