"""The usual request: it completed, was marked live in order, one token at a time, and nothing was wrong with it.

How it works.  Everything that the metrics say of such a request follows from the times of its boundaries and its
tokens, without a report.  Where no span shows more, nothing is computed at its end: it is handed over as it is, and
judged when metrics are collected.  :func:`judge_usual` gives what :func:`~otel_lifecycle._core.verdict.assess` gives of
the same request, for a tenth of the cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import sub
from typing import Final, NamedTuple, TypeAlias

from otel_lifecycle._core.interference import Interference
from otel_lifecycle._core.labels import RequestLabels
from otel_lifecycle._core.lifecycle import SHAPES, STAGE_ORDER, Shape
from otel_lifecycle._core.outcome import MIXED
from otel_lifecycle._core.report import Report
from otel_lifecycle._core.slo import Slo, missed_stages
from otel_lifecycle._core.stalls import MIN_GAPS, find_stalls
from otel_lifecycle._core.timeline import Timeline
from otel_lifecycle._core.verdict import SECOND, by_cause


class UsualEnd(NamedTuple):
    """A usual request that has ended.  Its timeline does not change any more.

    ``alone``: no other request of its engine was there meanwhile, so ``interference`` need not be asked for.  ``gaps``:
    of its tokens, sorted, where somebody has needed them already.
    """

    timeline: Timeline
    labels: RequestLabels
    usage: Mapping[str, int]
    alone: bool
    interference: Interference | None
    gaps: list[int] | None


class UsualVerdict(NamedTuple):
    """What the metrics say of a usual request; times in seconds, as in ``Verdict``.

    ``stages``: of each stage, in the order of :data:`USUAL_STAGES`.  ``tokens``: how many it put out; None in a shape
    that has none.
    """

    stages: list[float]
    bottleneck: str | None
    cause: str | None
    e2e: float
    ttft: float | None
    tpot: float | None
    convention_time_per_output_token: float | None
    tokens: int | None
    gaps: list[int]
    queue_time: Mapping[str, float]
    stall_time: Mapping[str, float]


def _bounds(shape: Shape) -> tuple[tuple[str, str, str], ...]:
    by_name = {stage.name: stage for stage in shape.stages}
    return tuple((name, by_name[name].entered, by_name[name].left) for name in STAGE_ORDER if name in by_name)


_BOUNDS: Final = {name: _bounds(shape) for name, shape in SHAPES.items()}

_WAITS: Final = {name: bounds[0][1:] for name, bounds in _BOUNDS.items()}
"""Shape -> what bounds its queue, which is the first of the order."""

USUAL_STAGES: Final = {name: tuple(stage for stage, _, _ in bounds) for name, bounds in _BOUNDS.items()}
"""Shape -> its stages, in the order in which a tie is decided."""


def is_usual(timeline: Timeline) -> bool:
    """Return whether a request that ended with this timeline, and without a violation, was a usual one."""
    return timeline.plain and timeline.state == "completed" and not timeline.assumed and not timeline.folded


def usual_gaps(timeline: Timeline) -> list[int]:
    """Return the gaps between the tokens of a usual request, sorted."""
    log = timeline.tokens.get(0, ())
    gaps = sorted(map(sub, log[1:], log))
    if gaps and gaps[0] < 0:
        # Live marks of racing threads, out of order.
        log = sorted(log)
        gaps = sorted(map(sub, log[1:], log))
    return gaps


def usual_report(timeline: Timeline) -> Report:
    """Return as much of the report of a usual request as its neighbours are compared by."""
    return {
        "status": "completed",
        "failure_stage": None,
        "timestamps": timeline.times,
        "token_times": None,
        "shape": timeline.shape.name,
        "preempted": {},
        "output_tokens": None,
        "choices": {},
        "itl": [],
    }


def judge_usual(end: UsualEnd, threshold: float) -> UsualVerdict:
    """Judge a usual request; what its SLO says of it is :func:`judge_objectives`."""
    timeline = end.timeline
    times, log = timeline.times, timeline.tokens.get(0)
    arrival, terminal = times["arrival"], times["terminal"]
    spent = [times[left] - times[entered] for _, entered, left in _BOUNDS[timeline.shape.name]]
    whole = terminal - arrival
    # The stages follow one another without a break, so the whole is their sum. It is 0 where all came at one instant.
    shares = [time / whole for time in spent] if whole else []
    largest = max(shares, default=0.0)
    bottleneck = None
    if whole:
        bottleneck = USUAL_STAGES[timeline.shape.name][shares.index(largest)] if largest >= threshold else MIXED
    ttft = tpot = per_token = None
    gaps: list[int] = []
    if log:
        ttft = times["first_token"] - arrival
        if len(log) > 1:
            gaps = usual_gaps(timeline) if end.gaps is None else end.gaps
            # Also where racing threads appended out of order.
            tpot = sum(gaps) / (len(log) - 1) / SECOND
            per_token = (whole - ttft) / (len(log) - 1) / SECOND
    queue, stalled, cause = _held(end, gaps, bottleneck, times)
    return UsualVerdict(
        [time / SECOND for time in spent],
        bottleneck,
        cause,
        whole / SECOND,
        None if ttft is None else ttft / SECOND,
        tpot,
        per_token,
        len(log) if log else None,
        gaps,
        queue,
        stalled,
    )


_Held: TypeAlias = "tuple[Mapping[str, float], Mapping[str, float], str | None]"
_NOTHING: Final[Mapping[str, float]] = {}


def _held(end: UsualEnd, gaps: list[int], bottleneck: str | None, times: Mapping[str, int]) -> _Held:
    """Return the queue time and the stall time by cause, and the cause of the bottleneck."""
    found = end.interference
    if found is not None:
        decode = times["terminal"] - times["first_token"] if "first_token" in times else None
        return by_cause(found.queue), by_cause(found.stall_split), found.cause(bottleneck, decode)
    if not end.alone:
        return _NOTHING, _NOTHING, None
    # Nobody ran beside it: all of its wait is idle, and no neighbour explains a stall.
    entered, left = _WAITS[end.timeline.shape.name]
    wait = times[left] - times[entered]
    stalls = find_stalls(end.timeline, gaps) if len(gaps) >= MIN_GAPS else None
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


def judge_objectives(slo: Slo, shape: str, verdict: UsualVerdict) -> Iterator[tuple[str, bool, str | None]]:
    """Yield each objective that can be judged, whether it was met, and the stage that is to blame."""
    known = {"ttft": verdict.ttft, "tpot": verdict.tpot, "e2e": verdict.e2e}
    results = slo.judge(known, completed=True)
    blamed = missed_stages(results, dict(zip(USUAL_STAGES[shape], verdict.stages, strict=True)), shape)
    for objective, met in results.items():
        yield objective, met, blamed.get(objective)
