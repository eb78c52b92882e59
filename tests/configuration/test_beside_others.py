"""``configure()`` beside other programs: distros, exporters of others, libraries that ask for the SDK's classes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import otel_lifecycle as lifecycle
from otel_lifecycle._configuration.settings import read_settings
from otel_lifecycle.errors import ConfigurationError
from tests.support.otlp_receiver import HttpReceiver

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.process

UNRELATED_APP = """
from opentelemetry import metrics, trace
with trace.get_tracer("app").start_as_current_span("theirs"):
    pass
metrics.get_meter("app").create_counter("theirs").add(1)
trace.get_tracer_provider().force_flush()
"""

ONE_REQUEST = """
import otel_lifecycle as lifecycle
lifecycle.configure(service_name="svc")
with lifecycle.request(model="tiny") as request:
    for _ in request.stream(range(3)):
        pass
"""


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end with the project on its path and no OTEL_* variables but the given ones."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    # Python 3.12 and later say at each fork that the process has threads.
    quiet = {"PYTHONWARNINGS": "ignore:This process:DeprecationWarning"}
    environment = {**kept, "PYTHONPATH": str(ROOT), **quiet, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def instrumented(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program under ``opentelemetry-instrument``."""
    launcher = "from opentelemetry.instrumentation.auto_instrumentation import run; run()"
    return run(sys.executable, "-c", launcher, sys.executable, "-c", program, **variables)


@pytest.mark.slow
@pytest.mark.parametrize("configurator", ["configurator", None, "none of them"])
def test_c102_an_app_without_requests_exports_what_it_exported(configurator: str | None) -> None:
    """The distro's configurator does its work, named or not; without one ours sets the SDK up."""
    named = {} if configurator is None else {"OTEL_PYTHON_CONFIGURATOR": configurator}
    done = instrumented(UNRELATED_APP, OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="console", **named)
    assert done.returncode == 0, done.stderr
    assert '"name": "theirs"' in done.stdout
    assert '"inference.' not in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_c102_logs_are_not_lost(otlp_http: HttpReceiver) -> None:
    """The distro also sets logging up, which ours never does."""
    program = UNRELATED_APP + "import logging; logging.getLogger('app').warning('kept')\n"
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": otlp_http.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    done = instrumented(
        program, OTEL_LOGS_EXPORTER="console", OTEL_PYTHON_LOGGING_AUTO_INSTRUMENTATION_ENABLED="true", **endpoint
    )
    assert done.returncode == 0, done.stderr
    assert '"body": "kept"' in done.stdout
    assert [span["name"] for span in otlp_http.spans("theirs")] == ["theirs"]


@pytest.mark.slow
def test_c102_requests_are_assessed_beside_a_distro() -> None:
    """``ensure_processor`` alone gives an app with requests the right spans; its configure() joins what is there."""
    done = instrumented(ONE_REQUEST, OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="none")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"inference.outcome": "completed"') == 1


@pytest.mark.usefixtures("fresh_globals")
def test_c102_configure_names_what_cannot_apply(caplog: pytest.LogCaptureFixture) -> None:
    """Providers that exist keep their resource, sampler and exporters, and the caller is told."""
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

    tracers, meters = TracerProvider(shutdown_on_exit=False), MeterProvider(shutdown_on_exit=False)
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(meters)
    with caplog.at_level("WARNING", "otel_lifecycle"):
        lifecycle.configure(service_name="svc", sampler=0.5, strict=True)
    lifecycle.shutdown()
    tracers.shutdown()
    meters.shutdown()
    assert [record.getMessage() for record in caplog.records] == [
        "configure() uses the providers that exist, so it ignores sampler, service_name"
    ]


@pytest.mark.parametrize(
    ("variables", "exporters"),
    [
        ({"OTEL_TRACES_EXPORTER": "console"}, {"traces": ("console",), "metrics": ("otlp",)}),
        ({"OTEL_TRACES_EXPORTER": "otlp, console"}, {"traces": ("otlp", "console"), "metrics": ("otlp",)}),
        ({"OTEL_TRACES_EXPORTER": "otlp_proto_grpc"}, {"traces": ("otlp_proto_grpc",), "metrics": ("otlp",)}),
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, {"traces": ("otlp",), "metrics": ("prometheus",)}),
        ({"OTEL_LIFECYCLE_FILE": "run.jsonl"}, {"traces": (), "metrics": ()}),
        (
            {"OTEL_LIFECYCLE_FILE": "run.jsonl", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"},
            {"traces": ("otlp",), "metrics": ("otlp",)},
        ),
    ],
)
def test_c103_exporters_are_those_that_are_named(
    variables: dict[str, str], exporters: dict[str, tuple[str, ...]]
) -> None:
    """As the SDK finds them, by their entry points; several are parted by commas."""
    assert read_settings({}, variables).exporters == exporters


