"""Usual requests on their way into the instruments: nothing is computed before they are folded.

How it works.  Usual requests of one label set and shape have the same samples, so these are computed and added column
by column, each column at C speed.  Only what tokens and neighbours add is judged request by request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import compress, repeat
from operator import attrgetter, eq, is_not
from typing import Final, NamedTuple, TypeAlias

from opentelemetry.trace import SpanContext

from otel_lifecycle import semconv
from otel_lifecycle._core.outcome import MIXED
from otel_lifecycle._core.slo import Slo
from otel_lifecycle._core.usual import (
    UsualEnd,
    UsualTimes,
    UsualVerdict,
    judge_objectives,
    judge_times,
    judge_usual,
)
from otel_lifecycle._instruments.label_sets import LabelSet, LabelSets
from otel_lifecycle._instruments.moment import Moment
from otel_lifecycle._log import say

_DONE: Final = "completed"
_END: Final = attrgetter("end")
_TIMES: Final = attrgetter("times")


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


_Judged: TypeAlias = "tuple[Sequence[UsualVerdict | None], UsualTimes]"


def fold_usual(requests: Iterable[UsualRequest], sets: LabelSets) -> None:
    """Judge usual requests and add their samples: the same as ``FinishedRequest`` of requests that are whole."""
    # By identity: requests of one server share these objects, and comparing them costs more than a further column.
    alike: dict[tuple[int, str, int, bool | None], list[UsualRequest]] = {}
    for request in requests:
        end, _, _, rules, verdict = request
        bare = verdict is None and end.log is None and end.interference is None and end.usage is None
        key = id(end.labels), end.shape, id(rules), end.alone if bare else None
        if key in alike:
            alike[key].append(request)
        else:
            alike[key] = [request]
    for (_, _, _, alone), together in alike.items():
        _fold_alike(together, sets, alone)


def _fold_alike(together: Sequence[UsualRequest], sets: LabelSets, alone: bool | None) -> None:
    """Fold requests with the same labels, shape and rules.

    ``alone``: all of them are bare, which is to say that nothing but their boundaries is known, and all were alone on
    their engine, or none is known to have been; None: they are of any kind.
    """
    try:
        judged = _judge(together)
    except Exception as error:  # noqa: BLE001  # one bad value must not cost the others
        if len(together) == 1:
            say("fold", "the metrics of a request could not be recorded", level=logging.ERROR, error=error)
            return
        for request in together:
            _fold_alike([request], sets, alone)
    else:
        columns = _Columns(sets.of(together[0].end.labels), together)
        if alone is None:
            columns.add(*judged)
        else:
            columns.add_bare(judged[1], alone=alone)


def _judge(together: Sequence[UsualRequest]) -> _Judged:
    threshold = together[0].rules.threshold
    ends = list(map(_END, together))
    verdicts = [
        request.verdict
        if request.verdict is not None or (end.log is None and end.interference is None)
        else judge_usual(end, threshold)
        for request, end in zip(together, ends, strict=True)
    ]
    return verdicts, judge_times(ends[0].shape, list(map(_TIMES, ends)), threshold)


class _Columns:
    """The samples of requests with the same labels, shape and rules."""

    __slots__ = ("_labels", "_live", "_moments", "_shape", "_slo", "_together")

    def __init__(self, labels: LabelSet, together: Sequence[UsualRequest]) -> None:
        one = together[0]
        self._labels = labels
        self._together = together
        self._shape = one.end.shape
        self._live = one.rules.convention and one.end.labels.traffic == "live"
        self._slo = one.rules.slo
        self._moments = [Moment(request.span_context, request.time_unix_nano) for request in together]

    def add(self, verdicts: Sequence[UsualVerdict | None], times: UsualTimes) -> None:
        """Add them all; ``verdicts``: of those that have more than times."""
        self._add_times(times)
        self._add_ends(verdicts, times)
        self._add_counts()
        for verdict, moment in zip(verdicts, self._moments, strict=True):
            if verdict is not None and verdict.tpot is not None:
                self._add_tokens(verdict, moment)
        if self._slo is not None:
            self._add_objectives(self._slo, times, verdicts)

    def add_bare(self, times: UsualTimes, *, alone: bool) -> None:
        """Add the same of requests that have nothing but their boundaries."""
        self._add_times(times)
        moments, bottlenecks = self._moments, times.bottlenecks
        for bottleneck in dict.fromkeys(bottlenecks):
            those = list(map(eq, bottlenecks, repeat(bottleneck)))
            cause = "idle" if alone and bottleneck == "queue" else None
            ended = zip(repeat(1), compress(moments, those))
            self._labels.extend(ended, semconv.REQUESTS, _DONE, None, bottleneck, cause, None)
            if bottleneck == MIXED:
                for stage, spent in times.stages.items():
                    mixed = compress(zip(spent, moments, strict=True), those)
                    self._labels.extend(mixed, semconv.MIXED_TIME, stage)
        waits = times.stages["queue"]
        if alone and any(waits):
            self._labels.extend(compress(zip(waits, moments, strict=True), waits), semconv.QUEUE_TIME, "idle")
        if times.ttft is not None:
            self._labels.extend(zip(repeat(1), moments), semconv.TOKENS, "output")
        if self._slo is not None:
            self._add_objectives(self._slo, times, [None] * len(moments))

    def _add_times(self, times: UsualTimes) -> None:
        labels, moments = self._labels, self._moments
        for stage, spent in times.stages.items():
            labels.extend(zip(spent, moments, strict=True), semconv.STAGE_DURATION, stage)
        labels.extend(zip(times.e2e, moments, strict=True), semconv.REQUEST_DURATION, _DONE)
        if self._live:
            labels.extend(zip(times.e2e, moments, strict=True), semconv.GEN_AI_REQUEST_DURATION, None)
        if times.ttft is not None:
            labels.extend(zip(times.ttft, moments, strict=True), semconv.TIME_TO_FIRST_TOKEN, _DONE)
            if self._live:
                labels.extend(zip(times.ttft, moments, strict=True), semconv.GEN_AI_TIME_TO_FIRST_TOKEN)

    def _add_ends(self, verdicts: Sequence[UsualVerdict | None], times: UsualTimes) -> None:
        """Add what became of the requests, and what held them."""
        ended: dict[tuple[str | None, str | None], list[Moment]] = {}
        idle: list[tuple[float, Moment]] = []
        rows = zip(self._together, verdicts, times.bottlenecks, times.stages["queue"], self._moments, strict=True)
        for number, (request, verdict, bottleneck, wait, moment) in enumerate(rows):
            cause = None
            if verdict is not None:
                cause = verdict.cause
                self._add_held(verdict, moment)
            elif request.end.alone:
                # Nobody ran beside it: all of its wait is idle.
                if wait:
                    idle.append((wait, moment))
                cause = "idle" if bottleneck == "queue" else None
            key = bottleneck, cause
            if key in ended:
                ended[key].append(moment)
            else:
                ended[key] = [moment]
            if bottleneck == MIXED:
                # In the stage histogram it is one among all.  Its alert names the stages that cost it time.
                for stage, spent in times.stages.items():
                    self._labels.add((spent[number], moment), semconv.MIXED_TIME, stage)
        for (bottleneck, cause), moments in ended.items():
            self._labels.extend(zip(repeat(1), moments), semconv.REQUESTS, _DONE, None, bottleneck, cause, None)
        if idle:
            self._labels.extend(idle, semconv.QUEUE_TIME, "idle")

    def _add_held(self, verdict: UsualVerdict, moment: Moment) -> None:
        for cause, lost in verdict.queue_time.items():
            self._labels.add((lost, moment), semconv.QUEUE_TIME, cause)
        for cause, lost in verdict.stall_time.items():
            self._labels.add((lost, moment), semconv.STALLED_TIME, cause)

    def _add_counts(self) -> None:
        read: list[tuple[int, Moment]] = []
        written: list[tuple[int, Moment]] = []
        for request, moment in zip(self._together, self._moments, strict=True):
            end, verdict = request.end, request.verdict
            tokens = end.tokens if verdict is None else verdict.tokens
            if end.usage is not None:
                # The engine's own figure is what it billed; marks count what was seen of it.
                tokens = end.usage.get("output_tokens", tokens)
                # A count of 0 would add nothing but a series.
                if input_tokens := end.usage.get("input_tokens"):
                    read.append((input_tokens, moment))
            if tokens:
                written.append((tokens, moment))
        if read:
            self._labels.extend(read, semconv.TOKENS, "input")
        if written:
            self._labels.extend(written, semconv.TOKENS, "output")

    def _add_tokens(self, verdict: UsualVerdict, moment: Moment) -> None:
        labels = self._labels
        labels.add((verdict.tpot, moment), semconv.TIME_PER_OUTPUT_TOKEN, _DONE)
        labels.add((verdict.gaps, moment), semconv.INTER_TOKEN_LATENCY)
        if self._live:
            labels.add((verdict.convention_time_per_output_token, moment), semconv.GEN_AI_TIME_PER_OUTPUT_TOKEN)

    def _add_objectives(self, slo: Slo, times: UsualTimes, verdicts: Sequence[UsualVerdict | None]) -> None:
        figures: dict[str, Sequence[float | None]] = {
            "ttft": times.ttft or [None] * len(verdicts),
            "tpot": [None if verdict is None else verdict.tpot for verdict in verdicts],
            "e2e": times.e2e,
        }
        # If the slowest of them met each objective, all did, and none is looked at by itself.
        known = {name: [figure for figure in column if figure is not None] for name, column in figures.items()}
        worst = {name: max(column, default=None) for name, column in known.items()}
        kept = slo.judge(worst, completed=True)
        if all(kept.values()):
            for objective in kept:
                judged = map(is_not, figures.get(objective, self._moments), repeat(None))
                self._labels.extend(
                    zip(repeat(1), compress(self._moments, judged)), semconv.SLO_RESULTS, objective, True, None
                )
            return
        ended: dict[tuple[str, bool, str | None], list[Moment]] = {}
        for number, row in enumerate(zip(*figures.values(), strict=True)):
            stages = {stage: spent[number] for stage, spent in times.stages.items()}
            for result in judge_objectives(slo, self._shape, dict(zip(figures, row, strict=True)), stages):
                ended.setdefault(result, []).append(self._moments[number])
        for (objective, met, stage), moments in ended.items():
            self._labels.extend(zip(repeat(1), moments), semconv.SLO_RESULTS, objective, met, stage)
