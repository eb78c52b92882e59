"""Every private name of OpenTelemetry may go: one warning, the same figures, no more work for the serving thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricExporter, MetricExportResult

from otel_lifecycle._configuration.exporters import ProcessMetrics
from tests.instruments.renamed import REQUESTS, TOKENS, private_names

Told = dict[str, Any]
OPTIONAL = {"_is_enabled", "_real_instrument"}
"""Older SDKs lack the first; without the second a proxy is recorded into as it is, and there is none here."""


@pytest.fixture(scope="module")
def told() -> dict[str, Told]:
    """Return what came of each name when it was gone; the empty name is an SDK as it is."""
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    process = subprocess.run(
        [sys.executable, "-m", "tests.instruments.renamed"], capture_output=True, text=True, check=True, timeout=110
    )
    return {line["name"]: line for line in map(json.loads, process.stdout.splitlines())}


@pytest.mark.slow
@pytest.mark.parametrize("name", private_names())
def test_without_a_private_name_everything_is_counted_and_an_end_costs_no_more(
    told: dict[str, Told], name: str
) -> None:
    """Both readers get the same figures as with the name; the end of a 1000-token request makes no more calls."""
    usual, without = told[""], told[name]
    assert (without["figures"], without["again"]) == (usual["figures"], usual["again"])
    assert without["figures"][0]["inference.inter_token_latency"] == REQUESTS * (TOKENS - 1)
    assert without["calls"] <= 1.5 * usual["calls"]
    warnings = [message for message in without["warnings"] if "other insides" in message]
    assert (len(warnings), len(without["warnings"])) == ((0, 0) if name in OPTIONAL else (1, 1))


@pytest.mark.slow
def test_with_all_names_nothing_is_said(told: dict[str, Told]) -> None:
    """The installed SDK is one that is known."""
    assert told[""]["warnings"] == []


class Exporter(MetricExporter):
    """An exporter that prefers delta points."""

    def export(self, metrics_data: Any, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Take everything."""
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Nothing waits."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Nothing to close."""


@pytest.mark.parametrize("renamed", [False, True])
def test_a_wrapped_exporter_is_preferred_as_it_is(monkeypatch: pytest.MonkeyPatch, renamed: bool) -> None:
    """Its preferences pass under whatever names the SDK's base class keeps them."""

    def keep(self: Any, preferred_temporality: Any = None, preferred_aggregation: Any = None) -> None:
        self._temporality_by_class = preferred_temporality
        self._aggregation_by_class = preferred_aggregation

    if renamed:
        monkeypatch.setattr(MetricExporter, "__init__", keep)
    preferred: Any = {int: AggregationTemporality.DELTA}
    exporter = Exporter(preferred_temporality=preferred)
    kept = {name: value for name, value in vars(ProcessMetrics(exporter)).items() if name in vars(exporter)}
    assert kept == vars(exporter)
    assert preferred in kept.values()


def test_gauges_are_wrapped_without_their_private_name() -> None:
    """The class that gauges are recognised by is the one the API's gauges have."""
    from opentelemetry.sdk.metrics import MeterProvider

    from otel_lifecycle._configuration.fork_safe_providers import Gauge

    gauge = MeterProvider(shutdown_on_exit=False).get_meter("tests").create_gauge("level")
    assert isinstance(gauge, Gauge)
