"""The usual request: it completed, was marked live in order, one token at a time, and nothing was wrong with it.

How it works.  Everything that the metrics say of such a request follows from the times of its boundaries and its
tokens, without a report.  Where no span shows more, nothing is computed at its end: it is handed over as it is, and
judged when metrics are collected.  :func:`judge_usual` gives what :func:`~otel_lifecycle._core.verdict.assess` gives of
the same request, for a tenth of the cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import sub
from typing import Any, Final, NamedTuple, TypeAlias

from otel_lifecycle._core.interference import Interference
from otel_lifecycle._core.labels import RequestLabels
from otel_lifecycle._core.lifecycle import SHAPES, STAGE_ORDER, Shape
from otel_lifecycle._core.outcome import MIXED
from otel_lifecycle._core.report import Report
from otel_lifecycle._core.slo import Slo, missed_stages
from otel_lifecycle._core.stalls import MIN_GAPS, find_stalls_in
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.tokens import Log
from otel_lifecycle._core.verdict import SECOND, by_cause


class SortedGaps(list[int]):
    """Gaps in nanoseconds, sorted, and their ``total``: to add 16,000 of them up takes 0.3 ms of the serving thread."""

    __slots__ = ("total",)

    total: int


class UsualGaps(NamedTuple):
    """The gaps between the tokens of one request, sorted; ``span``: nanoseconds from the first token to the last."""

    gaps: SortedGaps
    span: int


class Rules(NamedTuple):
    """What a processor judges by, and whether it feeds the GenAI convention's metrics, too."""

    threshold: float
    slo: Slo | None
    convention: bool


class UsualEnd(NamedTuple):
    """A usual request that has ended.

    Times and numbers alone: the request itself is freed when its server drops it, and not when it is judged.
    ``times``: of its boundaries, from arrival to the end, so that each stage of its shape lies between two neighbours.
    ``log``: the times of its tokens; None of fewer than two.  ``alone``: no other request of its engine was there
    meanwhile, so ``interference`` need not be asked for.  ``gaps``: between its tokens, where somebody has needed
    them already.  ``span``: what identifies its span.  ``offset``: what turns its times into epoch
    nanoseconds.  ``rules``: what it is judged by, ``verdict``: if it has been judged.
    """

    shape: str
    times: Sequence[int]
    log: Sequence[int] | None
    labels: RequestLabels
    usage: Mapping[str, int] | None
    alone: bool
    interference: Interference | None
    gaps: UsualGaps | None
    span: Any
    offset: int
    rules: Rules
    verdict: UsualVerdict | None = None

    @property
    def tokens(self) -> int | None:
        """How many it put out; None in a shape that has none."""
        return len(self.log) if self.log is not None else 1 if SHAPES[self.shape].streams else None


UsualFields: TypeAlias = tuple[
    str,
    Sequence[int],
    "Sequence[int] | None",
    RequestLabels,
    "Mapping[str, int] | None",
    bool,
    "Interference | None",
    "UsualGaps | None",
    Any,
    int,
    Rules,
    "UsualVerdict | None",
]
"""The fields of a :class:`UsualEnd` in order, by themselves: to make one of them takes longer than to hand it over."""


class UsualVerdict(NamedTuple):
    """What the metrics say of a usual request; times in seconds, as in ``Verdict``.

    ``stages`` and ``shares``: of each stage, in the order of :data:`USUAL_STAGES`; no shares where all came at one
    instant.  ``tokens``: how many it put out; None in a shape that has none.
    """

    stages: list[float]
    shares: list[float]
    bottleneck: str | None
    cause: str | None
    e2e: float
    ttft: float | None
    tpot: float | None
    token_span: float
    convention_time_per_output_token: float | None
    tokens: int | None
    gaps: Sequence[int]
    queue_time: Mapping[str, float]
    stall_time: Mapping[str, float]


class UsualDetail(NamedTuple):
    """What tokens and neighbours add to the times of a usual request; the fields are those of its verdict."""

    cause: str | None
    tpot: float | None
    convention_time_per_output_token: float | None
    tokens: int | None
    gaps: Sequence[int]
    queue_time: Mapping[str, float]
    stall_time: Mapping[str, float]


