"""The real programs, started once for the session, each on collector-config/ and on ports of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.stack import build, programs
from tests.stack.backends import Jaeger, Prometheus, Webhook
from tests.stack.load import Server
from tests.stack.programs import CONFIG, LOOPBACK, Running

HERE = Path(__file__).parent

# Without the extra `demo` the demo cannot run; `make test-stack` installs it.
collect_ignore = (
    [] if all(find_spec(name) for name in ("fastapi", "httpx", "rich", "uvicorn", "xllamacpp")) else ["test_demo.py"]
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test here ``stack``; without the programs and without Go, skip all so marked with one line."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("stack")
    ours = [item for item in items if item.get_closest_marker("stack")]
    absent = build.missing()
    if absent and not shutil.which("go"):
        reason = f"all tests on real backends: no Go to build {', '.join(absent)} with (`make stack`)"
        for item in ours[:1]:
            item.add_marker(pytest.mark.skip(reason=reason))
        config.hook.pytest_deselected(items=ours[1:])
        items[:] = [item for item in items if item not in ours[1:]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What runs, and how to ask it."""

    folder: Path
    programs: dict[str, Running]
    jaeger: Jaeger
    prometheus: Prometheus
    webhook: Webhook
    tempo: Path

    @property
    def endpoints(self) -> dict[str, str]:
        """The environment that tells a Collector where the backends are."""
        return {
            "JAEGER_ENDPOINT": f"{LOOPBACK}:{self.programs['jaeger'].ports['grpc']}",
            "TEMPO_ENDPOINT": f"{LOOPBACK}:{self.programs['tempo'].ports['grpc']}",
            "PROMETHEUS_ENDPOINT": f"{self.prometheus.base}/api/v1/otlp",
        }

    @property
    def otlp(self) -> str:
        """Where applications send to: the Collector's OTLP over gRPC."""
        return f"http://{LOOPBACK}:{self.programs['collector'].ports['grpc']}"

    def server(self, name: str, **settings: Any) -> Server:
        """Return an instrumented process of that service name that sends to the Collector."""
        return Server(name, **{"endpoint": self.otlp, **settings})


SHORT_WAITS = {"TRACE_WAIT": "5s", "TRACE_WAIT_AFTER_ROOT": "1s", "BATCH_TIMEOUT": "100ms"}
"""How long the sampler waits in the tests; the files' own waits are those of real requests."""


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Everything of one machine: collector.yaml, jaeger.yaml, prometheus.yaml with its rules, alertmanager.yaml."""
    folder = tmp_path_factory.mktemp("stack")
    with ExitStack() as running:
        webhook = Webhook()
        running.callback(webhook.close)

        def start(program: Running) -> Running:
            running.callback(program.stop)
            return program.start()

        jaeger = start(programs.jaeger(folder))
        # Tempo is not built here. Another Collector stands where it would: it takes the same OTLP and writes it down.
        received = folder / "tempo.json"
        tempo = start(programs.collector(folder, HERE / "sink.yaml", name="tempo", env={"SINK_FILE": str(received)}))
        alertmanager = start(programs.alertmanager(folder, webhook.url))
        ports = dict(zip(("grpc", "http", "health", "metrics"), programs.free_ports(4), strict=True))
        prometheus = start(
            programs.prometheus(
                folder,
                {
                    "alertmanager:9093": f"{LOOPBACK}:{alertmanager.ports['http']}",
                    "collector:8888": f"{LOOPBACK}:{ports['metrics']}",
                    "jaeger:8888": f"{LOOPBACK}:{jaeger.ports['metrics']}",
                },
            )
        )
        stack = Stack(
            folder=folder,
            programs={"jaeger": jaeger, "tempo": tempo, "alertmanager": alertmanager, "prometheus": prometheus},
            jaeger=Jaeger(jaeger.ports["query"]),
            prometheus=Prometheus(prometheus.ports["http"]),
            webhook=webhook,
            tempo=received,
        )
        stack.programs["collector"] = start(
            programs.collector(
                folder,
                CONFIG / "collector.yaml",
                ports=ports,
                env={**stack.endpoints, **SHORT_WAITS, "TRACES_KEPT_PERCENT": "100"},
            )
        )
        yield stack
