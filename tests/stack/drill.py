"""The drill: the real programs, simulated servers, and faults; what each alert should have done, and what it did.

``python -m tests.stack.drill`` prints the table.  Time is compressed as in :mod:`tests.stack.overlay`; the table gives
field time.  Every service has a story of its own, and all stories run at once, under one Collector, Jaeger, Prometheus
and Alertmanager.  An alert of a service that its story does not expect is a false alarm; an alert that stops firing
between two marks of its story is a false resolve.

First comes an hour in which all is well.  ``--short`` makes that 20 minutes, and the mixed spike 25 instead of 66.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.stack import drill_past, programs
from tests.stack.backends import Prometheus, scrape
from tests.stack.drill_watch import Expected, Watch, judge, table
from tests.stack.overlay import SHORTER, scaled
from tests.stack.programs import CONFIG, LOOPBACK, Running
from tests.stack.relay import Relay

ROOT: Final = Path(__file__).parents[2]
HEALTHY, KILLED, ORDERLY, STUCK, TWICE, MIXED, SLOWER, RECOVERS = (
    "healthy", "killed", "orderly", "stuck", "twice", "turns-mixed", "queue-grows", "recovers",
)  # fmt: skip
COLLECTOR, JAEGER = "collector", "jaeger"
LOAD: Final = {HEALTHY: "prefill", ORDERLY: "prefill", MIXED: "prefill", SLOWER: "decode", RECOVERS: "queue"}
QUEUE_BYTES: Final = 2_000_000
"""Half of it is what the spans of the drill come to while Jaeger is away for some six minutes of the field."""
LAG: Final = 90 / SHORTER
"""Seconds that an evaluation may take: the shortest window of the rules."""

EXPECTED: Final = (
    Expected(job=KILLED, alert="InferenceQueueJam", after="faults", until="started again"),
    Expected(job=KILLED, alert="InferenceIdleQueue", after="faults", until="started again"),
    Expected(job=KILLED, alert="InferenceServerVanished", after="server killed", until="started again"),
    Expected(job=STUCK, alert="InferenceQueueJam", after="faults", until="released"),
    Expected(job=STUCK, alert="InferenceIdleQueue", after="faults", until="released"),
    Expected(job=TWICE, alert="InferenceDuplicateInstance", after="faults", until="one of two ended"),
    Expected(job=MIXED, alert="InferenceMixedBottleneckSpike", after="faults", until="recovered"),
    Expected(job=SLOWER, alert="InferenceStageTakeover", after="faults", until="recovered"),
    Expected(job=JAEGER, alert="InferenceTraceBackendDown", after="Jaeger killed", until="Jaeger back"),
    Expected(job=COLLECTOR, alert="InferenceCollectorQueueFills", after="Jaeger killed", until="Jaeger back"),
    Expected(job=COLLECTOR, alert="InferenceCollectorDown", after="Collector killed", until="Collector back"),
)


class DrillServer:
    """A simulated server in a process of its own."""

    def __init__(self, name: str, endpoint: str, instance: str = "") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.stack.drill_server", name, instance, endpoint],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            text=True,
        )

    def tell(self, **what: Any) -> None:
        """Give it its load."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """End it as the kernel does."""
        self._process.kill()
        self.end()

    def end(self) -> None:
        """End it in order, by the end of its input."""
        assert self._process.stdin is not None
        # What it was told last is still to be written when it was killed.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(30)


@dataclass(slots=True, kw_only=True)
class Drill:
    """The programs, the servers, when what was done to them, and what was noticed besides the alerts."""

    programs: dict[str, Running]
    watch: Watch
    running: ExitStack
    short: bool = False
    marks: dict[str, float] = field(default_factory=dict)
    servers: dict[str, DrillServer] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def mark(self, name: str) -> None:
        """Note that this is done now."""
        self.marks[name] = time.monotonic()
        sys.stderr.write(f"{name}\n")

    def server(self, name: str, instance: str = "") -> DrillServer:
        """Start a server; it is killed in the end if it still runs."""
        server = DrillServer(name, f"http://{LOOPBACK}:{self.programs[COLLECTOR].ports['grpc']}", instance)
        self.running.callback(server.kill)
        return server

    def wait(self, firing: bool, *, after: str = "", until: str = "", minutes: float = 20) -> None:
        """Wait for every alert of the story that fires after, or resolves after, that mark."""
        for row in EXPECTED:
            if after in ("", row.after) and until in ("", row.until):
                self.watch.wait(row.key, firing, minutes * 60 / SHORTER)

    def pause(self, minutes: float) -> None:
        """Do nothing for so many minutes of the field."""
        time.sleep(minutes * 60 / SHORTER)

    def rest_of(self, minutes: float, since: str) -> None:
        """Wait until so many minutes of the field have gone by since a mark."""
        time.sleep(max(0.0, self.marks[since] + minutes * 60 / SHORTER - time.monotonic()))


@contextmanager
def started(folder: Path, *, short: bool = False) -> Iterator[Drill]:
    """Start the programs on the files of collector-config/, Prometheus with a day behind it; end all in the end."""
    with ExitStack() as running:

        def start(program: Running) -> Running:
            running.callback(program.stop)
            return program.start()

        # Nobody listens there: what arrives at a person is read from Alertmanager itself.
        alertmanager = start(programs.alertmanager(folder, f"http://{LOOPBACK}:1/"))
        ports = dict(zip(("grpc", "http", "health", "metrics"), programs.free_ports(4), strict=True))
        jaeger = start(programs.jaeger(folder))
        targets = {
            "alertmanager:9093": f"{LOOPBACK}:{alertmanager.ports['http']}",
            "collector:8888": f"{LOOPBACK}:{ports['metrics']}",
            "jaeger:8888": f"{LOOPBACK}:{jaeger.ports['metrics']}",
        }
        drill_past.write(folder / "series", {MIXED: "prefill", SLOWER: "decode"})
        prometheus = start(programs.prometheus(folder, targets))
        way = Relay(jaeger.ports["grpc"])
        running.callback(way.close)
        env = {
            "PROMETHEUS_ENDPOINT": f"http://{LOOPBACK}:{prometheus.ports['http']}/api/v1/otlp",
            "JAEGER_ENDPOINT": f"{LOOPBACK}:{way.port}",
            "BATCH_TIMEOUT": "100ms",
            "TRACE_WAIT_AFTER_ROOT": "1s",
            "TRACES_KEPT_PERCENT": "100",
            "QUEUE_BYTES": str(QUEUE_BYTES),
        }
        retry = "exporters::otlp_grpc/jaeger::retry_on_failure"
        sets = (
            "service::pipelines::traces::exporters=[otlp_grpc/jaeger]",
            # The exporter's defaults, compressed as all durations of the other files are.
            f"{retry}::initial_interval={scaled('5s')}",
            f"{retry}::max_interval={scaled('30s')}",
        )
        collector = start(programs.collector(folder, CONFIG / "collector.yaml", ports=ports, env=env, sets=sets))
        watch = Watch(f"http://{LOOPBACK}:{alertmanager.ports['http']}")
        running.callback(watch.stop)
        yield Drill(
            programs={COLLECTOR: collector, JAEGER: jaeger, "prometheus": prometheus},
            watch=watch,
            running=running,
            short=short,
        )


def run(drill: Drill) -> None:
    """Do it all; about seven minutes, three in short."""
    drill.servers.update({name: drill.server(name) for name in (*LOAD, KILLED, STUCK)})
    drill.servers[TWICE] = drill.server(TWICE, "pod-1")
    for name, server in drill.servers.items():
        server.tell(play=[LOAD.get(name, "prefill")])
    drill.mark("all is well")
    drill.rest_of(20 if drill.short else 60, "all is well")
    second = break_servers(drill)
    kill_server(drill)
    take_jaeger_away(drill)
    drill.mark("one of two ended")
    second.end()
    drill.rest_of(25 if drill.short else 66, "faults")
    mend_servers(drill)
    break_the_way(drill)
    drill.mark("released")
    drill.servers[STUCK].tell(release=True)
    drill.wait(False, until="released")
    drill.pause(2)
    ask_for_the_lag(drill)


def break_servers(drill: Drill) -> DrillServer:
    """Jam two servers, change the load of three, and start a second process under one instance id; return it."""
    drill.mark("faults")
    for name in (KILLED, STUCK):
        drill.servers[name].tell(hold=4)
    for name, script in {MIXED: "mixed", SLOWER: "queue", RECOVERS: "decode"}.items():
        drill.servers[name].tell(play=[script])
    second = drill.server(TWICE, "pod-1")
    second.tell(play=["prefill"])
    for alert in ("InferenceQueueJam", "InferenceIdleQueue"):
        drill.watch.wait((KILLED, alert), True, 20 * 60 / SHORTER)
    return second


def kill_server(drill: Drill) -> None:
    """Kill one server, end another in order, and leave time for every alert of the faults to fire."""
    drill.mark("server killed")
    drill.servers[KILLED].kill()
    drill.servers[ORDERLY].end()
    drill.wait(True, after="server killed")
    drill.wait(True, after="faults")


def take_jaeger_away(drill: Drill) -> None:
    """Kill Jaeger until the queue of its exporter is half full; no span may be lost before that is said."""
    drill.mark("Jaeger killed")
    drill.programs[JAEGER].kill()
    drill.wait(True, after="Jaeger killed")
    counted = scrape(drill.programs[COLLECTOR].ports["metrics"])
    names = ("otelcol_exporter_enqueue_failed_spans", "otelcol_exporter_send_failed_spans")
    lost = sum(counted.get(f"{name}{suffix}", 0) for name in names for suffix in ("", "__spans_", "_total"))
    if lost:
        drill.wrong.append(f"{lost:.0f} spans were lost before the queue was said to fill")
    drill.mark("Jaeger back")
    drill.programs[JAEGER].start()
    drill.wait(False, until="Jaeger back")


def mend_servers(drill: Drill) -> None:
    """Give every server its old load, and start the killed one again."""
    drill.mark("recovered")
    for name in (MIXED, SLOWER):
        drill.servers[name].tell(play=[LOAD[name]])
    drill.mark("started again")
    drill.server(KILLED).tell(play=["prefill"])
    for mark in ("recovered", "started again", "one of two ended"):
        drill.wait(False, until=mark, minutes=35)


def break_the_way(drill: Drill) -> None:
    """Take the Collector away for 160 s of the field, then restart Prometheus."""
    drill.mark("Collector killed")
    drill.programs[COLLECTOR].kill()
    drill.pause(160 / 60)
    drill.programs[COLLECTOR].start()
    drill.mark("Collector back")
    drill.pause(10)
    ask_for_the_lag(drill)
    drill.mark("Prometheus restarted")
    drill.programs["prometheus"].stop()
    drill.programs["prometheus"].start()
    drill.pause(8)


def ask_for_the_lag(drill: Drill) -> None:
    """Note if this machine was too slow for the compressed time: the table then says nothing of the rules."""
    prometheus = Prometheus(drill.programs["prometheus"].ports["http"])
    slowest = max(prometheus.query("max_over_time(prometheus_rule_group_last_duration_seconds[15m])").values())
    sys.stderr.write(f"slowest evaluation: {slowest:.2f} s\n")
    if slowest > LAG:
        drill.wrong.append(f"this machine was too slow: an evaluation took {slowest:.1f} s, the rules need {LAG:.0f}")


def main(arguments: list[str]) -> int:
    """Run the drill and print the table; 1 if anything was not as expected."""
    with (
        tempfile.TemporaryDirectory(prefix="drill-") as folder,
        started(Path(folder), short="--short" in arguments) as drill,
    ):
        run(drill)
        rows, wrong = judge(EXPECTED, drill.watch.seen, drill.marks)
    wrong += drill.wrong
    sys.stdout.write(table(rows) + "\n\n")
    sys.stdout.write("".join(f"wrong: {line}\n" for line in wrong) or "All as expected; no false alarm.\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
