"""Everything locked: a server, the Collector and the backends with TLS, client certificates, tokens and passwords."""

from __future__ import annotations

import base64
import json
import os
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExportResult

from tests.stack import certificates, programs
from tests.stack.backends import NotYet, eventually
from tests.stack.programs import CONFIG, LOOPBACK, Running

USER, PASSWORD = "inference", "of-the-test"
HASH: Final = "$2b$05$abcdefghijklmnopqrstuuZQDFqlfhxikusxVp2uYfh7fKmiQU08a"
"""What htpasswd makes of that password; no longer a secret than the password is."""
BASIC: Final = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
TOKEN: Final = "token-of-the-test"
WAITS: Final = {"BATCH_TIMEOUT": "100ms", "TRACE_WAIT": "1s", "TRACES_KEPT_PERCENT": "100"}
STEADY: Final = 40
"""Requests of the load `steady`."""

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """The folder of the secrets, and the programs by their names."""

    secrets: Path
    programs: Mapping[str, Running]

    def get(self, name: str, port: str, path: str, form: Mapping[str, str] | None = None, *, user: bool = True) -> Any:
        """GET a JSON document over TLS, with the password or without."""
        url = f"https://{LOOPBACK}:{self.programs[name].ports[port]}{path}?{urllib.parse.urlencode(form or {})}"
        request = urllib.request.Request(url, headers={"Authorization": BASIC} if user else {})
        context = ssl.create_default_context(cafile=str(self.secrets / "ca.pem"))
        with urllib.request.urlopen(request, timeout=10, context=context) as reply:
            return json.load(reply)

    def value(self, expr: str) -> float:
        """Evaluate an expression that gives one sample."""
        found = self.get("prometheus", "http", "/api/v1/query", {"query": expr})["data"]["result"]
        if len(found) != 1:
            raise NotYet(f"{expr} gives {found}")
        return float(found[0]["value"][1])


def write_secrets(folder: Path) -> Path:
    """Write the folder that prometheus-secure.yaml and web.yaml speak of."""
    folder.mkdir()
    certificates.make(folder)
    (folder / "user").write_text(USER)
    (folder / "password").write_text(PASSWORD)
    web = (CONFIG / "web.yaml").read_text()
    (folder / "web.yaml").write_text(web.replace("put the bcrypt hash here", HASH))
    return folder


def behind_web_config(program: Running, secrets: Path) -> Running:
    """Return Prometheus or Alertmanager with web.yaml."""
    program.command = [*program.command, f"--web.config.file={secrets / 'web.yaml'}"]
    program.ready = program.ready.replace("http://", "https://")
    return program


def with_second_file(program: Running, name: str, env: Mapping[str, str]) -> Running:
    """Return a Collector, or Jaeger, with a second file and what that reads."""
    program.command = [*program.command, "--config", str(CONFIG / name)]
    program.env = {**program.env, **env}
    return program


def listening(secrets: Path) -> dict[str, str]:
    """Return the environment of who listens: its certificate, and the authority of those who call."""
    files = {"OTLP_CERT_FILE": "server.pem", "OTLP_KEY_FILE": "server.key", "OTLP_CLIENT_CA_FILE": "ca.pem"}
    return {name: str(secrets / file) for name, file in files.items()}


def calling(prefix: str, secrets: Path) -> dict[str, str]:
    """Return the environment of an exporter of the Collector."""
    files = {"CA_FILE": "ca.pem", "CERT_FILE": "client.pem", "KEY_FILE": "client.key"}
    return {f"{prefix}_{name}": str(secrets / file) for name, file in files.items()}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    """The programs; the job `jaeger` of Prometheus has nobody behind it, so that an alert fires."""
    folder = tmp_path_factory.mktemp("locked")
    secrets = write_secrets(folder / "secrets")
    with ExitStack() as running:

        def start(program: Running) -> Running:
            running.callback(program.stop)
            return program.start()

        users = {"JAEGER_USERS": f"{USER}:{HASH}"}
        jaeger = start(with_second_file(programs.jaeger(folder), "jaeger-secure.yaml", {**listening(secrets), **users}))
        alertmanager = start(behind_web_config(programs.alertmanager(folder, f"http://{LOOPBACK}:1/"), secrets))
        ports = dict(zip(("grpc", "http", "health", "metrics"), programs.free_ports(4), strict=True))
        targets = {
            "alertmanager:9093": f"{LOOPBACK}:{alertmanager.ports['http']}",
            "collector:8888": f"{LOOPBACK}:{ports['metrics']}",
            "jaeger:8888": f"{LOOPBACK}:1",
        }
        prometheus = start(behind_web_config(programs.prometheus(folder, targets, "prometheus-secure.yaml"), secrets))
        to_jaeger = {
            "JAEGER_ENDPOINT": f"{LOOPBACK}:{jaeger.ports['grpc']}",
            "JAEGER_INSECURE": "false",
            **calling("JAEGER", secrets),
            **WAITS,
        }
        to_prometheus = {
            "PROMETHEUS_ENDPOINT": f"https://{LOOPBACK}:{prometheus.ports['http']}/api/v1/otlp",
            "PROMETHEUS_AUTHORIZATION": BASIC,
            **calling("PROMETHEUS", secrets),
        }
        own = {**listening(secrets), "OTLP_TOKEN": TOKEN}
        sets = ("service::pipelines::traces::exporters=[otlp_grpc/jaeger]",)

        def collector(name: str, env: Mapping[str, str], **more: Any) -> Running:
            program = programs.collector(folder, CONFIG / f"{name}.yaml", name=name, env=env, **more)
            return start(with_second_file(program, "secure.yaml", own))

        gateway = collector("gateway", to_jaeger, sets=sets)
        to_gateway = {
            "GATEWAY_HOST": LOOPBACK,
            "GATEWAY_PORT": str(gateway.ports["grpc"]),
            "GATEWAY_INSECURE": "false",
            "GATEWAY_SERVER_NAME": certificates.SERVER_NAME,
            "GATEWAY_AUTHORIZATION": f"Bearer {TOKEN}",
            **calling("GATEWAY", secrets),
            "BATCH_TIMEOUT": "100ms",
        }
        yield Locked(
            secrets=secrets,
            programs={
                "jaeger": jaeger,
                "alertmanager": alertmanager,
                "prometheus": prometheus,
                "collector": collector("collector", {**to_jaeger, **to_prometheus}, ports=ports, sets=sets),
                "agent": collector("agent", {**to_gateway, **to_prometheus}),
            },
        )


