"""The usual request among spans that nobody judged while they ran: every boundary in order, one token at a time.

How it works.  What such events amount to follows from their times alone, without a replay.  :func:`usual_attributes`
gives what :func:`~otel_lifecycle._core.judge.judge_events`, :func:`~otel_lifecycle._core.verdict.assess` and
:func:`~otel_lifecycle._core.attributes.end_attributes` give together, for an eighth of the cost; a property test holds
it against them.  A file of a million requests is read so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import sub
from typing import Any, Final, NamedTuple

from otel_lifecycle import semconv
from otel_lifecycle._core.attributes import DURATIONS, LONG_WAIT_S
from otel_lifecycle._core.lifecycle import SHAPES, STAGE_ORDER
from otel_lifecycle._core.outcome import dominant
from otel_lifecycle._core.verdict import SECOND
from otel_lifecycle._core.workload import quantile

MOST: Final = 10_000
"""Events of a request that is judged here; of a longer stream the replay keeps only a part of the token times."""

_BOUNDARIES: Final = {
    name: ("arrive", *(stage.leave for stage in shape.stages[:-1])) for name, shape in SHAPES.items() if shape.streams
}
_STAGES: Final = {
    name: tuple((stage.name, DURATIONS[stage.metric]) for stage in SHAPES[name].stages) for name in _BOUNDARIES
}
# What these say needs the judge: an end reason is checked, and outputs in another unit are not tokens.
_SPECIAL: Final = frozenset({semconv.END_REASON, semconv.OUTPUT_UNIT})
_INPUTS: Final = (semconv.GEN_AI_USAGE_INPUT_TOKENS, semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS)


class UsualSpan(NamedTuple):
    """A usual request: the attributes of its end, and the gaps between its tokens in nanoseconds, in their order."""

    attributes: dict[str, Any]
    gaps: list[int]


def usual_attributes(
    names: Sequence[str], times: Sequence[int], attributes: Mapping[str, Any], threshold: float
) -> UsualSpan | None:
    """Return what the events of a usual request amount to; None if it needs the judge.

    ``times`` in nanoseconds, all of them known.  No event may have attributes of its own.
    """
    shape, count = attributes.get(semconv.SHAPE, "default"), len(names)
    boundaries = _BOUNDARIES.get(shape) if isinstance(shape, str) else None
    if boundaries is None or not len(boundaries) < count <= MOST or tuple(names[: len(boundaries)]) != boundaries:
        return None
    tokens = times[len(boundaries) - 1 : -1]
    if names[-1] != "complete" or names.count("token") != len(tokens) - 1 or not attributes.keys().isdisjoint(_SPECIAL):
        return None
    # One instant for all leaves nothing to share out.
    if sorted(times) != list(times) or times[0] == times[-1]:
        return None
    gaps = list(map(sub, tokens[1:], tokens))
    found = _of_boundaries(shape, (*times[: len(boundaries)], times[-1]), threshold)
    found.update(_of_tokens(tokens, gaps))
    found.update({key: attributes[key] for key in _INPUTS if _is_count(attributes.get(key))})
    usage = attributes.get(semconv.GEN_AI_USAGE_OUTPUT_TOKENS)
    found[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] = usage if _is_count(usage) else len(tokens)
    return UsualSpan(found, gaps)


def _of_boundaries(shape: str, bounds: Sequence[int], threshold: float) -> dict[str, Any]:
    whole = bounds[-1] - bounds[0]
    found: dict[str, Any] = {
        semconv.OUTCOME: "completed",
        semconv.LEGAL: True,
        semconv.VIOLATIONS: 0,
        semconv.TTFT: (bounds[-2] - bounds[0]) / SECOND,
        semconv.E2E: whole / SECOND,
    }
    spent = {}
    for (stage, attribute), start, end in zip(_STAGES[shape], bounds[:-1], bounds[1:], strict=True):
        spent[stage] = end - start
        found[attribute] = (end - start) / SECOND
    shares = {stage: spent[stage] / whole for stage in STAGE_ORDER}
    bottleneck, share = dominant(shares, threshold)
    found.update({semconv.SHARE_PREFIX + stage: part for stage, part in shares.items()})
    found[semconv.BOTTLENECK], found[semconv.DOMINANT_SHARE] = bottleneck, share
    found[semconv.DOMINANT_STAGE] = max(shares, key=shares.__getitem__)
    if found[semconv.QUEUE_WAIT] >= LONG_WAIT_S:
        found[semconv.QUEUE_LONG] = True
    return found


def _of_tokens(tokens: Sequence[int], gaps: list[int]) -> dict[str, Any]:
    span = tokens[-1] - tokens[0]
    found: dict[str, Any] = {semconv.STREAMED_TOKENS: len(tokens), semconv.TOKEN_SPAN: span / SECOND}
    if gaps:
        ordered = sorted(gaps)
        found[semconv.TPOT] = span / len(gaps) / SECOND
        found[semconv.ITL_COUNT], found[semconv.ITL_MAX] = len(gaps), ordered[-1] / SECOND
        for attribute, q in ((semconv.ITL_P50, 0.5), (semconv.ITL_P95, 0.95), (semconv.ITL_P99, 0.99)):
            found[attribute] = (quantile(ordered, q) or 0.0) / SECOND
    return found


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
