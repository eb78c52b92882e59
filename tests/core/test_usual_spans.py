"""Spans of usual requests, judged by their times alone, against the judge of every other span."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_lifecycle import semconv
from otel_lifecycle._core.attributes import end_attributes
from otel_lifecycle._core.judge import judge_events
from otel_lifecycle._core.usual_spans import UsualSpan, usual_attributes
from otel_lifecycle._core.verdict import assess

ORDERS = {
    "default": ["arrive", "admit", "input_ready", "first_token"],
    "preprocess_first": ["arrive", "input_ready", "admit", "first_token"],
}
START = 1_770_000_000_000_000_000

steps = st.one_of(st.integers(0, 3), st.integers(0, 2 * 10**9))
counts = st.one_of(st.none(), st.just(-1), st.just(True), st.just("7"), st.integers(0, 2000))


def judged(names: list[str], times: list[int], attributes: dict[str, Any], threshold: float) -> tuple[Any, Any]:
    """Return the attributes and the gaps that the judge gives."""
    found = judge_events([(name, time, {}) for name, time in zip(names, times, strict=True)], attributes).finished
    return end_attributes(found, assess(found, threshold=threshold)), found.report["itl"]


@given(
    shape=st.sampled_from(sorted(ORDERS)),
    gaps=st.lists(steps, min_size=5, max_size=40),
    usage=st.tuples(counts, counts, counts),
    threshold=st.sampled_from([0.2, 0.45, 1.0]),
)
def test_a_usual_span_is_judged_as_by_the_judge(
    shape: str, gaps: list[int], usage: tuple[Any, Any, Any], threshold: float
) -> None:
    """Every attribute and every gap are equal, to the last digit."""
    names = [*ORDERS[shape], *["token"] * (len(gaps) - 4), "complete"]
    times = [START]
    for gap in gaps:
        times.append(times[-1] + gap)
    keys = (
        semconv.GEN_AI_USAGE_INPUT_TOKENS,
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS,
        semconv.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS,
    )
    told = {key: value for key, value in zip(keys, usage, strict=True) if value is not None}
    attributes = {semconv.SHAPE: shape, **told}
    found = usual_attributes(names, times, attributes, threshold)
    if times[0] == times[-1]:
        assert found is None
    else:
        assert found == UsualSpan(*judged(names, times, attributes, threshold))


@pytest.mark.parametrize(
    ("names", "times", "attributes"),
    [
        (["arrive", "admit", "input_ready", "first_token", "fail"], [0, 1, 2, 3, 4], {}),
        (["arrive", "admit", "input_ready", "first_token"], [0, 1, 2, 3], {}),
        (["arrive", "admit", "first_token", "input_ready", "complete"], [0, 1, 2, 3, 4], {}),
        (["arrive", "admit", "input_ready", "first_token", "output", "complete"], [0, 1, 2, 3, 4, 5], {}),
        (["arrive", "admit", "input_ready", "first_token", "complete"], [0, 1, 2, 3, 2], {}),
        (["arrive", "admit", "input_ready", "first_token", "complete"], [0, 1, 2, 3, 4], {semconv.SHAPE: "pooling"}),
        (["arrive", "admit", "input_ready", "first_token", "complete"], [0, 1, 2, 3, 4], {semconv.SHAPE: "pool"}),
        (["arrive", "admit", "input_ready", "first_token", "complete"], [0, 1, 2, 3, 4], {semconv.SHAPE: ["default"]}),
        (["arrive", "admit", "input_ready", "first_token", "complete"], [0, 1, 2, 3, 4], {semconv.END_REASON: "x"}),
        (["arrive", "admit", "input_ready", "first_token", "complete"], [0, 1, 2, 3, 4], {semconv.OUTPUT_UNIT: "s"}),
    ],
)
def test_an_unusual_span_is_left_to_the_judge(names: list[str], times: list[int], attributes: dict[str, Any]) -> None:
    """Another order, another end, time that goes back, other shapes and outputs."""
    assert usual_attributes(names, times, attributes, 0.45) is None
