"""What requests handed over is in the next collection, whoever collects and however."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.metrics.view import DropAggregation, View
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import otel_lifecycle as lifecycle
from otel_lifecycle import semconv
from otel_lifecycle._core.labels import RequestLabels
from otel_lifecycle._instruments import instruments
from otel_lifecycle._instruments.buffer import VALUES
from otel_lifecycle._instruments.delivery import trusted_sdk
from otel_lifecycle._instruments.usual import fold_usual
from otel_lifecycle.processor import LifecycleSpanProcessor
from tests.support.patient_reader import PatientReader

REQUESTS = VALUES + VALUES // 2
"""More than the buffer holds, so that some are folded by the serving thread and some by the collection."""


class Kept(MetricExporter):
    """Keeps the data that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.data: list[MetricsData] = []

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Keep it."""
        self.data.append(metrics_data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Nothing waits."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Nothing to close."""


def points(data: Any, name: str) -> list[Any]:
    """Return the points of one metric."""
    return [
        point
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    ]


def serve(provider: TracerProvider, requests: int = REQUESTS, tokens: int = 3) -> None:
    """Serve requests one after another."""
    for _ in range(requests):
        with lifecycle.request(model="m", tracer_provider=provider) as request:
            request.admit()
            request.input_ready()
            for _ in range(tokens):
                request.token()


@pytest.fixture
def traced_into() -> Iterator[Callable[..., TracerProvider]]:
    """Return a function that makes a tracer provider whose requests are counted in a meter provider."""
    made: list[TracerProvider] = []

    def make(meter_provider: MeterProvider, **arguments: Any) -> TracerProvider:
        provider = TracerProvider(shutdown_on_exit=False, **arguments)
        provider.add_span_processor(LifecycleSpanProcessor(meter_provider=meter_provider))
        made.append(provider)
        return provider

    # An unsampled request belongs to the oldest processor that is alive.
    gc.collect()
    yield make
    for provider in made:
        provider.shutdown()


TracedInto = Callable[..., TracerProvider]


def counted(data: Any) -> tuple[int, int, int]:
    """Return how many requests, tokens and inter-token gaps the data has."""
    return (
        sum(point.value for point in points(data, semconv.REQUESTS.name)),
        sum(point.value for point in points(data, semconv.TOKENS.name)),
        sum(point.count for point in points(data, semconv.INTER_TOKEN_LATENCY.name)),
    )


ALL = (REQUESTS, 3 * REQUESTS, 2 * REQUESTS)


