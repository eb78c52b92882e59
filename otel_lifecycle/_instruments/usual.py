"""Usual requests on their way into the instruments: nothing is computed before they are folded.

How it works.  Usual requests of one label set and shape have the same samples, so these are computed and added column
by column, each column at C speed.  Only what tokens and neighbours add is judged request by request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import chain, compress, count, repeat, starmap
from operator import add, and_, attrgetter, eq, gt, is_, is_not, itemgetter, mul, not_, or_
from typing import Any, Final, NamedTuple

from otel_lifecycle import semconv
from otel_lifecycle._core.outcome import MIXED
from otel_lifecycle._core.slo import Slo
from otel_lifecycle._core.usual import (
    UsualDetail,
    UsualEnd,
    UsualFields,
    UsualTimes,
    judge_detail,
    judge_objectives,
    judge_times,
)
from otel_lifecycle._core.verdict import SECOND
from otel_lifecycle._instruments.label_sets import LabelSet, LabelSets
from otel_lifecycle._instruments.moment import Moment
from otel_lifecycle._instruments.samples import Moments, Nanoseconds, Samples, in_seconds
from otel_lifecycle._log import say
from otel_lifecycle.semconv import Metric

_DONE: Final = "completed"
# The trace flags of a span context, by their place in it: by name they are a property, and a call for each request.
_FLAGS: Final = itemgetter(3)
_LAST: Final = itemgetter(-1)
_DETAIL: Final = attrgetter(*UsualDetail._fields)


class _Details(NamedTuple):
    """What is known of requests beyond their boundaries, each field as a column.

    ``told``: of which requests it tells; of the others nothing else is known.  The rest is as in ``UsualDetail``.
    """

    told: Sequence[bool]
    of: Any


class _Together:
    """Usual requests, and each of their fields as a column; ``fields``: an end whose fields are these columns."""

    __slots__ = ("ends", "fields")

    def __init__(self, ends: Sequence[UsualFields]) -> None:
        self.ends = ends
        # Turned at C speed: reading field by field costs more than everything that is computed of a column.
        self.fields: Any = UsualEnd._make(zip(*ends, strict=True))

    def alike(self) -> Sequence[_Together]:
        """Return those with the same labels, shape and rules together."""
        # By identity: requests of one server share these objects, and comparing labels costs more than all the rest.
        shared = self.fields.labels, self.fields.shape, self.fields.rules
        if all(all(map(is_, column, repeat(column[0]))) for column in shared):
            return [self]
        alike: dict[tuple[int, ...], list[UsualFields]] = {}
        for key, end in zip(zip(*(map(id, column) for column in shared), strict=True), self.ends, strict=True):
            alike.setdefault(key, []).append(end)
        return list(map(_Together, alike.values()))

    def moments(self) -> Moments:
        """Return when they ended, and in which traces."""
        fields = self.fields
        sampled = any(flags & 1 for flags in set(map(_FLAGS, fields.span)))

        def make() -> list[Moment]:
            return list(map(Moment, fields.span, map(add, map(_LAST, fields.times), fields.offset)))

        return Moments(make, sampled=sampled)

    def judge(self) -> tuple[UsualTimes, _Details | None]:
        """Return what follows from their times, and what tokens and neighbours add; None where they add nothing."""
        fields = self.fields
        times = judge_times(fields.shape[0], fields.times, fields.rules[0].threshold)
        if not (any(fields.log) or any(fields.interference) or any(fields.verdict)):
            return times, None
        nothing = UsualDetail(None, None, None, None if times.ttft is None else 1, (), {}, {})
        details = [
            end.verdict
            if end.verdict is not None
            else nothing
            if end.log is None and end.interference is None
            else judge_detail(end, bottleneck)
            for end, bottleneck in zip(starmap(UsualEnd, self.ends), times.bottlenecks, strict=True)
        ]
        told = list(map(is_not, details, repeat(nothing)))
        return times, _Details(told, UsualDetail._make(zip(*map(_DETAIL, details), strict=True)))


def fold_usual(ends: Sequence[UsualFields], sets: LabelSets) -> None:
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

    __slots__ = ("_fields", "_labels", "_live", "_moments", "_ones", "_shape", "_slo", "_times")

    def __init__(self, labels: LabelSet, together: _Together, times: UsualTimes) -> None:
        one = UsualEnd(*together.ends[0])
        rules = one.rules
        self._labels = labels
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
        if details is None:
            self._add_ends()
            self._add_counts(
                self._ones.values if self._times.ttft is not None else repeat(None, len(self._ones.values))
            )
        else:
            self._add_told_ends(details)
            self._add_counts(details.of.tokens)
            self._add_tokens(details.of)
            self._add_held(details.of)
        if self._slo is not None:
            self._add_objectives(self._slo, details)

    def _add_where(self, samples: Samples, those: Sequence[Any], metric: Metric, *own: Any) -> None:
        """Add the samples of those requests, if there are any."""
        if all(those):
            self._labels.add(samples, metric, *own)
        elif any(those):
            self._labels.add(samples.where(those), metric, *own)

    def _add_each(self, values: Sequence[Any], those: Sequence[Any], metric: Metric, *own: Any) -> None:
        """Add a value for each of those requests."""
        self._add_where(Samples(values, self._moments), those, metric, *own)

    def _add_times(self) -> None:
        labels, moments, times = self._labels, self._moments, self._times
        for stage, spent in times.stages.items():
            labels.add(Nanoseconds(spent, moments), semconv.STAGE_DURATION, stage)
        # One object for two metrics, so that its values are sorted once.
        e2e = Nanoseconds(times.e2e, moments)
        labels.add(e2e, semconv.REQUEST_DURATION, _DONE)
        if self._live:
            labels.add(e2e, semconv.GEN_AI_REQUEST_DURATION, None)
        if times.ttft is not None:
            ttft = Nanoseconds(times.ttft, moments)
            labels.add(ttft, semconv.TIME_TO_FIRST_TOKEN, _DONE)
            if self._live:
                labels.add(ttft, semconv.GEN_AI_TIME_TO_FIRST_TOKEN)

    def _add_ends(self) -> None:
        """Add what became of requests of which no more is known than whether they were alone on their engine."""
        bottlenecks, alone = self._times.bottlenecks, self._fields.alone
        for name in dict.fromkeys(bottlenecks):
            those: Sequence[Any] = list(map(eq, bottlenecks, repeat(name)))
            if name == "queue" and any(alone):
                self._add_where(
                    self._ones, list(map(and_, those, alone)), semconv.REQUESTS, _DONE, None, name, "idle", None
                )
                those = list(map(gt, those, alone))
            self._add_where(self._ones, those, semconv.REQUESTS, _DONE, None, name, None, None)
        self._add_mixed()
        self._add_idle(alone)

    def _add_told_ends(self, details: _Details) -> None:
        """Add what became of requests of which some tell themselves what held them."""
        alone = list(map(gt, self._fields.alone, details.told))
        ended = [
            (name, "idle" if idle and name == "queue" else cause)
            for name, idle, cause in zip(self._times.bottlenecks, alone, details.of.cause, strict=True)
        ]
        for key in dict.fromkeys(ended):
            self._add_where(self._ones, list(map(eq, ended, repeat(key))), semconv.REQUESTS, _DONE, None, *key, None)
        self._add_mixed()
        self._add_idle(alone)

    def _add_mixed(self) -> None:
        if MIXED in self._times.bottlenecks:
            # In the stage histogram it is one among all.  Its alert names the stages that cost it time.
            mixed = list(map(eq, self._times.bottlenecks, repeat(MIXED)))
            for stage, spent in self._times.stages.items():
                self._add_where(Nanoseconds(spent, self._moments), mixed, semconv.MIXED_TIME, stage)

    def _add_idle(self, alone: Sequence[bool]) -> None:
        """Add the waits of those that nobody ran beside; one that did not wait adds nothing, not a series either."""
        if any(alone):
            waits = self._times.stages["queue"]
            idle = waits if all(alone) else list(map(mul, waits, alone))
            self._add_where(Nanoseconds(waits, self._moments), idle, semconv.QUEUE_TIME, "idle")

    def _add_counts(self, tokens: Iterable[int | None]) -> None:
        """Add the tokens.  A count of 0 adds nothing, not a series either."""
        usages = self._fields.usage
        if any(usages):
            # The engine's own figure is what it billed; marks count what was seen of it.
            given = [{} if usage is None else usage for usage in usages]
            read = [usage.get("input_tokens") for usage in given]
            self._add_each(read, read, semconv.TOKENS, "input")
            tokens = [usage.get("output_tokens", seen) for usage, seen in zip(given, tokens, strict=True)]
        written = list(tokens)
        self._add_each(written, written, semconv.TOKENS, "output")

    def _add_tokens(self, of: Any) -> None:
        timed = list(map(is_not, of.tpot, repeat(None)))
        self._add_each(of.tpot, timed, semconv.TIME_PER_OUTPUT_TOKEN, _DONE)
        self._add_each(of.gaps, timed, semconv.INTER_TOKEN_LATENCY)
        if self._live:
            self._add_each(of.convention_time_per_output_token, timed, semconv.GEN_AI_TIME_PER_OUTPUT_TOKEN)

    def _add_held(self, of: Any) -> None:
        """Add what held the requests, by its cause."""
        for metric, held in ((semconv.QUEUE_TIME, of.queue_time), (semconv.STALLED_TIME, of.stall_time)):
            for cause in dict.fromkeys(chain.from_iterable(held)):
                values = [lost.get(cause) for lost in held]
                self._add_each(values, list(map(is_not, values, repeat(None))), metric, cause)

    def _add_objectives(self, slo: Slo, details: _Details | None) -> None:
        times = self._times
        known = [] if details is None else [figure for figure in details.of.tpot if figure is not None]
        # If the slowest of them met each objective, all did, and none is looked at by itself.
        worst = {
            "e2e": max(times.e2e) / SECOND,
            "ttft": None if times.ttft is None else max(times.ttft) / SECOND,
            "tpot": max(known, default=None),
        }
        kept = slo.judge(worst, completed=True)
        met: Sequence[Any] = self._ones.values
        if not all(kept.values()):
            met = self._add_missed(slo, details)
        for objective in kept:
            those = met
            if objective == "tpot" and details is not None:
                those = list(map(mul, met, map(is_not, details.of.tpot, repeat(None))))
            self._add_where(self._ones, those, semconv.SLO_RESULTS, objective, True, None)

    def _add_missed(self, slo: Slo, details: _Details | None) -> list[bool]:
        """Add the results of the requests that missed an objective; return which requests met all."""
        figures: dict[str, Sequence[float | None]] = {"e2e": in_seconds(self._times.e2e)}
        if self._times.ttft is not None:
            figures["ttft"] = in_seconds(self._times.ttft)
        if details is not None:
            figures["tpot"] = details.of.tpot
        late = [False] * len(self._ones.values)
        for name, column in figures.items():
            limit = getattr(slo, name)
            if limit is not None:
                missed = (figure is not None and figure > limit for figure in column)
                late = list(map(or_, late, missed))
        stages = {stage: in_seconds(spent) for stage, spent in self._times.stages.items()}
        ended: dict[tuple[str, bool, str | None], list[int]] = {}
        for number in compress(count(), late):
            row = {name: column[number] for name, column in figures.items()}
            spent = {stage: column[number] for stage, column in stages.items()}
            for result in judge_objectives(slo, self._shape, row, spent):
                ended.setdefault(result, []).append(number)
        for result, numbers in ended.items():
            self._labels.add(Samples((1,) * len(numbers), self._moments.at(numbers)), semconv.SLO_RESULTS, *result)
        return list(map(not_, late))
