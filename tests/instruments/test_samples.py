"""Samples of many requests whose moments are made on demand leave what recording one by one leaves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import (
    AlwaysOffExemplarFilter,
    AlwaysOnExemplarFilter,
    ExemplarFilter,
    TraceBasedExemplarFilter,
)

from otel_lifecycle import semconv
from otel_lifecycle._instruments.delivery import CounterOutlet, HistogramOutlet
from otel_lifecycle._instruments.moment import Moment
from otel_lifecycle._instruments.samples import Moments, Samples, gathered
from tests.instruments.ways import CHAT, EDGES, MOMENTS, MS, SAMPLED, UNSAMPLED, VIEWS, TwoWays, collect
from tests.support.examples import scaled


class OddExemplars(ExemplarFilter):
    """Somebody's own filter, which looks at the value."""

    def should_sample(self, value: Any, time_unix_nano: Any, attributes: Any, context: Any) -> bool:
        """Want every other millisecond."""
        return bool(round(value * 1000) % 2)


FILTERS = (AlwaysOffExemplarFilter, AlwaysOnExemplarFilter, TraceBasedExemplarFilter, OddExemplars)

samples = st.lists(st.tuples(st.floats(1e-9, 1e4) | st.sampled_from(EDGES), st.sampled_from(MOMENTS)), max_size=40)
# Samples of many requests, or single ones, as they come together in a column.
parts = st.lists(st.tuples(samples, st.booleans()), max_size=4)
rounds = st.lists(parts, min_size=1, max_size=3)


def lazy(pairs: list[tuple[Any, Moment]]) -> Samples:
    """Return samples whose moments are made when somebody asks for them."""
    moments = [moment for _, moment in pairs]
    return Samples([value for value, _ in pairs], Moments(moments.copy, sampled=any(m.sampled for m in moments)))


def check(ways: TwoWays, recorded: list[list[tuple[list[Any], bool]]]) -> None:
    """Add them both ways to a histogram, to one with other buckets that shares them, and to a counter."""
    meter = ways.provider.get_meter("tests")
    edges = list(semconv.GEN_AI_TIME_TO_FIRST_TOKEN.buckets or ())
    twin, plain_twin = (
        meter.create_histogram(f"{way}.twin", "s", explicit_bucket_boundaries_advisory=edges)
        for way in ("bulk", "single")
    )
    counter, plain_counter = (meter.create_counter(f"{way}.count") for way in ("bulk", "single"))
    outlets = ways.bulk, HistogramOutlet(twin)
    for collected in recorded:
        pieces: list[Any] = []
        for pairs, together in collected:
            pieces.extend([lazy(pairs)] if together else pairs)
        joined = gathered(pieces)
        for outlet in outlets:
            outlet.take(CHAT, joined)
        counts = lazy([(round(value * 10), moment) for value, moment in joined])
        CounterOutlet(counter).take(CHAT, counts)
        for (value, moment), count in zip(joined, counts.values, strict=True):
            for histogram in (ways.single, plain_twin):
                histogram.record(value, CHAT, moment.context)
            plain_counter.add(count, CHAT, moment.context)
        ways.check()


@pytest.mark.parametrize("view", VIEWS)
@settings(max_examples=scaled(10))
@given(recorded=rounds)
def test_every_view_gives_the_points_of_plain_recording(view: str, recorded: list[Any]) -> None:
    """Cumulative and delta points, exemplars included, after each of several folds."""
    check(TwoWays(view), recorded)


@pytest.mark.parametrize("choose", FILTERS)
@settings(max_examples=scaled(15))
@given(recorded=rounds)
def test_every_filter_gives_the_exemplars_of_plain_recording(choose: type[ExemplarFilter], recorded: list[Any]) -> None:
    """The SDK's own filters, and one that looks at each value."""
    check(TwoWays(exemplar_filter=choose()), recorded)


def test_no_moment_is_made_where_no_trace_is_sampled() -> None:
    """Nobody needs one: there are no exemplars, and every stream takes the samples in bulk."""
    ways = TwoWays()
    counter = CounterOutlet(ways.provider.get_meter("tests").create_counter("amounts"))
    # The first sample of a stream goes through the API, with its moment.
    ways.bulk.take(CHAT, [(0.001, UNSAMPLED)])
    counter.take(CHAT, [(1, UNSAMPLED)])

    def make() -> list[Moment]:
        pytest.fail("a moment was made")

    ways.bulk.take(CHAT, Samples([0.001, 0.3], Moments(make, sampled=False)))
    ways.bulk.take_gaps(CHAT, Samples([[MS], [MS, 9 * MS]], Moments(make, sampled=False)))
    counter.take(CHAT, Samples((1, 1), Moments(make, sampled=False)))
    points = collect(ways.readers[0])
    assert (points["bulk"][0].count, points["amounts"][0].value) == (6, 3)


@given(
    runs=st.lists(st.tuples(st.lists(st.integers(0, 900 * MS), min_size=1, max_size=200).map(sorted), st.booleans()))
)
def test_merged_gaps_leave_what_each_run_leaves(runs: list[tuple[list[int], bool]]) -> None:
    """Long runs are bisected one by one and short ones are merged first; a sampled one has its exemplars."""
    ways = TwoWays()
    ways.record_runs([(gaps, SAMPLED if sampled else UNSAMPLED) for gaps, sampled in runs], CHAT)
    ways.check()
