"""Cases of processes that fork: a child must not report its parent's requests again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import otel_lifecycle
from tests.support.otlp_receiver import HttpReceiver

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
]

SERVE = """
import otel_lifecycle as lifecycle

def serve(end="complete"):
    request = lifecycle.request(model="tiny")
    request.admit()
    request.input_ready()
    request.first_token()
    getattr(request, end)()
"""

CONFIGURED = (
    SERVE
    + """
import os

lifecycle.configure(service_name="forks", metric_interval=3600)
for _ in range(5):
    serve()
open_across_the_fork = lifecycle.request(model="tiny")
children = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        serve()
        lifecycle.shutdown()
        os._exit(0)
    children.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
open_across_the_fork.cancel()
lifecycle.shutdown()
assert codes == [0, 0], codes
"""
)

OPEN_ACROSS_THE_FORK = (
    SERVE
    + """
import os, time

lifecycle.configure(service_name="forks", metric_interval=0.1)
request = lifecycle.request(model="tiny")
time.sleep(0.4)
pid = os.fork()
if pid == 0:
    serve()
    time.sleep(0.4)
    lifecycle.shutdown()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
request.cancel()
lifecycle.shutdown()
"""
)

OWN_PROVIDERS = (
    SERVE
    + """
import logging, os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from otel_lifecycle.processor import LifecycleSpanProcessor

logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
provider = TracerProvider()
provider.add_span_processor(LifecycleSpanProcessor())
trace.set_tracer_provider(provider)
serve()
pid = os.fork()
serve()
serve()
if pid == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
)


def run(program: str, **variables: str) -> str:
    """Run a program in a process of its own; return what it wrote to standard error."""
    root = Path(otel_lifecycle.__file__).parents[1]
    # Python 3.12 and later warn of a fork in a process with threads; a pre-fork server is just that.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(root), **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_c71_forked_children_count_from_zero(otlp_http: HttpReceiver) -> None:
    """Six requests in the parent and one in each of two children: eight over three instances, and no more spans."""
    run(CONFIGURED, OTEL_EXPORTER_OTLP_ENDPOINT=otlp_http.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf")
    by_instance: dict[str, dict[str, float]] = {}
    for point in otlp_http.points("inference.requests"):
        found = by_instance.setdefault(point["resource"]["service.instance.id"], {})
        outcome = point["attributes"]["inference.outcome"]
        found[outcome] = found.get(outcome, 0) + (point["value"] or 0)
    assert sorted(by_instance.values(), key=len) == [
        {"completed": 1},
        {"completed": 1},
        {"completed": 5, "cancelled": 1},
    ]
    spans = otlp_http.spans("chat tiny")
    assert len({span["span_id"] for span in spans}) == len(spans) == 8


def test_c71_open_requests_are_not_inherited(otlp_http: HttpReceiver) -> None:
    """The request that was open across the fork is in flight in the parent alone, and ends at 0 there."""
    run(
        OPEN_ACROSS_THE_FORK,
        OTEL_EXPORTER_OTLP_ENDPOINT=otlp_http.endpoint,
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
    )
    gauges: dict[str, list[float]] = {}
    for export in otlp_http.exports():
        values = [point["value"] or 0 for point in export if point["metric"] == "inference.active_requests"]
        instance = export[0]["resource"]["service.instance.id"] if export else ""
        gauges.setdefault(instance, []).append(sum(values))
    parent = otlp_http.exports()[0][0]["resource"]["service.instance.id"]
    child = {value for instance, values in gauges.items() if instance != parent for value in values}
    assert (max(gauges[parent]), gauges[parent][-1], child) == (1, 0, {0})


def test_c71_own_providers_are_warned_of_once() -> None:
    """Providers of the app's own made before the fork: one line, which names the set-up that is right."""
    lines = [line for line in run(OWN_PROVIDERS).splitlines() if line.startswith("otel_lifecycle") and "fork" in line]
    assert [line.split()[1] for line in lines] == ["WARNING"]
