"""Bulk recording leaves in every reader what recording sample by sample leaves there."""

from __future__ import annotations

import os
import pickle
import threading
from array import array
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_lifecycle import semconv
from otel_lifecycle._instruments import tally
from otel_lifecycle._instruments.moment import now_in
from tests.instruments.ways import (
    CHAT,
    EDGES,
    MOMENTS,
    MS,
    SAMPLED,
    SAMPLED_TOO,
    SETS,
    UNSAMPLED,
    VIEWS,
    TwoWays,
    collect,
    count_calls,
    on_edges,
)
from tests.support.examples import scaled

gaps = st.lists(
    st.integers(0, 200 * MS) | st.integers(0, 1 << 60) | st.sampled_from(on_edges(EDGES)), max_size=300
).map(sorted)
runs = st.lists(st.tuples(gaps, st.sampled_from(MOMENTS)), max_size=3)
rounds = st.lists(st.lists(st.tuples(runs, st.sampled_from(SETS)), max_size=4), min_size=1, max_size=3)
durations = st.lists(
    st.tuples(st.floats(0, 1e4) | st.sampled_from(EDGES), st.sampled_from(MOMENTS)),
    max_size=80,
)
rounds_of_durations = st.lists(
    st.lists(st.tuples(durations, st.sampled_from(SETS)), max_size=4), min_size=1, max_size=3
)


@pytest.mark.long
@pytest.mark.parametrize("view", VIEWS)
@settings(max_examples=scaled(25))
@given(rounds=rounds)
def test_both_ways_leave_the_same_in_every_reader(view: str, rounds: list[list[tuple[list[Any], Any]]]) -> None:
    """Whatever is recorded between collections, cumulative and delta points are those of plain recording."""
    ways = TwoWays(view)
    # After zeros alone, collecting a cumulative exponential histogram can raise in the SDK, however it was recorded.
    least = 1 if view.startswith("exponential") else 0
    for recorded in rounds:
        for runs, attributes in recorded:
            ways.record_runs([([gap + least for gap in gaps], moment) for gaps, moment in runs], attributes)
        ways.check()


@pytest.mark.parametrize("view", VIEWS)
@settings(max_examples=scaled(15))
@given(rounds=rounds_of_durations)
def test_durations_of_many_requests_leave_the_same_in_every_reader(
    view: str, rounds: list[list[tuple[list[Any], Any]]]
) -> None:
    """Durations in any order, with traces of their own, leave the points and exemplars of plain recording."""
    ways = TwoWays(view)
    least = 1e-9 if view.startswith("exponential") else 0
    for recorded in rounds:
        for samples, attributes in recorded:
            ways.record_durations([(seconds + least, moment) for seconds, moment in samples], attributes)
        ways.check()


@pytest.mark.parametrize("edges", sorted({metric.buckets for metric in semconv.METRICS if metric.buckets}))
def test_a_gap_on_an_edge_falls_where_its_float_seconds_fall(edges: tuple[float, ...]) -> None:
    """Nanoseconds on and beside each edge of every histogram of the package land in plain recording's bucket."""
    ways = TwoWays(edges=edges)
    ways.record(on_edges(edges), CHAT)
    ways.check()


@given(boundary=st.floats(0, 4e9), step=st.integers(-3, 3))
def test_whole_nanoseconds_stand_in_for_a_boundary(boundary: float, step: int) -> None:
    """Comparing a gap with the edge found for a boundary is comparing its float seconds with the boundary."""
    edges = tally.edges_of((boundary,))
    assert edges is not None
    (edge,) = edges.nanoseconds
    gap = max(0, round(boundary * 1e9) + step)
    assert (gap <= edge) is (gap / 1e9 <= boundary)


def test_the_installed_sdk_is_one_that_takes_bulk() -> None:
    """The fast way is open on this SDK: its proof held, and a thousand gaps make a handful of measurements."""
    ways = TwoWays()
    ways.bulk.take_gaps(CHAT, [([MS], SAMPLED)])
    calls = count_calls(lambda: ways.bulk.take_gaps(CHAT, [([MS] * 1000, SAMPLED)]))
    assert (ways.bulk.bulk, calls["aggregate"], calls["record"]) == (True, 0, 0)


@pytest.mark.parametrize("view", ["no view", "renamed", "other buckets", "fewer attributes", "exponential", "dropped"])
def test_views_of_the_known_kinds_make_no_measurement(view: str) -> None:
    """Of these streams none is recorded plainly once its attribute set is known, whether many samples or one."""
    ways = TwoWays(view)
    ways.record([MS], CHAT)
    calls = count_calls(lambda: ways.bulk.take_gaps(CHAT, [([MS, 2 * MS], SAMPLED)]))
    calls += count_calls(lambda: ways.bulk.take(CHAT, [(0.001, SAMPLED)]))
    assert calls["consume_measurement"] == 0


def test_each_bucket_that_got_a_gap_has_an_exemplar_of_the_request() -> None:
    """The largest gap of the last sampled request in each bucket is kept with its trace."""
    ways = TwoWays()
    ways.bulk.take_gaps(CHAT, [([3 * MS, 4 * MS, 40 * MS], SAMPLED), ([700 * MS], UNSAMPLED), ([3 * MS], SAMPLED_TOO)])
    (point,) = collect(ways.readers[0])["bulk"]
    assert [(e.value, e.trace_id, e.span_id) for e in point.exemplars] == [(0.003, 8, 9), (0.04, 7, 9)]


