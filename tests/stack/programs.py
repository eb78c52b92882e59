"""Start the real programs on free loopback ports, wait until they answer, and end them by their own process.

Every file they are started with is one of collector-config/ as it stands; what differs from an operator's machine
(addresses, folders, waits) comes from the environment variables that those files read, or, where a program reads none,
from :mod:`tests.stack.overlay`.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.stack import build, overlay

CONFIG: Final = Path(__file__).parents[2] / "collector-config"
LOOPBACK: Final = "127.0.0.1"
START_TIMEOUT: Final = 60.0
STOP_TIMEOUT: Final = 15.0
RUNBOOKS: Final = "https://wiki.test/inference"
"""Where the operator of the tests reads the runbook."""


class StackError(RuntimeError):
    """A program did not start; the message carries the end of its log."""


def free_ports(count: int, host: str = LOOPBACK) -> list[int]:
    """Return that many distinct ports that nobody listens on right now."""
    with ExitStack() as held:
        ports = []
        for _ in range(count):
            probe = held.enter_context(socket.socket())
            probe.bind((host, 0))
            ports.append(int(probe.getsockname()[1]))
        return ports


@dataclass(slots=True, kw_only=True)
class Running:
    """A program that was started: its ports by name, where it logs, and the command to start it again."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    folder: Path
    ready: str
    ports: Mapping[str, int] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """The file that both of its output streams go to."""
        return self.folder / f"{self.name}.log"

    def start(self) -> Running:
        """Start it and wait until it is ready; StackError if it ends first or never is."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env={**os.environ, **self.env},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_TIMEOUT
        while not _answers(self.ready):
            if self.process.poll() is not None:
                raise StackError(f"{self.name} ended with {self.process.returncode} while starting; {self.tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise StackError(f"{self.name} did not answer at {self.ready} in {START_TIMEOUT:.0f} s; {self.tail()}")
            time.sleep(0.05)
        return self

    def tail(self, lines: int = 8) -> str:
        """Return the end of its log, for an error message."""
        said = self.log.read_text(errors="replace").splitlines()[-lines:] if self.log.exists() else []
        return "its log ends:\n" + "\n".join(said)

    def stop(self) -> None:
        """End it as a service manager would, and for good if it does not obey."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def _answers(url: str) -> bool:
    # Whether anybody answers is all that is asked, so any certificate will do, and so will "who are you?".
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=1, context=context) as reply:
            return bool(reply.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code == 401
    except (urllib.error.URLError, OSError):
        return False


def collector(
    folder: Path,
    config: Path,
    *,
    name: str = "collector",
    host: str = LOOPBACK,
    ports: Mapping[str, int] | None = None,
    env: Mapping[str, str] | None = None,
    sets: Sequence[str] = (),
    before: Sequence[str] = (),
) -> Running:
    """Describe a Collector on one of the files; ``sets`` are the ``--set`` overrides an operator may give, too."""
    ports = ports or dict(zip(("grpc", "http", "health", "metrics"), free_ports(4, host), strict=True))
    flags = [part for override in sets for part in ("--set", override)]
    addresses = {
        "OTLP_GRPC_ENDPOINT": f"{host}:{ports['grpc']}",
        "OTLP_HTTP_ENDPOINT": f"{host}:{ports['http']}",
        "HEALTH_ENDPOINT": f"{host}:{ports['health']}",
        "METRICS_HOST": host,
        "METRICS_PORT": str(ports["metrics"]),
    }
    return Running(
        name=name,
        command=[*before, str(build.ensure("collector")), "--config", str(config), *flags],
        env={**addresses, **(env or {})},
        folder=folder,
        ready=f"http://{host}:{ports['health']}/",
        ports=ports,
    )


def jaeger(folder: Path) -> Running:
    """Describe Jaeger on jaeger.yaml, its spans under ``folder``."""
    ports = dict(zip(("grpc", "query", "query_grpc", "health", "metrics"), free_ports(5), strict=True))
    return Running(
        name="jaeger",
        command=[str(build.ensure("jaeger")), "--config", str(CONFIG / "jaeger.yaml")],
        env={
            "OTLP_GRPC_ENDPOINT": f"{LOOPBACK}:{ports['grpc']}",
            "QUERY_HTTP_ENDPOINT": f"{LOOPBACK}:{ports['query']}",
            "QUERY_GRPC_ENDPOINT": f"{LOOPBACK}:{ports['query_grpc']}",
            "HEALTH_ENDPOINT": f"{LOOPBACK}:{ports['health']}",
            "METRICS_HOST": LOOPBACK,
            "METRICS_PORT": str(ports["metrics"]),
            "BADGER_DIRECTORY": str(folder / "spans"),
            # As in compose.yaml.
            "OTEL_TRACES_SAMPLER": "always_off",
        },
        folder=folder,
        ready=f"http://{LOOPBACK}:{ports['health']}/status",
        ports=ports,
    )


def prometheus(folder: Path, targets: Mapping[str, str], source: str = "prometheus.yaml") -> Running:
    """Describe Prometheus on ``source`` and its rules, with short windows and these targets in their place."""
    (port,) = free_ports(1)
    own = {"localhost:9090": f"{LOOPBACK}:{port}"}
    config = overlay.prometheus(CONFIG, folder, {**targets, **own}, RUNBOOKS, source)
    return Running(
        name="prometheus",
        command=[
            str(build.ensure("prometheus")),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'series'}",
            f"--web.listen-address={LOOPBACK}:{port}",
            "--web.enable-otlp-receiver",
            "--enable-feature=exemplar-storage",
            f"--query.lookback-delta={overlay.scaled('5m')}",
            # An alert that is not sent again for four times this long resolves in Alertmanager.
            f"--rules.alert.resend-delay={overlay.scaled('2m')}",
        ],
        env={},
        folder=folder,
        ready=f"http://{LOOPBACK}:{port}/-/ready",
        ports={"http": port},
    )


def alertmanager(folder: Path, webhook: str) -> Running:
    """Describe Alertmanager on alertmanager.yaml, with short waits, posting to ``webhook``."""
    (port,) = free_ports(1)
    config = overlay.alertmanager(CONFIG, folder, webhook)
    return Running(
        name="alertmanager",
        command=[
            str(build.ensure("alertmanager")),
            f"--config.file={config}",
            f"--storage.path={folder / 'silences'}",
            f"--web.listen-address={LOOPBACK}:{port}",
            "--cluster.listen-address=",
        ],
        env={},
        folder=folder,
        ready=f"http://{LOOPBACK}:{port}/-/ready",
        ports={"http": port},
    )
