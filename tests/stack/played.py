"""One run of a load: start its replicas, a Collector and a Prometheus, and ask all of them about it afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tests.stack import programs
from tests.stack.backends import NotYet, Prometheus, eventually, scrape
from tests.stack.conftest import HERE, SHORT_WAITS, Stack
from tests.stack.figures import Figure, Labels, Total
from tests.stack.programs import CONFIG, LOOPBACK, Running
from tests.stack.replica import Statement

ROOT: Final = HERE.parents[1]
COMMAND: Final = Path(sys.executable).with_name("otel-lifecycle")
KINDS: Final = ("traces", "metrics")
SETTINGS: Final = {
    "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    "OTEL_METRIC_EXPORT_INTERVAL": "500",
    "OTEL_LIFECYCLE_TOKEN_TIMES": "true",
    "OTEL_LIFECYCLE_SLO_TTFT": "0.5",
    "OTEL_LIFECYCLE_SLO_TPOT": "0.05",
}
LAST_RULE: Final = "inference:goodput:rate5m"
"""The last recording rule that has a value here; the rules are one group, evaluated in order."""
Samples = dict[frozenset[tuple[str, str]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A process to start: its service, its load with its seed, the requests it holds open, and further settings."""

    service: str
    load: str
    seed: int
    held: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Run:
    """A run that is over, and everybody who can be asked about it.

    ``held``: active requests by stage, before the end.  ``at``: the instant for which Prometheus is asked.
    """

    folder: Path
    prometheus: Prometheus
    said: Mapping[str, Statement]
    held: Mapping[str, float]
    at: float
    reports: dict[tuple[str, ...], Any] = field(default_factory=dict)

    def files(self, service: str) -> tuple[str, str]:
        """Return the traces and the metrics of a service as they came in."""
        traces, metrics = (self.folder / kind / f"{service}.json" for kind in KINDS)
        return str(traces), str(metrics)

    def report(self, service: str, *options: str) -> Any:
        """Return what the command says of them; it is run once."""
        key = (service, *options)
        if key not in self.reports:
            self.reports[key] = reported(*self.files(service), *options)
        return self.reports[key]

    def ask(self, expr: str) -> Samples:
        """Ask Prometheus."""
        return self.prometheus.query(expr, self.at)

    def total(self, expr: str) -> float:
        """Ask Prometheus for a sum; 0 where there is nothing to add up."""
        (value,) = self.ask(f"sum({expr}) or vector(0)").values()
        return value

    def by(self, name: str, expr: str) -> dict[str, float]:
        """Ask Prometheus for a sum by a label: its value -> the sum, zeros left out."""
        found = self.ask(f"sum by ({name}) ({expr})")
        return {dict(labels).get(name, ""): value for labels, value in found.items() if value}

    def asked(self, figure: Figure, where: Labels) -> float | None:
        """Return a figure by what Prometheus says."""
        if isinstance(figure, Total):
            return self.total(figure.selector(where))
        below = self.total(figure.below.selector(where))
        return self.total(figure.above.selector(where)) / below if below else None

    def stated(self, figure: Figure, where: Labels) -> float | None:
        """Return a figure by what the processes said."""
        points = [point for statement in self.said.values() for point in statement["points"]]
        if isinstance(figure, Total):
            return figure.of(points, where)
        below = figure.below.of(points, where)
        return figure.above.of(points, where) / below if below else None

    def buckets(self, figure: Total, where: Labels) -> list[tuple[float, float]]:
        """Return the buckets of a histogram by what Prometheus says: upper edge, samples up to it."""
        found = self.ask(f"sum by (le) ({figure.selector(where, 'bucket')})")
        return sorted((float(dict(labels)["le"]), samples) for labels, samples in found.items())


