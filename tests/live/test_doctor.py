"""``otel-lifecycle doctor``: what it says of set-ups that are right, wrong, or no Python at all."""

from __future__ import annotations

import http.server
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from otel_lifecycle._doctor.checks import Check, checks_of
from otel_lifecycle._doctor.endpoints import Endpoint, endpoint_of, problem_of
from otel_lifecycle._doctor.look import ProbeReport
from tests.cli.running import Ran

VERSIONS = {
    "opentelemetry-api": "1.45.2",
    "opentelemetry-sdk": "1.45.2",
    "opentelemetry-exporter-otlp": "1.45.2",
    "otel-lifecycle": "0.1.0",
}
QUIET = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}


def layer(name: str, *inner: dict[str, Any]) -> dict[str, Any]:
    """A processor or exporter as the probe writes it."""
    return {"class": name, "inner": list(inner)}


def seen(**changes: Any) -> ProbeReport:
    """What the probe sees of a set-up with nothing to fix."""
    providers = {
        "sdk": True,
        "tracer": "sdk.TracerProvider",
        "processors": [layer("x.LifecycleSpanProcessor"), layer("x.BatchSpanProcessor", layer("x.OTLPSpanExporter"))],
        "readers": [layer("x.PeriodicExportingMetricReader")],
    }
    whole: dict[str, Any] = {
        "python": "3.11",
        "executable": "python",
        "versions": VERSIONS,
        "providers": {**providers, **changes.pop("providers", {})},
        "engines": [],
        "settings": None,
        "known_variables": ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SERVICE_NAME"],
    }
    found: ProbeReport = {**whole, **changes}  # type: ignore[typeddict-item]  # the probe writes any of it
    return found


def wrong(found: list[Check]) -> list[tuple[str, str]]:
    """What is to be mended, with the remedies."""
    return [(check.text, check.remedy) for check in found if check.state == "wrong"]


def test_a_good_set_up_has_nothing_to_mend() -> None:
    """Everything is listed, and nothing is wrong."""
    found = checks_of(seen(), QUIET)
    assert wrong(found) == []
    assert {check.topic for check in found} == {"python", "versions", "settings", "providers", "processors", "engines"}


@pytest.mark.parametrize(
    ("changes", "environment", "text", "remedy"),
    [
        ({"versions": {**VERSIONS, "opentelemetry-sdk": "1.30.0"}}, {}, "opentelemetry-sdk 1.30.0 is too old", "pip"),
        ({"versions": {}}, {}, "otel-lifecycle is not installed", "pip install otel-lifecycle"),
        ({"providers": {"sdk": False}}, {}, "does not set up an OpenTelemetry SDK", "otel_lifecycle.configure()"),
        (
            {"providers": {"processors": [layer("x.BatchSpanProcessor", layer("x.OTLPSpanExporter"))]}},
            {},
            "no LifecycleSpanProcessor",
            "add_span_processor(LifecycleSpanProcessor())",
        ),
        ({"providers": {"processors": [layer("x.LifecycleSpanProcessor")]}}, {}, "no span exporter", "BatchSpan"),
        ({"providers": {"readers": []}}, {}, "no metric reader", "MeterProvider"),
        ({}, {"OTEL_SDK_DISABLED": "true"}, "switches everything off", "unset OTEL_SDK_DISABLED"),
        ({}, {"OTEL_SERVCE_NAME": "x"}, "OTEL_SERVCE_NAME is not a setting", "write OTEL_SERVICE_NAME"),
        (
            {
                "settings": "OTEL_LIFECYCLE_STRCT is not a setting; there are OTEL_LIFECYCLE_COMPAT, "
                "OTEL_LIFECYCLE_STRICT"
            },
            {},
            "OTEL_LIFECYCLE_STRCT is not a setting",
            "write OTEL_LIFECYCLE_STRICT",
        ),
    ],
)
def test_each_fault_has_its_remedy(
    changes: dict[str, Any], environment: dict[str, str], text: str, remedy: str
) -> None:
    """The fault is listed, and its remedy says what to write."""
    found = wrong(checks_of(seen(**changes), {**QUIET, **environment}))
    assert any(text in one and remedy in what for one, what in found), found