def _places(shape: Shape) -> tuple[tuple[str, int], ...]:
    names = [stage.name for stage in shape.stages]
    return tuple((name, names.index(name)) for name in STAGE_ORDER if name in names)


_PLACES: Final = {name: _places(shape) for name, shape in SHAPES.items()}
"""Shape -> its stages in the order in which a tie is decided, and the place of each in the order of the shape."""

USUAL_STAGES: Final = {name: tuple(stage for stage, _ in places) for name, places in _PLACES.items()}
"""Shape -> its stages, in the order in which a tie is decided."""


def is_usual(timeline: Timeline) -> bool:
    """Return whether a request that ended with this timeline, and without a violation, was a usual one."""
    return timeline.plain and timeline.state == "completed" and not timeline.assumed and not timeline.folded


def usual_gaps(log: Sequence[int] | None) -> UsualGaps:
    """Return the gaps between the tokens of a usual request."""
    gaps = SortedGaps()
    gaps.total = 0
    if log is None:
        return UsualGaps(gaps, 0)
    # No list but the one that is kept: of a long answer, none of them fits into a cache.
    later = iter(log)
    next(later)
    gaps.extend(map(sub, later, log))
    gaps.sort()
    if gaps[0] < 0:
        # Live marks of racing threads, out of order.
        return usual_gaps(sorted(log))
    gaps.total = log[-1] - log[0]
    return UsualGaps(gaps, gaps.total)


def usual_log(timeline: Timeline) -> Log | None:
    """Return the times of the tokens of a usual request; None of fewer than two."""
    log = timeline.tokens.get(0, ())
    return log if len(log) > 1 else None


def usual_report(shape: str, times: dict[str, int]) -> Report:
    """Return as much of the report of a usual request as its neighbours are compared by."""
    return {
        "status": "completed",
        "failure_stage": None,
        "timestamps": times,
        "token_times": None,
        "shape": shape,
        "preempted": {},
        "output_tokens": None,
        "choices": {},
        "itl": [],
    }


def judge_usual(end: UsualEnd, threshold: float) -> UsualVerdict:
    """Judge a usual request; what its SLO says of it is :func:`judge_objectives`."""
    times, log = end.times, end.log
    # The stages follow one another without a break, so the whole is their sum. It is 0 where all came at one instant.
    whole = times[-1] - times[0]
    spent = [times[place + 1] - times[place] for _, place in _PLACES[end.shape]]
    shares = [time / whole for time in spent] if whole else []
    bottleneck = _bottleneck(end.shape, spent, whole, threshold) if whole else None
    tpot = per_token = None
    # The first token is the last boundary but one.
    ttft = times[-2] - times[0] if SHAPES[end.shape].streams else None
    gaps: Sequence[int] = []
    token_span = 0
    if log is not None and ttft is not None:
        gaps, token_span = usual_gaps(log) if end.gaps is None else end.gaps
        tpot = token_span / (len(log) - 1) / SECOND
        per_token = (whole - ttft) / (len(log) - 1) / SECOND
    queue, stalled, cause = _held(end, gaps, bottleneck)
    return UsualVerdict(
        [time / SECOND for time in spent],
        shares,
        bottleneck,
        cause,
        whole / SECOND,
        None if ttft is None else ttft / SECOND,
        tpot,
        token_span / SECOND,
        per_token,
        end.tokens,
        gaps,
        queue,
        stalled,
    )


def judge_detail(end: UsualEnd, bottleneck: str | None) -> UsualDetail:
    """Judge what :func:`judge_times` leaves out, as :func:`judge_usual` does; ``bottleneck`` is what it found."""
    times, log = end.times, end.log
    tpot = per_token = None
    gaps: Sequence[int] = []
    if log is not None:
        between = len(log) - 1
        gaps, token_span = usual_gaps(log) if end.gaps is None else end.gaps
        tpot = token_span / between / SECOND
        # Decode lies between the last two boundaries.
        per_token = (times[-1] - times[-2]) / between / SECOND
    queue, stalled, cause = _held(end, gaps, bottleneck)
    return UsualDetail(cause, tpot, per_token, end.tokens, gaps, queue, stalled)