def reported(*arguments: str) -> Any:
    """Run ``report`` as a person does, and return the JSON that it prints."""
    done = ran(*arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``report`` as a person does, for JSON, and return how it ended."""
    command = [str(COMMAND), "report", *arguments, "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@contextmanager
def played(stack: Stack, folder: Path, replicas: Mapping[str, Replica]) -> Iterator[Run]:
    """Let replicas (by their instance) serve and end, and wait until Prometheus has evaluated its rules over it all."""
    with ExitStack() as running:

        def start(program: Running) -> Running:
            running.callback(program.stop)
            return program.start()

        prometheus = Prometheus(start(with_rules_as_they_stand(folder)).ports["http"])
        collector = start(writing_before_sampling(stack, folder, prometheus))
        processes = {instance: started(instance, replica, collector) for instance, replica in replicas.items()}
        for process in processes.values():
            running.callback(process.kill)
        for process in processes.values():
            assert process.stdout is not None
            assert process.stdout.readline() == "served\n"
        held = eventually(lambda: all_held(prometheus, sum(replica.held for replica in replicas.values())))
        said = {instance: json.loads(process.communicate(timeout=60)[0]) for instance, process in processes.items()}
        eventually(lambda: all_judged(collector, said))
        # It sends and writes down all that it has before it ends.
        collector.stop()
        evaluated(prometheus)
        yield Run(folder=folder, prometheus=prometheus, said=said, held=held, at=time.time())


def with_rules_as_they_stand(folder: Path) -> Running:
    """Describe a Prometheus with the recording rules and the windows of the field, only evaluated every second."""
    nobody = f"{LOOPBACK}:1"
    program = programs.prometheus(folder, dict.fromkeys(("alertmanager:9093", "collector:8888", "jaeger:8888"), nobody))
    for path in (folder / "rules").iterdir():
        path.unlink()
    rules = (CONFIG / "rules" / "inference.yaml").read_text()
    (folder / "rules" / "inference.yaml").write_text(rules.replace("interval: 30s", "interval: 1s"))
    return replace(program, command=[part for part in program.command if "lookback" not in part])


def writing_before_sampling(stack: Stack, folder: Path, prometheus: Prometheus) -> Running:
    """Describe a Collector on collector.yaml that keeps no ordinary trace, and writes all of them down before that."""
    for kind in KINDS:
        (folder / kind).mkdir()
    own = {"PROMETHEUS_ENDPOINT": f"{prometheus.base}/api/v1/otlp", "TRACES_KEPT_PERCENT": "0", "SINK": str(folder)}
    program = programs.collector(folder, CONFIG / "collector.yaml", env={**stack.endpoints, **SHORT_WAITS, **own})
    return replace(program, command=[*program.command, "--config", str(HERE / "before_sampling.yaml")])


def started(instance: str, replica: Replica, collector: Running) -> subprocess.Popen[str]:
    """Start a replica, as a deployment does: by its environment."""
    identity = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{LOOPBACK}:{collector.ports['grpc']}",
        "OTEL_SERVICE_NAME": replica.service,
        "OTEL_RESOURCE_ATTRIBUTES": f"service.instance.id={instance}",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tests.stack.replica", replica.load, str(replica.seed), str(replica.held)],
        cwd=ROOT,
        env={**os.environ, **SETTINGS, **identity, **replica.settings},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def all_held(prometheus: Prometheus, expected: int) -> dict[str, float]:
    """Return the active requests by stage; NotYet until there are as many as are held open."""
    active = prometheus.by("inference_stage", "sum by (inference_stage) (inference_active_requests)")
    if sum(active.values()) != expected:
        raise NotYet(f"{active} are active, not {expected}")
    return {stage: number for stage, number in active.items() if number}


def all_judged(collector: Running, said: Mapping[str, Statement]) -> None:
    """Raise NotYet until the sampler has judged every trace."""
    seen = scrape(collector.ports["metrics"])
    came = seen.get("otelcol_processor_tail_sampling_new_trace_id_received", 0)
    judged = seen.get("otelcol_processor_tail_sampling_global_count_traces_sampled", 0)
    if came != judged or came < sum(statement["sampled"] for statement in said.values()):
        raise NotYet(f"{judged} of {came} traces are judged")


def evaluated(prometheus: Prometheus) -> None:
    """Wait until the rules have read what is there by now."""
    since = time.time()

    def newer() -> None:
        latest = prometheus.value(f"max(timestamp({LAST_RULE}))")
        if latest <= since:
            raise NotYet(f"{LAST_RULE} is of {latest}, not after {since}")

    eventually(newer)