def test_negative_gaps_are_left_out_and_none_at_all_leaves_nothing() -> None:
    """The SDK refuses a negative sample; no sample makes no stream."""
    ways = TwoWays()
    ways.bulk.take_gaps(CHAT, [([-5, -1], SAMPLED), ([], SAMPLED)])
    ways.bulk.take_gaps(CHAT, [])
    assert collect(ways.readers[0]) == {}
    ways.bulk.take_gaps(CHAT, [([-5, 0, 5 * MS], SAMPLED)])
    (point,) = collect(ways.readers[0])["bulk"]
    assert (point.count, point.sum, point.min, point.max) == (2, 0.005, 0.0, 0.005)


def test_an_array_of_nanoseconds_is_as_good_as_a_list() -> None:
    """Any sorted sequence of integers will do."""
    ways = TwoWays()
    ways.record(array("q", on_edges(EDGES)), CHAT)
    ways.check()


@pytest.mark.long
def test_an_attribute_set_beyond_the_limit_goes_where_the_sdk_puts_it() -> None:
    """With 2000 sets filed, bulk samples of a new one merge into the overflow point where the SDK has one."""
    ways = TwoWays()
    for number in range(2000):
        ways.record([MS], {"model": str(number)})
    for _ in range(2):
        ways.record([MS, 2 * MS, 300 * MS], {"model": "new"})
        ways.check()


def test_totals_are_exact_while_others_record_and_collect() -> None:
    """Two threads in bulk, one plainly, one collecting cumulative and delta points: no sample lost or doubled."""
    ways, turns = TwoWays(), 150
    samples = sorted([MS, 3 * MS, 30 * MS, 800 * MS] * 5)
    collected: Counter[int] = Counter()
    collecting = Collecting(ways, collected)
    recording = [threading.Thread(target=work, args=(ways, samples, turns)) for work in (in_bulk, in_bulk, one_by_one)]
    for thread in (collecting, *recording):
        thread.start()
    for thread in recording:
        thread.join()
    collecting.stop()

    points = collect(ways.readers[0])["bulk"]
    cumulative = [sum(counts) for counts in zip(*(point.bucket_counts for point in points), strict=True)]
    expected = [0] * (len(EDGES) + 1)
    for bucket in (1, 3, 6, 15):
        expected[bucket] = 2 * turns * 5
    expected[6] += turns
    assert (cumulative, [collected[bucket] for bucket in range(len(expected))]) == (expected, expected)
    assert sum(point.sum for point in points) == pytest.approx(turns * (2 * sum(samples) / 1e9 + 0.0301))


def in_bulk(ways: TwoWays, samples: list[int], turns: int) -> None:
    """Record the samples again and again, with two attribute sets in turn."""
    for turn in range(turns):
        ways.bulk.take_gaps(SETS[turn % 2], [(samples, now_in(None))])


def one_by_one(ways: TwoWays, samples: list[int], turns: int) -> None:
    """Record into the histogram of the bulk plainly, with two attribute sets in turn."""
    for turn in range(turns):
        ways.instrument.record(0.0301, SETS[turn % 2])


class Collecting(threading.Thread):
    """Collects from both readers until it is stopped, and adds up what the delta reader gave."""

    def __init__(self, ways: TwoWays, collected: Counter[int]) -> None:
        super().__init__()
        self._ways, self._collected, self._stopping = ways, collected, threading.Event()

    def run(self) -> None:
        """Collect at least once after stop() was called."""
        while True:
            last = self._stopping.is_set()
            collect(self._ways.readers[0])
            for point in collect(self._ways.readers[1]).get("bulk", ()):
                self._collected.update(dict(enumerate(point.bucket_counts)))
            if last:
                return

    def stop(self) -> None:
        """Return after the last collection."""
        self._stopping.set()
        self.join()


@pytest.mark.parametrize("way", ["gaps", "durations"])
@pytest.mark.parametrize("holder", ["stream", "aggregation"])
def test_recording_waits_for_a_collection_in_progress(holder: str, way: str) -> None:
    """Whatever lock the SDK holds while it collects a stream, samples stay out until it is released."""
    ways = TwoWays()
    ways.bulk.take_gaps(CHAT, [([MS], SAMPLED)])
    provider: Any = ways.provider
    storage = next(iter(provider._measurement_consumer._reader_storages.values()))
    (stream,) = storage._get_or_init_view_instrument_match(ways.instrument)
    (aggregation,) = stream._attributes_aggregation.values()
    record = {
        "gaps": lambda: ways.bulk.take_gaps(CHAT, [([MS], SAMPLED)]),
        "durations": lambda: ways.bulk.take(CHAT, [(0.001, SAMPLED)]),
    }[way]
    recording = threading.Thread(target=record)
    with {"stream": stream, "aggregation": aggregation}[holder]._lock:
        recording.start()
        recording.join(0.2)
        assert (recording.is_alive(), aggregation._value[1]) == (True, 1)
    recording.join()
    assert aggregation._value[1] == 2


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_both_ways_leave_the_same_after_a_fork() -> None:
    """A child that inherited counts adds to them in bulk as it does plainly, and the parent's stay as they were."""
    ways = TwoWays()
    ways.record([MS, 30 * MS], CHAT)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        verdict: object = "failed"
        try:
            ways.record([2 * MS, 900 * MS], CHAT)
            ways.record([4 * MS], SETS[1])
            verdict = [collect(ways.readers[0])[name][0].count for name in ("bulk", "single")]
            ways.check()
        except Exception as error:  # noqa: BLE001  # whatever it is, the parent reports it
            verdict = repr(error)
        finally:
            os.write(writing, pickle.dumps(verdict))
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pickle.loads(pipe.read()) == [4, 4]
    os.waitpid(child, 0)
    ways.check()
    assert collect(ways.readers[0])["bulk"][0].count == 2