_Held: TypeAlias = "tuple[Mapping[str, float], Mapping[str, float], str | None]"
_NOTHING: Final[Mapping[str, float]] = {}


def _held(end: UsualEnd, gaps: Sequence[int], bottleneck: str | None) -> _Held:
    """Return the queue time and the stall time by cause, and the cause of the bottleneck."""
    found, times = end.interference, end.times
    if found is not None:
        decode = times[-1] - times[-2] if SHAPES[end.shape].streams else None
        return by_cause(found.queue), by_cause(found.stall_split), found.cause(bottleneck, decode)
    if not end.alone:
        return _NOTHING, _NOTHING, None
    # Nobody ran beside it: all of its wait is idle, and no neighbour explains a stall.
    place = _PLACES[end.shape][0][1]
    wait = times[place + 1] - times[place]
    stalls = None if end.log is None or len(gaps) < MIN_GAPS else find_stalls_in(end.log, gaps)
    cause = None
    if bottleneck == "queue":
        cause = "idle"
    elif bottleneck == "decode" and stalls is not None:
        cause = "own"
    return (
        {"idle": wait / SECOND} if wait else _NOTHING,
        {"unexplained": stalls.time / SECOND} if stalls is not None and stalls.intervals else _NOTHING,
        cause,
    )


def met_objectives(slo: Slo, verdict: UsualVerdict) -> dict[str, bool]:
    """Return each objective that can be judged, and whether it was met."""
    return slo.judge({"ttft": verdict.ttft, "tpot": verdict.tpot, "e2e": verdict.e2e}, completed=True)


def judge_objectives(
    slo: Slo, shape: str, figures: Mapping[str, float | None], stages: Mapping[str, float]
) -> Iterator[tuple[str, bool, str | None]]:
    """Yield each objective that can be judged, whether it was met, and the stage that is to blame.

    ``figures``: ttft, tpot and e2e; ``stages``: the time of each; all in seconds.
    """
    results = slo.judge(figures, completed=True)
    blamed = {} if all(results.values()) else missed_stages(results, stages, shape)
    for objective, met in results.items():
        yield objective, met, blamed.get(objective)


class UsualTimes(NamedTuple):
    """What follows from the boundaries of usual requests of one shape, column by column, in nanoseconds.

    ``stages``: by stage, in the order in which a tie is decided.  ``ttft``: None in a shape without tokens.
    """

    stages: Mapping[str, list[int]]
    e2e: list[int]
    ttft: list[int] | None
    bottlenecks: list[str | None]


def judge_times(shape: str, times: Sequence[Sequence[int]], threshold: float) -> UsualTimes:
    """Judge usual requests of one shape by their boundaries alone, as :func:`judge_usual` does each of them."""
    columns, names = list(zip(*times, strict=True)), USUAL_STAGES[shape]
    first, last = columns[0], columns[-1]
    spent = [list(map(sub, columns[place + 1], columns[place])) for _, place in _PLACES[shape]]
    whole = list(map(sub, last, first))
    bottlenecks = [
        None
        if not total
        # As in `_bottleneck`, whose call would be a third of what the judgement costs.
        else names[parts.index(largest)]
        if (largest := max(parts)) / total >= threshold
        else MIXED
        for total, parts in zip(whole, zip(*spent, strict=True), strict=True)
    ]
    ttft = list(map(sub, columns[-2], first)) if SHAPES[shape].streams else None
    return UsualTimes(dict(zip(names, spent, strict=True)), whole, ttft, bottlenecks)


def _bottleneck(shape: str, spent: Sequence[int], whole: int, threshold: float) -> str:
    largest = max(spent)
    return USUAL_STAGES[shape][spent.index(largest)] if largest / whole >= threshold else MIXED
