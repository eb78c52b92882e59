"""Every query of the dashboard, on the real Prometheus: it parses, and after a load it returns data."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest
from opentelemetry.metrics import CallbackOptions, Observation

import otel_lifecycle as lifecycle
from otel_lifecycle import semconv
from tests.stack import overlay
from tests.stack.backends import NotYet, eventually
from tests.stack.conftest import Stack
from tests.stack.load import Script, mix
from tests.stack.programs import CONFIG

JOB: Final = "dashboard"
BOARD: Final = json.loads((CONFIG / "grafana" / "dashboards" / "inference.json").read_text())
VARIABLES: Final = {"$job": JOB, "$model": ".*", "$traffic": "()", "$__rate_interval": "10s"}
WARM_UP: Final = Script(prefill=50.0)


def queries() -> list[tuple[str, str]]:
    """Return the panel's title and the expression of every query, with the variables filled in."""
    found = []
    for panel in BOARD["panels"]:
        for target in panel.get("targets", []):
            expr = target["expr"]
            for name, value in VARIABLES.items():
                expr = expr.replace(name, value)
            found.append((f"{panel['title']}/{target['refId']}", expr))
    return found


@pytest.fixture(scope="module")
def played(stack: Stack) -> Iterator[None]:
    """Every kind of request, in two helpings so that rates have two samples; and the gauges of the machine."""
    with stack.server(JOB, slo=lifecycle.Slo(ttft=0.5, tpot=0.05)) as server:
        meter = server.meter_provider.get_meter("dashboard")
        for metric in (semconv.CACHE_USAGE, semconv.MEMORY_USED, semconv.DEVICE_UTILIZATION):
            meter.create_observable_gauge(metric.name, [_half], unit=metric.unit)
        server.play(Script(end="leave", where="decode"))
        for seed in range(4):
            server.play_all(mix(seed, 40))
            server.play(Script(illegal=True))
            server.play(Script(end="cancel", late=5))
            server.play(WARM_UP, traffic="warmup")
            server.flush()
            time.sleep(1)

        def compared() -> None:
            # The hour before is the last thing to be there: ten short seconds later.
            stack.prometheus.value(f'inference:bottleneck:baseline1h{{job="{JOB}", inference_bottleneck="mixed"}}')

        eventually(compared)
        yield


def _half(options: CallbackOptions) -> list[Observation]:
    return [Observation(0.5)]


@pytest.mark.parametrize(("title", "expr"), queries(), ids=[title for title, _ in queries()])
def test_every_query_returns_data(stack: Stack, played: None, title: str, expr: str) -> None:
    """As a panel asks it, over the last minute; some sample of it is a number."""

    def data() -> list[Any]:
        series = stack.prometheus.series(overlay.scaled(expr).replace("[333ms]", "[10s]"), 60)
        values = [float(value) for each in series for _, value in each["values"] if value != "NaN"]
        if not values:
            raise NotYet(f"{title} has no data: {expr}")
        return values

    assert eventually(data, timeout=15)


def test_the_annotations_and_the_variables_are_queries_of_prometheus(stack: Stack, played: None) -> None:
    """The firing alerts of the service, and the label values the pickers offer."""
    (annotation,) = BOARD["annotations"]["list"]
    stack.prometheus.query(annotation["expr"].replace("$job", JOB))
    offered = {entry["name"]: entry["query"] for entry in BOARD["templating"]["list"]}
    assert offered["job"]["query"] == "label_values(inference_requests_total, job)"
    assert JOB in stack.prometheus.by("job", "count by (job) (inference_requests_total)")


def test_warm_up_is_left_out_unless_it_is_asked_for(stack: Stack, played: None) -> None:
    """The TTFT panel knows nothing of a warm-up of 50 s, and does once all traffic is chosen (C54)."""
    (panel,) = (each for each in BOARD["panels"] if each["title"] == "TTFT" and each["type"] == "timeseries")
    (expr,) = (target["expr"] for target in panel["targets"] if target["legendFormat"] == "p99")

    def p99(traffic: str) -> float:
        filled = {**VARIABLES, "$traffic": traffic, "$__rate_interval": "5m"}
        text = expr
        for name, value in filled.items():
            text = text.replace(name, value)
        return stack.prometheus.value(text)

    assert p99("()") < 5
    assert p99(".*") > 40