def serve(locked: Locked, way: str) -> None:
    """Be a server that is configured by the variables of OpenTelemetry alone, and serve the load `steady`.

    ``way``: the Collector it sends to; the server has the same name.
    """
    files = {"CERTIFICATE": "ca.pem", "CLIENT_CERTIFICATE": "client.pem", "CLIENT_KEY": "client.key"}
    env = {
        "OTEL_SERVICE_NAME": way,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"https://{LOOPBACK}:{locked.programs[way].ports['grpc']}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{TOKEN}",
        **{f"OTEL_EXPORTER_OTLP_{name}": str(locked.secrets / file) for name, file in files.items()},
    }
    command = [sys.executable, "-m", "tests.stack.replica", "steady", "1", "0"]
    subprocess.run(command, env={**os.environ, **env}, input=b"", check=True, capture_output=True, timeout=120)


@pytest.mark.parametrize("way", ["collector", "agent"])
def test_telemetry_and_alerts_pass_where_everything_is_locked(locked: Locked, way: str) -> None:
    """Traces are in Jaeger, metrics in Prometheus, which scrapes itself over TLS, and its alert is in Alertmanager.

    By the one Collector, and by an agent and a gateway.
    """
    serve(locked, way)

    def arrived() -> None:
        form = {"service": way, "limit": "1000", "lookback": "1h"}
        traces = len(locked.get("jaeger", "query", "/api/traces", form)["data"])
        requests = locked.value(f'sum(last_over_time(inference_requests_total{{job="{way}"}}[1h]))')
        scraped = locked.value('up{job="prometheus"}')
        alerts = {alert["labels"]["alertname"] for alert in locked.get("alertmanager", "http", "/api/v2/alerts")}
        seen = (traces, requests, scraped, "InferenceTraceBackendDown" in alerts)
        # A trace for each request, and one of the server's start.
        if seen != (STEADY + 1, STEADY, 1, True):
            raise NotYet(f"{seen}, {alerts}")

    eventually(arrived)


@pytest.mark.parametrize(
    ("name", "port", "path"),
    [
        ("prometheus", "http", "/api/v1/query"),
        ("prometheus", "http", "/api/v1/otlp/v1/metrics"),
        ("prometheus", "http", "/metrics"),
        ("alertmanager", "http", "/api/v2/alerts"),
        ("jaeger", "query", "/api/services"),
    ],
)
def test_without_the_password_nothing_is_told_or_taken(locked: Locked, name: str, port: str, path: str) -> None:
    """Each address answers 401 over TLS, and nothing useful without TLS."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        locked.get(name, port, path, user=False)
    refused.value.close()
    assert refused.value.code == 401
    plain = f"http://{LOOPBACK}:{locked.programs[name].ports[port]}{path}"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(plain, headers={"Authorization": BASIC}), timeout=10)
    refused.value.close()
    assert refused.value.code == 400


@pytest.mark.parametrize(("client", "taken"), [("client", True), ("stranger", False), (None, False)])
def test_jaeger_takes_spans_from_who_has_a_certificate(locked: Locked, client: str | None, taken: bool) -> None:
    """One of the authority's: taken.  A stranger's, and none: refused."""

    def read(names: Sequence[str]) -> list[bytes]:
        return [(locked.secrets / name).read_bytes() for name in names]

    own = read((f"{client}.key", f"{client}.pem")) if client else (None, None)
    exporter = OTLPSpanExporter(
        endpoint=f"https://{LOOPBACK}:{locked.programs['jaeger'].ports['grpc']}",
        credentials=grpc.ssl_channel_credentials(*read(("ca.pem",)), *own),
        timeout=3,
    )
    try:
        assert (exporter.export([]) is SpanExportResult.SUCCESS) is taken
    finally:
        exporter.shutdown()
