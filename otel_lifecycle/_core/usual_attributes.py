"""The attributes that a usual request leaves on its span.

How it works.  :func:`usual_attributes` gives what :func:`~otel_lifecycle._core.attributes.end_attributes` gives of the
same request, from its times alone: no report is built, and nothing that cannot be there is looked at.  A property test
holds it against that function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from otel_lifecycle import semconv
from otel_lifecycle._core.attributes import DURATIONS, ITL, LONG_WAIT_S, AttributeValue, interference_attributes
from otel_lifecycle._core.lifecycle import SHAPES
from otel_lifecycle._core.usual import USUAL_STAGES, UsualEnd, UsualVerdict
from otel_lifecycle._core.verdict import SECOND
from otel_lifecycle._core.workload import quantile

_QUANTILES: Final = ((ITL["p50"], 0.5), (ITL["p95"], 0.95), (ITL["p99"], 0.99))
_USAGE: Final = (
    ("input_tokens", semconv.GEN_AI_USAGE_INPUT_TOKENS),
    ("output_tokens", semconv.GEN_AI_USAGE_OUTPUT_TOKENS),
    ("cached_tokens", semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS),
)
_STAGES: Final = {
    name: tuple(
        (semconv.SHARE_PREFIX + stage, DURATIONS[next(one.metric for one in SHAPES[name].stages if one.name == stage)])
        for stage in stages
    )
    for name, stages in USUAL_STAGES.items()
}
"""Shape -> of each stage, in the order of its verdict, the attributes of its share and of its duration."""


class UsualNotes(NamedTuple):
    """What a usual request shows beside its times: ``delivered`` is nanoseconds after arrival."""

    events_dropped: int
    client_disconnected: bool
    delivered: int | None


def usual_attributes(
    end: UsualEnd, verdict: UsualVerdict, notes: UsualNotes, slo: Mapping[str, bool] | None, *, usage: bool = True
) -> dict[str, AttributeValue]:
    """Return every attribute that is known at the end; ``slo``: the objectives that were judged."""
    found: dict[str, AttributeValue] = {
        semconv.OUTCOME: "completed",
        semconv.LEGAL: True,
        semconv.VIOLATIONS: 0,
        semconv.E2E: verdict.e2e,
    }
    if usage:
        _add_usage(found, end)
    _add_stages(found, end, verdict)
    if verdict.ttft is not None and verdict.tokens is not None:
        found[semconv.TTFT] = verdict.ttft
        _add_tokens(found, verdict, verdict.tokens)
    _add_notes(found, notes, slo)
    if end.interference is not None:
        told = interference_attributes(end.interference, verdict.cause)
        found.update((name, value) for name, value in told.items() if value is not None)
    return found


def _add_usage(found: dict[str, AttributeValue], end: UsualEnd) -> None:
    # The engine's figure wins over the marks: it also counts tokens that never reach the stream.
    if (tokens := end.tokens) is not None:
        found[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] = tokens
    if end.usage is not None:
        for name, attribute in _USAGE:
            if (given := end.usage.get(name)) is not None:
                found[attribute] = given


def _add_stages(found: dict[str, AttributeValue], end: UsualEnd, verdict: UsualVerdict) -> None:
    names = _STAGES[end.shape]
    for (_, duration), seconds in zip(names, verdict.stages, strict=True):
        found[duration] = seconds
    # The queue is the first stage in the order of every verdict.
    if verdict.stages[0] >= LONG_WAIT_S:
        found[semconv.QUEUE_LONG] = True
    shares = verdict.shares
    if verdict.bottleneck is None or not shares:
        return
    for (name, _), share in zip(names, shares, strict=True):
        found[name] = share
    largest = max(shares)
    found[semconv.BOTTLENECK] = verdict.bottleneck
    found[semconv.DOMINANT_STAGE] = USUAL_STAGES[end.shape][shares.index(largest)]
    found[semconv.DOMINANT_SHARE] = largest


def _add_tokens(found: dict[str, AttributeValue], verdict: UsualVerdict, tokens: int) -> None:
    found[semconv.STREAMED_TOKENS] = tokens
    gaps = verdict.gaps
    if verdict.tpot is None:
        found[semconv.TOKEN_SPAN] = 0.0
        return
    found[semconv.TOKEN_SPAN] = verdict.token_span
    found[semconv.TPOT] = verdict.tpot
    found[ITL["count"]], found[ITL["max"]] = len(gaps), gaps[-1] / SECOND
    for name, q in _QUANTILES:
        found[name] = (quantile(gaps, q) or 0.0) / SECOND


def _add_notes(found: dict[str, AttributeValue], notes: UsualNotes, slo: Mapping[str, bool] | None) -> None:
    if notes.events_dropped:
        found[semconv.EVENTS_DROPPED] = notes.events_dropped
    if notes.client_disconnected:
        found[semconv.CLIENT_DISCONNECTED] = found[semconv.CLIENT_UNSERVED] = True
    if notes.delivered is not None:
        found[semconv.DELIVERED] = notes.delivered / SECOND
    if slo is not None:
        found[semconv.SLO_MET] = slo["all"]
        found.update((semconv.SLO_MISSED_PREFIX + name, True) for name, met in slo.items() if not met and name != "all")
