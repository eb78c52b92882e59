"""Usual requests on their way into the instruments: nothing is computed before they are folded.

How it works.  Usual requests of one label set and shape have the same samples, so these are computed and added column
by column, each column at C speed.  Only what tokens and neighbours add is judged request by request.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import compress, count, repeat
from operator import attrgetter, eq, is_not, mul
from typing import Any, Final, TypeAlias

from otel_lifecycle import semconv
from otel_lifecycle._core.outcome import MIXED
from otel_lifecycle._core.slo import Slo
from otel_lifecycle._core.usual import (
    UsualDetail,
    UsualEnd,
    UsualTimes,
    UsualVerdict,
    judge_detail,
    judge_objectives,
    judge_times,
)
from otel_lifecycle._instruments.label_sets import LabelSet, LabelSets
from otel_lifecycle._instruments.moment import Moment
from otel_lifecycle._instruments.samples import Moments, Samples
from otel_lifecycle._log import say
from otel_lifecycle.semconv import Metric

_DONE: Final = "completed"
_FLAGS: Final = attrgetter("trace_flags")


_Details: TypeAlias = "Sequence[UsualDetail | UsualVerdict | None]"


class _Together:
    """Usual requests, and each of their fields as a column; ``fields``: an end whose fields are these columns."""

    __slots__ = ("ends", "fields")

    def __init__(self, ends: Sequence[UsualEnd]) -> None:
        self.ends = ends
        # Turned at C speed: reading field by field costs more than everything that is computed of a column.
        self.fields: Any = UsualEnd._make(zip(*ends, strict=True))

    def alike(self) -> Sequence[_Together]:
        """Return those with the same labels, shape and rules together."""
        # By identity: requests of one server share these objects, and comparing them costs more than a further column.
        keys = list(zip(map(id, self.fields.labels), self.fields.shape, map(id, self.fields.rules), strict=True))
        if keys.count(keys[0]) == len(keys):
            return [self]
        alike: dict[tuple[int, str, int], list[UsualEnd]] = {}
        for key, end in zip(keys, self.ends, strict=True):
            alike.setdefault(key, []).append(end)
        return list(map(_Together, alike.values()))

    def moments(self) -> Moments:
        """Return when they ended, and in which traces."""
        sampled = any(flags & 1 for flags in set(map(_FLAGS, self.fields.span)))
        return Moments(lambda: list(map(Moment, self.fields.span, self.fields.time_unix_nano)), sampled=sampled)

    def judge(self) -> tuple[UsualTimes, _Details | None]:
        """Return what follows from their times, and what tokens and neighbours add; None where they add nothing."""
        fields = self.fields
        times = judge_times(fields.shape[0], fields.times, fields.rules[0].threshold)
        if not (any(fields.log) or any(fields.interference) or any(fields.verdict)):
            return times, None
        return times, [
            end.verdict
            if end.verdict is not None
            else None
            if end.log is None and end.interference is None
            else judge_detail(end, bottleneck)
            for end, bottleneck in zip(self.ends, times.bottlenecks, strict=True)
        ]


def fold_usual(ends: Sequence[UsualEnd], sets: LabelSets) -> None:
    """Judge usual requests and add their samples: the same as ``FinishedRequest`` of requests that are whole."""
    for together in _Together(ends).alike():
        _fold_alike(together, sets)


def _fold_alike(together: _Together, sets: LabelSets) -> None:
    """Fold requests with the same labels, shape and rules."""
    try:
        times, details = together.judge()
    except Exception as error:  # noqa: BLE001  # one bad value must not cost the others
        if len(together.ends) == 1:
            say("fold", "the metrics of a request could not be recorded", level=logging.ERROR, error=error)
            return
        for end in together.ends:
            _fold_alike(_Together([end]), sets)
    else:
        _Columns(sets.of(together.fields.labels[0]), together, times).add(details)


class _Columns:
    """The samples of requests with the same labels, shape and rules."""

    __slots__ = ("_fields", "_labels", "_live", "_moments", "_ones", "_shape", "_slo", "_times", "_together")

    def __init__(self, labels: LabelSet, together: _Together, times: UsualTimes) -> None:
        one = together.ends[0]
        rules = one.rules
        self._labels = labels
        self._together = together
        self._fields = together.fields
        self._moments = together.moments()
        self._times = times
        # A sample of one for each of them: several counters share it.
        self._ones = Samples((1,) * len(together.ends), self._moments)
        self._shape = one.shape
        self._live = rules.convention and one.labels.traffic == "live"
        self._slo = rules.slo

    def add(self, details: _Details | None) -> None:
        """Add them all; ``details``: what is known beyond their boundaries, None where that is nothing."""
        self._add_times()
        self._add_ends(details)
        self._add_counts(details)
        if details is not None:
            self._add_tokens(details)
            self._add_held(details)
        if self._slo is not None:
            self._add_objectives(self._slo, details)

    def _add_times(self) -> None:
        labels, moments, times = self._labels, self._moments, self._times
        for stage, spent in times.stages.items():
            labels.add(Samples(spent, moments), semconv.STAGE_DURATION, stage)
        # One object for two metrics, so that its values are sorted once.
        e2e = Samples(times.e2e, moments)
        labels.add(e2e, semconv.REQUEST_DURATION, _DONE)
        if self._live:
            labels.add(e2e, semconv.GEN_AI_REQUEST_DURATION, None)
        if times.ttft is not None:
            ttft = Samples(times.ttft, moments)
            labels.add(ttft, semconv.TIME_TO_FIRST_TOKEN, _DONE)
            if self._live:
                labels.add(ttft, semconv.GEN_AI_TIME_TO_FIRST_TOKEN)

    def _add_ends(self, details: _Details | None) -> None:
        """Add what became of the requests, and the wait of those whose details do not tell of it."""
        stages, bottlenecks = self._times.stages, self._times.bottlenecks
        alone = self._fields.alone
        causes = ["idle" if idle and name == "queue" else None for idle, name in zip(alone, bottlenecks, strict=True)]
        if details is not None:
            alone = [idle and detail is None for idle, detail in zip(alone, details, strict=True)]
            causes = [cause if detail is None else detail.cause for cause, detail in zip(causes, details, strict=True)]
        ended = list(zip(bottlenecks, causes, strict=True))
        for key in dict.fromkeys(ended):
            self._add_where(self._ones, list(map(eq, ended, repeat(key))), semconv.REQUESTS, _DONE, None, *key, None)
        if MIXED in bottlenecks:
            # In the stage histogram it is one among all.  Its alert names the stages that cost it time.
            mixed = list(map(eq, bottlenecks, repeat(MIXED)))
            for stage, spent in stages.items():
                self._add_where(Samples(spent, self._moments), mixed, semconv.MIXED_TIME, stage)
        # Nobody ran beside these: all of their wait is idle.  One that did not wait adds nothing, not a series either.
        waits = stages["queue"]
        self._add_where(Samples(waits, self._moments), list(map(mul, waits, alone)), semconv.QUEUE_TIME, "idle")

    def _add_where(self, samples: Samples, those: Sequence[Any], metric: Metric, *own: Any) -> None:
        """Add the samples of those requests, if there are any."""
        if all(those):
            self._labels.add(samples, metric, *own)
        elif any(those):
            chosen = self._moments.at(compress(count(), those))
            self._labels.add(Samples(list(compress(samples.values, those)), chosen), metric, *own)

    def _add_each(self, values: Sequence[Any], metric: Metric, *own: Any) -> None:
        """Add a value for each request; 0 and None add nothing, not a series either."""
        self._add_where(Samples(values, self._moments), values, metric, *own)

    def _add_counts(self, details: _Details | None) -> None:
        usages = self._fields.usage
        if details is None and not any(usages):
            if self._times.ttft is not None:
                self._labels.add(self._ones, semconv.TOKENS, "output")
            return
        read: list[int | None] = []
        written: list[int | None] = []
        for end, usage, detail in zip(self._together.ends, usages, details or repeat(None), strict=False):
            tokens = end.tokens if detail is None else detail.tokens
            # The engine's own figure is what it billed; marks count what was seen of it.
            written.append(tokens if usage is None else usage.get("output_tokens", tokens))
            read.append(None if usage is None else usage.get("input_tokens"))
        self._add_each(read, semconv.TOKENS, "input")
        self._add_each(written, semconv.TOKENS, "output")

    def _add_tokens(self, details: _Details) -> None:
        timed = [detail is not None and detail.tpot is not None for detail in details]
        if not any(timed):
            return
        known = [
            (detail.tpot, detail.gaps, detail.convention_time_per_output_token)
            for detail in compress(details, timed)
            if detail is not None
        ]
        moments = self._moments.at(compress(count(), timed))
        tpot, gaps, per_token = zip(*known, strict=True)
        self._labels.add(Samples(tpot, moments), semconv.TIME_PER_OUTPUT_TOKEN, _DONE)
        self._labels.add(Samples(gaps, moments), semconv.INTER_TOKEN_LATENCY)
        if self._live:
            self._labels.add(Samples(per_token, moments), semconv.GEN_AI_TIME_PER_OUTPUT_TOKEN)

    def _add_held(self, details: _Details) -> None:
        """Add what held the requests, by its cause."""
        queue = [{} if detail is None else detail.queue_time for detail in details]
        stalled = [{} if detail is None else detail.stall_time for detail in details]
        for metric, held in ((semconv.QUEUE_TIME, queue), (semconv.STALLED_TIME, stalled)):
            for cause in dict.fromkeys(cause for lost in held for cause in lost):
                those = [cause in lost for lost in held]
                values = [lost.get(cause) for lost in held]
                self._add_where(Samples(values, self._moments), those, metric, cause)

    def _add_objectives(self, slo: Slo, details: _Details | None) -> None:
        figures, known = self._figures(details)
        # If the slowest of them met each objective, all did, and none is looked at by itself.
        worst = {
            name: max(compress(column, known.get(name, repeat(True))), default=None) for name, column in figures.items()
        }
        kept = slo.judge(worst, completed=True)
        met: Sequence[Any] = self._ones.values
        if not all(kept.values()):
            met = self._add_missed(slo, figures, [name for name, was_met in kept.items() if not was_met])
        for objective in kept:
            those = list(map(mul, met, known[objective])) if objective in known else met
            self._add_where(self._ones, those, semconv.SLO_RESULTS, objective, True, None)

    def _figures(self, details: _Details | None) -> tuple[dict[str, Sequence[Any]], dict[str, Sequence[bool]]]:
        """Return what is judged, and for which requests it is known where that is not for all."""
        figures: dict[str, Sequence[Any]] = {"e2e": self._times.e2e}
        if self._times.ttft is not None:
            figures["ttft"] = self._times.ttft
        if details is None:
            return figures, {}
        figures["tpot"] = [None if detail is None else detail.tpot for detail in details]
        return figures, {"tpot": list(map(is_not, figures["tpot"], repeat(None)))}

    def _add_missed(self, slo: Slo, figures: Mapping[str, Sequence[Any]], missed: Sequence[str]) -> list[bool]:
        """Add the results of the requests that missed an objective; return which requests met all."""
        late = [False] * len(self._ones.values)
        for name in missed:
            # The whole has no figure: it is missed where another is.
            if (limit := getattr(slo, name, None)) is not None:
                late = [
                    was or (figure is not None and figure > limit)
                    for was, figure in zip(late, figures[name], strict=True)
                ]
        ended: dict[tuple[str, bool, str | None], list[int]] = {}
        for number in compress(count(), late):
            row = {name: column[number] for name, column in figures.items()}
            stages = {stage: spent[number] for stage, spent in self._times.stages.items()}
            for result in judge_objectives(slo, self._shape, row, stages):
                ended.setdefault(result, []).append(number)
        for result, numbers in ended.items():
            self._labels.add(Samples((1,) * len(numbers), self._moments.at(numbers)), semconv.SLO_RESULTS, *result)
        return [not was for was in late]