@pytest.fixture(params=["bulk", "public"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Record in bulk, or through the public API alone."""
    trusted_sdk.cache_clear()
    if request.param == "public":
        monkeypatch.setattr("otel_lifecycle._instruments.delivery.installed_sdk", lambda: None)
    yield request.param
    trusted_sdk.cache_clear()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("sampler", [None, ALWAYS_OFF], ids=["sampled", "unsampled"])
def test_a_collection_has_every_request_that_ended_before_it(sampler: Any, traced_into: TracedInto) -> None:
    """The in-memory reader sees them at once, and the next collection does not count them again."""
    reader = PatientReader()
    provider = traced_into(MeterProvider([reader], shutdown_on_exit=False), sampler=sampler)
    for times in (1, 2):
        serve(provider)
        assert counted(reader.get_metrics_data()) == tuple(times * figure for figure in ALL)
    assert counted(reader.get_metrics_data()) == tuple(2 * figure for figure in ALL)


def test_a_sample_that_cannot_be_folded_costs_no_request_its_metrics(
    traced_into: TracedInto, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged; what was handed over before it and after it is counted."""
    monkeypatch.setattr("otel_lifecycle._log._last_said", {})
    reader = PatientReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    provider = traced_into(meters, sampler=ALWAYS_OFF)
    for _ in range(2):
        serve(provider, 2)
        instruments.instruments_of(meters).single(replace(semconv.TOKENS, name="unknown"), 1, RequestLabels())
    serve(provider, 1)
    assert counted(reader.get_metrics_data()) == (5, 15, 10)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_collection_inside_a_fold_counts_nothing_twice(
    traced_into: TracedInto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler may collect while its thread folds: it finds the lock open, and what is left."""

    def interrupted(*arguments: Any) -> None:
        monkeypatch.setattr(instruments, "fold_usual", fold_usual)
        serve(provider, 2)
        inner.fold()
        fold_usual(*arguments)

    monkeypatch.setattr(instruments, "fold_usual", interrupted)
    reader = PatientReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    provider = traced_into(meters, sampler=ALWAYS_OFF)
    inner = instruments.instruments_of(meters)
    serve(provider, 3)
    assert counted(reader.get_metrics_data()) == (5, 15, 10)


def test_an_exception_out_of_a_fold_costs_what_it_broke_off(
    traced_into: TracedInto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler raised: what comes after the value that was folded then is folded the next time."""

    def interrupted(*arguments: Any) -> None:
        monkeypatch.setattr(instruments, "fold_usual", fold_usual)
        raise KeyboardInterrupt

    reader = PatientReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    provider = traced_into(meters, sampler=ALWAYS_OFF)
    inner = instruments.instruments_of(meters)
    inner.single(semconv.TOKENS, 7, RequestLabels(), "output")
    serve(provider, 1)
    inner.single(semconv.TOKENS, 11, RequestLabels(), "output")
    serve(provider, 3)
    monkeypatch.setattr(instruments, "fold_usual", interrupted)
    with pytest.raises(KeyboardInterrupt):
        inner.fold()
    assert counted(reader.get_metrics_data()) == (3, 7 + 11 + 9, 6)


@pytest.mark.long
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("end", ["force_flush", "shutdown"])
def test_flushing_and_shutting_down_the_meter_provider_export_everything(end: str, traced_into: TracedInto) -> None:
    """A periodic reader that never got round to it exports at the flush, or at last at the shutdown."""
    exporter = Kept()
    meter_provider = MeterProvider(
        [PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)], shutdown_on_exit=False
    )
    serve(traced_into(meter_provider))
    getattr(meter_provider, end)()
    assert counted(exporter.data[-1]) == ALL
    if end != "shutdown":
        meter_provider.shutdown()


@pytest.mark.usefixtures("way")
def test_delta_and_cumulative_readers_each_get_everything_once(traced_into: TracedInto) -> None:
    """Whichever collects first, both have all of it; the delta reader never sees a request twice."""
    delta = PatientReader(preferred_temporality=dict.fromkeys((Counter, Histogram), AggregationTemporality.DELTA))
    cumulative = PatientReader()
    provider = traced_into(MeterProvider([cumulative, delta], shutdown_on_exit=False))
    serve(provider)
    assert counted(delta.get_metrics_data()) == ALL
    serve(provider, 1)
    assert counted(cumulative.get_metrics_data()) == (REQUESTS + 1, 3 * REQUESTS + 3, 2 * REQUESTS + 2)
    assert counted(delta.get_metrics_data()) == (1, 3, 2)
    assert counted(delta.get_metrics_data()) == (0, 0, 0)


@pytest.mark.usefixtures("way")
def test_a_scrape_by_prometheus_has_everything(traced_into: TracedInto) -> None:
    """The Prometheus reader collects when it is scraped."""
    prometheus = pytest.importorskip("opentelemetry.exporter.prometheus")
    from prometheus_client import REGISTRY, generate_latest

    reader = prometheus.PrometheusMetricReader()
    try:
        serve(traced_into(MeterProvider([reader], shutdown_on_exit=False)))
        text = generate_latest(REGISTRY).decode()
    finally:
        reader.shutdown()
    lines = [line for line in text.splitlines() if line.startswith("inference_requests_total{")]
    assert sum(float(line.rpartition(" ")[2]) for line in lines) == REQUESTS


@pytest.mark.usefixtures("way")
def test_views_that_drop_the_observables_do_not_keep_the_fold_from_a_collection(traced_into: TracedInto) -> None:
    """The SDK calls a dropped observable too; nothing depends on its points."""
    reader = PatientReader()
    dropped = [
        View(instrument_name=name.name, aggregation=DropAggregation())
        for name in (semconv.ACTIVE_REQUESTS, semconv.OLDEST_REQUEST_AGE)
    ]
    serve(traced_into(MeterProvider([reader], views=dropped, shutdown_on_exit=False)))
    data = reader.get_metrics_data()
    assert (counted(data), points(data, semconv.ACTIVE_REQUESTS.name)) == (ALL, [])


def test_the_sdk_calls_every_observable_before_it_reads_any_instrument() -> None:
    """What an observable's callback records is in that same collection, also into instruments made before and after."""
    reader = PatientReader()
    meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("tests")
    early = meter.create_counter("a.early")
    made: dict[str, Any] = {"early": early}

    def callback(options: object) -> list[Any]:
        for counter in made.values():
            counter.add(1)
        return []

    meter.create_observable_gauge("m.observed", callbacks=[callback])
    made["late"] = meter.create_counter("z.late")
    for times in (1, 2):
        data = reader.get_metrics_data()
        assert [point.value for name in ("a.early", "z.late") for point in points(data, name)] == [times, times]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("end", ["force_flush", "shutdown"])
def test_the_processor_leaves_nothing_in_the_buffer(end: str) -> None:
    """After its flush or shutdown the instruments have everything, even if they are read by no collection of theirs."""
    reader = PatientReader()
    meter_provider = MeterProvider([reader], shutdown_on_exit=False)
    processor = LifecycleSpanProcessor(meter_provider=meter_provider)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    serve(provider, 2)
    getattr(processor, end)()
    assert len(processor._instruments._buffer) == 0
    assert counted(reader.get_metrics_data()) == (2, 6, 4)


@pytest.mark.usefixtures("way")
def test_requests_that_end_in_many_threads_while_readers_collect_are_counted_once(traced_into: TracedInto) -> None:
    """The delta points of all collections add up to what was served."""
    delta = PatientReader(preferred_temporality=dict.fromkeys((Counter, Histogram), AggregationTemporality.DELTA))
    provider = traced_into(MeterProvider([delta], shutdown_on_exit=False), sampler=ALWAYS_OFF)
    serving = [threading.Thread(target=serve, args=(provider, 150)) for _ in range(3)]
    collected: list[tuple[int, int, int]] = []
    for thread in serving:
        thread.start()
    while any(thread.is_alive() for thread in serving):
        collected.append(counted(delta.get_metrics_data()))
    collected.append(counted(delta.get_metrics_data()))
    assert [sum(figures) for figures in zip(*collected, strict=True)] == [450, 1350, 900]


def test_processors_made_at_once_share_their_instruments(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many threads make one for a provider, open requests are observed once."""
    real, entered = instruments.Instruments.__init__, threading.Barrier(2)

    def slow(self: Any, provider: Any) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            # A second thread that gets this far at the same time would make a second set.
            entered.wait(timeout=0.5)
        real(self, provider)

    monkeypatch.setattr(instruments.Instruments, "__init__", slow)
    provider, made = MeterProvider(shutdown_on_exit=False), []
    threads = [threading.Thread(target=lambda: made.append(instruments.instruments_of(provider))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made[0] is made[1]
    provider.shutdown()


@pytest.mark.process
@pytest.mark.usefixtures("way")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_what_waits_at_a_fork_is_counted_by_the_parent_alone(traced_into: TracedInto) -> None:
    """The child starts with an empty buffer and counts its own requests; the parent's are still there."""
    reader = PatientReader()
    provider = traced_into(MeterProvider([reader], shutdown_on_exit=False))
    serve(provider, 3)

    def in_child() -> object:
        serve(provider, 2)
        return counted(reader.get_metrics_data())

    assert forked(in_child) == (2, 6, 4)
    assert counted(reader.get_metrics_data()) == (3, 9, 6)


def test_a_fold_that_was_forked_goes_on_for_nothing(traced_into: TracedInto, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler may fork while its thread folds: what the child goes on with, its parent counts."""
    reader = PatientReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    provider, inner = traced_into(meters, sampler=ALWAYS_OFF), instruments.instruments_of(meters)
    steps: list[Callable[..., Any]] = [lambda *_: inner.forget(), fold_usual]
    monkeypatch.setattr(instruments, "fold_usual", lambda *given: [step(*given) for step in steps])
    serve(provider, 3)
    assert counted(reader.get_metrics_data()) == (0, 0, 0)
    monkeypatch.setattr(instruments, "fold_usual", fold_usual)
    serve(provider, 2)
    assert counted(reader.get_metrics_data()) == (2, 6, 4)


def forked(work: Callable[[], object]) -> object:
    """Return what ``work`` gives in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        verdict: object = "failed"
        try:
            verdict = work()
        except Exception as error:  # noqa: BLE001  # whatever it is, the parent reports it
            verdict = repr(error)
        finally:
            os.write(writing, pickle.dumps(verdict))
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer: object = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    return answer


def test_every_sampled_request_can_be_an_exemplar_of_its_own_bucket(traced_into: TracedInto) -> None:
    """Requests folded together keep their own traces."""
    reader = PatientReader()
    provider = traced_into(MeterProvider([reader], shutdown_on_exit=False))
    traces = set()
    for age_s in (1, 30):
        request = lifecycle.request(model="m", arrived_at_ns=_ago(age_s), tracer_provider=provider)
        request.cancel()
        traces.add(_trace_of(request))
    (point,) = points(reader.get_metrics_data(), semconv.REQUEST_DURATION.name)
    assert {exemplar.trace_id for exemplar in point.exemplars} == traces


def _ago(seconds: int) -> int:
    from time import time_ns

    return time_ns() - seconds * 10**9


def _trace_of(request: Any) -> int:
    """Return the trace id that the request's carrier names."""
    return int(request.carrier()["traceparent"].split("-")[1], 16)