def test_engines_are_named_with_what_to_do() -> None:
    """One that is instrumented, one that is not, one whose instrumentor fails."""
    engines = [
        {"instrumentor": "otel_lifecycle.integrations.a:A", "engine": "a", "version": "1", "active": True},
        {"instrumentor": "otel_lifecycle.integrations.b:B", "engine": "b", "version": "2", "active": False},
        {"instrumentor": "otel_lifecycle.integrations.c:C", "error": "ImportError: no c"},
    ]
    found = [check for check in checks_of(seen(engines=engines), QUIET) if check.topic == "engines"]
    assert [(check.state, check.text) for check in found] == [
        ("ok", "a 1 is instrumented"),
        ("note", "b 2 is installed and not instrumented"),
        ("note", "otel_lifecycle.integrations.c:C cannot be used: ImportError: no c"),
    ]
    assert "call B().instrument() of otel_lifecycle.integrations.b" in found[1].remedy


@pytest.mark.parametrize(
    ("environment", "url", "grpc", "named"),
    [
        ({}, "http://localhost:4318/v1/traces", False, False),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http://localhost:4317", True, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/base/"}, "http://c:4318/base/v1/traces", False, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "c:4317"}, "http://c:4317", True, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://c/in"}, "https://c/in", False, True),
        ({"OTEL_LIFECYCLE_ENDPOINT": "http://d:1"}, "http://d:1/v1/traces", False, True),
    ],
)
def test_the_endpoint_is_the_one_the_exporter_uses(
    environment: dict[str, str], url: str, grpc: bool, named: bool
) -> None:
    """By OpenTelemetry's variables and ours."""
    assert endpoint_of("traces", environment) == Endpoint(signal="traces", url=url, grpc=grpc, named=named)


@pytest.fixture
def answering() -> Iterator[Callable[[int], int]]:
    """Start HTTP servers that answer every POST with a status; gives their ports."""
    servers = []

    def start(status: int) -> int:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return int(server.server_address[1])

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("status", "told"), [(200, None), (401, None), (404, "status 404")])
def test_a_receiver_is_told_from_another_server(answering: Callable[[int], int], status: int, told: str | None) -> None:
    """A server that takes no OTLP answers with an error; one that wants credentials is there."""
    url = f"http://127.0.0.1:{answering(status)}/v1/traces"
    problem = problem_of(Endpoint(signal="traces", url=url, grpc=False, named=True))
    assert (problem is None) if told is None else (problem is not None and told in problem)


def test_a_closed_port_is_named() -> None:
    """Nothing listens there, over either protocol."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    for grpc in (True, False):
        problem = problem_of(Endpoint(signal="traces", url=f"http://127.0.0.1:{port}", grpc=grpc, named=True))
        assert f"nothing answers at 127.0.0.1:{port}" in str(problem)


SERVER = "import otel_lifecycle, time; otel_lifecycle.configure(); print('up', flush=True); time.sleep(100)"


@pytest.mark.slow
def test_a_command_is_looked_at_from_inside(
    cli: Callable[..., Ran], answering: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server under configure() that has a receiver is in order, and is ended afterwards."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{answering(200)}")
    ran = cli("doctor", "--wait", "10", "--json", "--", sys.executable, "-c", SERVER)
    assert ran.code == 0, ran.out
    texts = [check["text"] for check in ran.json["checks"]]
    assert any("LifecycleSpanProcessor" in text and "Export" in text for text in texts), texts
    assert sum("answers (HTTP)" in text for text in texts) == 2


@pytest.mark.slow
def test_what_configure_sets_up_here_is_looked_at_without_a_command(
    cli: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt variable is found, with the name that was meant."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    monkeypatch.setenv("OTEL_LIFECYCLE_SERVCE_NAME", "x")
    ran = cli("doctor")
    assert ran.code == 1
    assert "OTEL_LIFECYCLE_SERVCE_NAME is not a setting\n    write OTEL_LIFECYCLE_SERVICE_NAME" in ran.out


@pytest.mark.parametrize("command", [("no-such-command",), ("sleep", "0")])
def test_what_cannot_be_looked_at_is_the_exit_code_2(cli: Callable[..., Ran], command: tuple[str, ...]) -> None:
    """There is no such command, or it is not a Python program."""
    ran = cli("doctor", "--", *command)
    assert (ran.code, ran.out) == (2, "")
    assert command[0] in ran.err