def test_c103_an_unknown_exporter_is_one_clear_error() -> None:
    """It names the variable, what is wrong, and what there is."""
    with pytest.raises(ConfigurationError) as caught:
        read_settings({}, {"OTEL_TRACES_EXPORTER": "otlp,zipkin"})
    assert str(caught.value).startswith(
        "OTEL_TRACES_EXPORTER is 'otlp,zipkin'; 'zipkin' is not installed; there are console, none, otlp, "
    )


def test_c103_console_and_otlp_side_by_side(otlp_http: HttpReceiver) -> None:
    """Each gets every span, with its attribution."""
    done = run(
        sys.executable,
        "-c",
        ONE_REQUEST,
        OTEL_TRACES_EXPORTER="otlp,console",
        OTEL_EXPORTER_OTLP_ENDPOINT=otlp_http.endpoint,
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"inference.outcome": "completed"') == 1
    assert [span["attributes"]["inference.outcome"] for span in otlp_http.spans("chat tiny")] == ["completed"]


def test_c103_prometheus_is_scraped() -> None:
    """A metric reader found by its entry point, which serves on a port of its own."""
    program = ONE_REQUEST + (
        "import os, urllib.request\n"
        "address = 'http://127.0.0.1:' + os.environ['OTEL_EXPORTER_PROMETHEUS_PORT'] + '/metrics'\n"
        "print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address).read().decode())\n"
    )
    done = run(
        sys.executable,
        "-c",
        program,
        OTEL_TRACES_EXPORTER="none",
        OTEL_METRICS_EXPORTER="prometheus",
        OTEL_EXPORTER_PROMETHEUS_HOST="127.0.0.1",
        OTEL_EXPORTER_PROMETHEUS_PORT=str(free_port()),
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("inference_requests_total{")]
    assert line.endswith(" 1.0")


def free_port() -> int:
    """Return a port of the loopback that is free now."""
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_c104_without_a_collector_one_line_says_what_to_do() -> None:
    """The exporters, whose retries log a stack each and hold the end up, are not asked at all."""
    done = run(sys.executable, "-X", "importtime", "-c", ONE_REQUEST)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert done.returncode == 0
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("nothing is exported: no Collector listens on localhost:4318, the default. Start one")


FORKING = """
import os, sys
from opentelemetry import metrics, trace
import opentelemetry.sdk.metrics as sdk_metrics, opentelemetry.sdk.trace as sdk_trace
import otel_lifecycle as lifecycle

lifecycle.configure(service_name="svc")
before = trace.get_tracer("before")
counter = metrics.get_meter("before").create_counter("before")

def check(who):
    tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
    assert isinstance(tracers, sdk_trace.TracerProvider), who
    assert isinstance(meters, sdk_metrics.MeterProvider), who
    with before.start_as_current_span(who) as span:
        assert isinstance(span, sdk_trace.Span)
    counter.add(1)
    return tracers.resource.attributes["service.instance.id"]

mine = check("parent")
child = os.fork()
theirs = check("child" if child == 0 else "parent again")
if child == 0:
    code = 0 if theirs != mine else 3
    lifecycle.shutdown()
    os._exit(code)
assert theirs == mine
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
lifecycle.shutdown()
"""


def test_providers_are_of_the_sdks_classes_across_a_fork(otlp_http: HttpReceiver) -> None:
    """Libraries that ask for the SDK's classes find them, and a tracer from before the fork serves both processes."""
    done = run(
        sys.executable,
        "-c",
        FORKING,
        OTEL_EXPORTER_OTLP_ENDPOINT=otlp_http.endpoint,
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
    )
    assert done.returncode == 0, done.stderr
    assert sorted(span["name"] for span in otlp_http.spans()) == ["child", "parent", "parent again"]
    by_instance = {
        span["resource"]["service.instance.id"]: point["value"]
        for span in otlp_http.spans()
        for point in otlp_http.points("before")
        if point["resource"]["service.instance.id"] == span["resource"]["service.instance.id"]
    }
    assert sorted(value or 0 for value in by_instance.values()) == [1, 2]


def requests_in(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the request spans of a file of OTLP JSON lines, whose last line may be torn."""
    for line in path.read_text().split("\n")[:-1]:
        for resource in json.loads(line).get("resourceSpans", ()):
            for scope in resource["scopeSpans"]:
                yield from (span for span in scope["spans"] if span["name"] == "chat tiny")


KILLED = """
import os, time
import otel_lifecycle as lifecycle
lifecycle.configure()
with lifecycle.request(model="tiny") as request:
    for _ in request.stream(range(3)):
        pass
print("ended", flush=True)
time.sleep(60)
"""


def test_a_file_has_what_ended_before_the_process_was_killed(tmp_path: Path) -> None:
    """SIGKILL leaves no time for anything: the request that ended a second before is in the file."""
    path = tmp_path / "run.jsonl"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OTEL_LIFECYCLE_FILE": str(path)}
    with subprocess.Popen([sys.executable, "-c", KILLED], env=environment, stdout=subprocess.PIPE, text=True) as app:
        assert app.stdout is not None
        app.stdout.readline()
        for _ in range(200):
            if path.exists() and path.stat().st_size:
                break
            time.sleep(0.1)
        app.send_signal(signal.SIGKILL)
    (span,) = requests_in(path)
    assert (len(span["traceId"]), len(span["spanId"]), span["kind"]) == (32, 16, 2)
    assert {"key": "inference.outcome", "value": {"stringValue": "completed"}} in span["attributes"]


@pytest.mark.usefixtures("fresh_globals")
def test_a_file_is_put_aside_at_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five older files are kept, and the sum of all holds every request that they still have room for."""
    from otel_lifecycle._configuration import pipeline

    monkeypatch.setattr(pipeline, "MEGABYTE", 20_000)
    lifecycle.configure(file=str(tmp_path / "run-{pid}.jsonl"), file_max_mb=1)
    for _ in range(40):
        with lifecycle.request(model="tiny") as request:
            for _ in request.stream(range(3)):
                pass
        from opentelemetry import trace

        trace.get_tracer_provider().force_flush()  # type: ignore[attr-defined]  # the SDK's has it
    lifecycle.shutdown()
    found = sorted(path.name.removeprefix(f"run-{os.getpid()}") for path in tmp_path.iterdir())
    assert found[-1] == ".jsonl"
    assert found[:-1] == [f".{number}.jsonl" for number in range(1, len(found))]
    assert 3 <= len(found) <= 6
    assert all(path.stat().st_size <= 25_000 for path in tmp_path.iterdir())
    assert sum(len(list(requests_in(path))) for path in tmp_path.iterdir()) == 40


def test_each_process_has_a_file_of_its_own(tmp_path: Path) -> None:
    """A forked child finds the file locked and writes beside it."""
    program = ONE_REQUEST.replace("configure(", f"configure(file={str(tmp_path / 'run.jsonl')!r}, ") + (
        "import os\n"
        "child = os.fork()\n"
        "with lifecycle.request(model='tiny') as request:\n"
        "    for _ in request.stream(range(3)):\n"
        "        pass\n"
        "lifecycle.shutdown()\n"
        "os._exit(0) if child == 0 else os.waitpid(child, 0)\n"
    )
    done = run(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    counts = {path.name: len(list(requests_in(path))) for path in tmp_path.iterdir()}
    assert counts.pop("run.jsonl") == 2
    assert list(counts.values()) == [1]


@pytest.mark.parametrize(
    "endpoint",
    ["grpc://user:secret@host:1", "http://user:secret@host:port", "user:secret@host:port", "http://?token=secret"],
)
def test_an_error_does_not_show_credentials(endpoint: str) -> None:
    """A log is read by more people than may know the password."""
    messages = []
    for arguments, variables in (({"endpoint": endpoint}, {}), ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})):
        try:
            read_settings(arguments, variables)
        except ConfigurationError as error:
            messages.append("".join(traceback.format_exception(error)))
    assert messages
    assert "secret" not in "".join(messages)
