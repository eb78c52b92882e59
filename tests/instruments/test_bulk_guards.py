"""Where bulk recording is open, and where samples go one by one instead."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.metrics import Histogram, NoOpMeterProvider
from opentelemetry.metrics._internal import _ProxyMeterProvider
from opentelemetry.sdk.metrics import Histogram as SdkHistogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics._internal import aggregation as sdk_aggregation

from otel_lifecycle import _sdk_metrics
from otel_lifecycle._instruments.delivery import CounterOutlet, HistogramOutlet, trusted_sdk
from otel_lifecycle._sdk_metrics import installed_sdk
from tests.instruments.ways import CHAT, EDGES, MS, SAMPLED, TwoWays, collect, count_calls
from tests.support.patient_reader import PatientReader


def test_a_proxy_counts_from_the_moment_a_provider_is_set() -> None:
    """An instrument of the API's proxy meter drops samples until there is a provider, then takes them in bulk."""
    proxies = _ProxyMeterProvider()
    histogram = proxies.get_meter("tests").create_histogram(
        "proxied", "s", explicit_bucket_boundaries_advisory=list(EDGES)
    )
    bulk = HistogramOutlet(histogram)
    bulk.take_gaps(CHAT, [([MS], SAMPLED)])
    assert not bulk.bulk

    reader = PatientReader()
    proxies.on_set_meter_provider(MeterProvider([reader], shutdown_on_exit=False))
    bulk.take_gaps(CHAT, [([2 * MS, 20 * MS], SAMPLED)])
    (point,) = collect(reader)["proxied"]
    assert (bulk.bulk, point.count, point.sum) == (True, 2, 0.022)
    assert tuple(point.explicit_bounds) == EDGES


def test_without_an_sdk_there_is_nothing_to_do() -> None:
    """A no-op histogram is not called at all."""
    bulk = HistogramOutlet(NoOpMeterProvider().get_meter("tests").create_histogram("nothing"))
    assert count_calls(lambda: bulk.take_gaps(CHAT, [([MS] * 100, SAMPLED)]))["record"] == 0
    assert not bulk.bulk


def test_a_sample_the_sdk_refuses_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """A negative duration or count reaches the SDK, which says so and drops it; a direct one would be taken."""
    ways = TwoWays()
    ways.bulk.take(CHAT, [(-0.001, SAMPLED)])
    counter = ways.provider.get_meter("tests").create_counter("amounts")
    CounterOutlet(counter).take(CHAT, [(-1, SAMPLED)])
    assert collect(ways.readers[0]) == {}
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_a_counter_counts_as_the_sdk_counts() -> None:
    """Cumulative and delta points of a counter that is added to directly, zero included, are the plain one's."""
    ways = TwoWays()
    meter = ways.provider.get_meter("tests")
    plain = meter.create_counter("single.count")
    quick = CounterOutlet(meter.create_counter("bulk.count"))
    for amounts in ((0, 3), (), (5,)):
        for amount in amounts:
            plain.add(amount, CHAT, SAMPLED.context)
            quick.take(CHAT, [(amount, SAMPLED)])
        ways.check()
    assert [point.value for point in collect(ways.readers[0])["bulk.count"]] == [8]


@pytest.fixture
def unproven() -> Iterator[None]:
    """Forget the proof before and after, so that it is made anew."""
    trusted_sdk.cache_clear()
    yield
    trusted_sdk.cache_clear()


# A process tests the SDK once: what it finds while the SDK is disabled must not be kept for other tests.
@pytest.mark.usefixtures("unproven")
def test_a_disabled_sdk_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_SDK_DISABLED leaves no-op instruments."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    ways = TwoWays()
    ways.record([MS], CHAT)
    assert (ways.bulk.bulk, collect(ways.readers[0])) == (False, {})


class ForeignHistogram(Histogram):
    """An instrument of another implementation of the API."""

    def __init__(self) -> None:
        self.recorded: list[object] = []

    def record(self, amount, attributes=None, context=None) -> None:  # type: ignore[no-untyped-def]  # as in the API
        """Keep what came."""
        self.recorded.append((amount, attributes, context))


def test_another_implementation_gets_every_sample_plainly() -> None:
    """The API promises ``record`` and nothing more."""
    foreign = ForeignHistogram()
    bulk = HistogramOutlet(foreign)
    bulk.take_gaps(CHAT, [([MS, 2 * MS], SAMPLED)])
    assert foreign.recorded == [(0.001, CHAT, SAMPLED.context), (0.002, CHAT, SAMPLED.context)]
    assert not bulk.bulk


@pytest.mark.usefixtures("unproven")
def test_an_sdk_that_counts_otherwise_is_recorded_plainly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If an aggregation does anything that adding counts does not, the proof fails and says so once."""

    def doubled(self: Any, measurement: Any, should_sample_exemplar: bool = True) -> None:
        original(self, measurement, should_sample_exemplar)
        original(self, measurement, should_sample_exemplar)

    original = sdk_aggregation._ExplicitBucketHistogramAggregation.aggregate
    monkeypatch.setattr(sdk_aggregation._ExplicitBucketHistogramAggregation, "aggregate", doubled)
    ways = TwoWays()
    ways.record([MS, 30 * MS], CHAT)
    ways.check()
    TwoWays()
    assert (ways.bulk.bulk, collect(ways.readers[0])["bulk"][0].count) == (False, 4)
    assert [record.levelname for record in caplog.records if "other insides" in record.message] == ["WARNING"]


@pytest.mark.usefixtures("unproven")
@pytest.mark.parametrize("gone", ["_value", "_reservoir", "_boundaries"])
def test_an_sdk_with_other_insides_is_recorded_plainly(monkeypatch: pytest.MonkeyPatch, gone: str) -> None:
    """A renamed attribute of an aggregation fails the proof instead of a request."""

    class Renamed(sdk_aggregation._ExplicitBucketHistogramAggregation):
        def __getattribute__(self, name: str) -> Any:
            if name == gone and sys._getframe(1).f_globals["__name__"] == _sdk_metrics.__name__:
                raise AttributeError(name)
            return super().__getattribute__(name)

    monkeypatch.setattr(sdk_aggregation, "_ExplicitBucketHistogramAggregation", Renamed)
    ways = TwoWays()
    ways.record([MS, 30 * MS], CHAT)
    ways.check()
    assert not ways.bulk.bulk


@pytest.mark.usefixtures("unproven")
def test_an_sdk_without_the_known_classes_is_recorded_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that is gone closes the fast way."""
    monkeypatch.delattr(sdk_aggregation, "_DropAggregation")
    assert installed_sdk() is None
    assert not TwoWays().bulk.bulk


@pytest.mark.usefixtures("unproven")
def test_a_patched_record_keeps_its_say_on_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another library has patched the SDK's record to do otherwise, samples go through it."""

    def halving(self: Any, amount: float, attributes: Any = None, context: Context | None = None) -> None:
        original(self, amount / 2, attributes, context)

    original = SdkHistogram.record
    monkeypatch.setattr(SdkHistogram, "record", halving)
    ways = TwoWays()
    ways.record([2 * MS, 8 * MS], CHAT)
    ways.check()
    assert (ways.bulk.bulk, collect(ways.readers[0])["bulk"][0].sum) == (False, 0.005)


@pytest.mark.skipif(not hasattr(SdkHistogram, "_is_enabled"), reason="this SDK cannot switch a meter off")
def test_a_meter_switched_off_takes_nothing_until_it_is_on_again() -> None:
    """The switch is read at every call, as plain recording does."""
    ways = TwoWays()
    config = ways.instrument._meter_config  # type: ignore[attr-defined]  # of the SDK's class
    for enabled in (True, False, True):
        config.update(replace(config._config, is_enabled=enabled))
        ways.record([MS], CHAT)
        ways.record_durations([(0.001, SAMPLED)], CHAT)
    ways.check()
    assert collect(ways.readers[0])["bulk"][0].count == 4


@pytest.mark.skipif(not hasattr(MeterProvider, "add_metric_reader"), reason="this SDK's readers are fixed")
def test_a_reader_added_later_sees_what_comes_after() -> None:
    """Readers are looked up at every call."""
    ways, late = TwoWays(), PatientReader()
    ways.record([MS], CHAT)
    ways.provider.add_metric_reader(late)
    ways.record([2 * MS, 3 * MS], CHAT)
    ways.readers.append(late)
    ways.check()
    assert collect(late)["bulk"][0].count == 2
