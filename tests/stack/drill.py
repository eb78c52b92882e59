"""The drill: the real programs, simulated servers, and faults; what each alert should have done, and what it did.

``python -m tests.stack.drill`` prints the table.  Time is compressed as in :mod:`tests.stack.overlay`; the table gives
field time.  Every service has a story of its own, and all stories run at once, under one Collector, Prometheus and
Alertmanager.  An alert of a service that its story does not expect is a false alarm; an alert that stops firing between
two marks of its story is a false resolve.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError

from tests.stack import programs
from tests.stack.backends import Webhook, get
from tests.stack.overlay import SHORTER
from tests.stack.programs import CONFIG, LOOPBACK, Running

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
HEALTHY, KILLED, ORDERLY, STUCK, TWICE, MIXED, SLOWER, RECOVERS = (
    "healthy", "killed", "orderly", "stuck", "twice", "turns-mixed", "queue-grows", "recovers",
)  # fmt: skip
COLLECTOR: Final = "collector"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One alert of one service: the marks after which it fires and resolves.

    ``until``: it must neither resolve before this mark nor stay beyond it.  None: it still fires in the end.
    """

    job: str
    alert: str
    after: str
    until: str | None


EXPECTED: Final = (
    Expected(job=KILLED, alert="InferenceQueueJam", after="faults", until="started again"),
    Expected(job=KILLED, alert="InferenceServerVanished", after="server killed", until="started again"),
    Expected(job=STUCK, alert="InferenceQueueJam", after="faults", until="released"),
    Expected(job=STUCK, alert="InferenceIdleQueue", after="faults", until="released"),
    Expected(job=KILLED, alert="InferenceIdleQueue", after="faults", until="started again"),
    Expected(job=TWICE, alert="InferenceDuplicateInstance", after="faults", until="one of two ended"),
    Expected(job=MIXED, alert="InferenceMixedBottleneckSpike", after="faults", until="recovered"),
    Expected(job=SLOWER, alert="InferenceStageTakeover", after="faults", until="recovered"),
    Expected(job=COLLECTOR, alert="InferenceCollectorDown", after="Collector killed", until="Collector back"),
)


@dataclass(slots=True, kw_only=True)
class Seen:
    """When one alert began and stopped firing, in seconds of this machine."""

    spans: list[list[float | None]] = field(default_factory=list)

    def note(self, firing: bool, at: float) -> None:
        """Take one look at it."""
        now = bool(self.spans) and self.spans[-1][1] is None
        if firing and not now:
            self.spans.append([at, None])
        elif now and not firing:
            self.spans[-1][1] = at


class Watch:
    """Asks Prometheus for its alerts again and again; while it does not answer, nothing is noted."""

    def __init__(self, base: str) -> None:
        self.seen: dict[tuple[str, str], Seen] = {}
        self._base = base
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(0.3):
            try:
                alerts = get(f"{self._base}/api/v1/alerts")["data"]["alerts"]
            except (URLError, OSError):
                continue
            now = time.monotonic()
            firing = {
                (alert["labels"].get("job", ""), alert["labels"]["alertname"])
                for alert in alerts
                if alert["state"] == "firing"
            }
            for key in firing | set(self.seen):
                self.seen.setdefault(key, Seen()).note(key in firing, now)

    def stop(self) -> None:
        """Stop looking."""
        self._stop.set()
        self._thread.join()


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
        self._process.wait()

    def end(self) -> None:
        """End it in order."""
        assert self._process.stdin is not None
        if self._process.poll() is None:
            self._process.stdin.close()
            self._process.wait(30)


@dataclass(slots=True, kw_only=True)
class Drill:
    """The programs, the servers, and when what was done to them."""

    collector: Running
    prometheus: Running
    watch: Watch
    webhook: Webhook
    endpoint: str
    running: ExitStack
    marks: dict[str, float] = field(default_factory=dict)

    def mark(self, name: str) -> None:
        """Note that this is done now."""
        self.marks[name] = time.monotonic()
        sys.stderr.write(f"{name}\n")

    def server(self, name: str, instance: str = "") -> DrillServer:
        """Start a server; it is killed in the end if it still runs."""
        server = DrillServer(name, self.endpoint, instance)
        self.running.callback(server.kill)
        return server

    def wait(self, job: str, alert: str, firing: bool, timeout: float = 45) -> None:
        """Wait until the alert fires, or no longer does; what never comes is told by the table."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            spans = self.watch.seen.get((job, alert), Seen()).spans
            if (bool(spans) and spans[-1][1] is None) is firing:
                return
            time.sleep(0.2)


@contextmanager
def started(folder: Path) -> Iterator[Drill]:
    """Start Collector, Prometheus and Alertmanager on the files of collector-config/, and end all in the end."""
    with ExitStack() as running:
        webhook = Webhook()
        running.callback(webhook.close)

        def start(program: Running) -> Running:
            running.callback(program.stop)
            return program.start()

        alertmanager = start(programs.alertmanager(folder, webhook.url))
        ports = dict(zip(("grpc", "http", "health", "metrics"), programs.free_ports(4), strict=True))
        # Traces are not part of it: a Collector that writes them down stands where Jaeger would.
        sink = HERE / "sink.yaml"
        jaeger = start(programs.collector(folder, sink, name="jaeger", env={"SINK_FILE": str(folder / "spans.json")}))
        targets = {
            "alertmanager:9093": f"{LOOPBACK}:{alertmanager.ports['http']}",
            "collector:8888": f"{LOOPBACK}:{ports['metrics']}",
            "jaeger:8888": f"{LOOPBACK}:{jaeger.ports['metrics']}",
        }
        prometheus = start(programs.prometheus(folder, targets))
        env = {
            "PROMETHEUS_ENDPOINT": f"http://{LOOPBACK}:{prometheus.ports['http']}/api/v1/otlp",
            "JAEGER_ENDPOINT": f"{LOOPBACK}:{jaeger.ports['grpc']}",
            "BATCH_TIMEOUT": "100ms",
        }
        sets = ("service::pipelines::traces::exporters=[otlp_grpc/jaeger]",)
        collector = start(programs.collector(folder, CONFIG / "collector.yaml", ports=ports, env=env, sets=sets))
        watch = Watch(f"http://{LOOPBACK}:{prometheus.ports['http']}")
        running.callback(watch.stop)
        yield Drill(
            collector=collector,
            prometheus=prometheus,
            watch=watch,
            webhook=webhook,
            endpoint=f"http://{LOOPBACK}:{ports['grpc']}",
            running=running,
        )


LOAD: Final = {HEALTHY: "prefill", ORDERLY: "prefill", MIXED: "prefill", SLOWER: "decode", RECOVERS: "queue"}


def run(drill: Drill) -> None:
    """Do it all; about three minutes."""
    servers = {name: drill.server(name) for name in (*LOAD, KILLED, STUCK)}
    servers[TWICE] = drill.server(TWICE, "pod-1")
    for name, server in servers.items():
        server.tell(play=[LOAD.get(name, "prefill")])
    time.sleep(35)
    second = break_servers(drill, servers)
    kill_server(drill, servers)
    drill.mark("one of two ended")
    second.end()
    mend_servers(drill, servers)
    break_the_way(drill)
    drill.mark("released")
    servers[STUCK].tell(release=True)
    drill.wait(STUCK, "InferenceQueueJam", False)
    drill.wait(STUCK, "InferenceIdleQueue", False)
    time.sleep(5)


def break_servers(drill: Drill, servers: dict[str, DrillServer]) -> DrillServer:
    """Jam two servers, change the load of three, and start a second process under one instance id; return it."""
    drill.mark("faults")
    for name in (KILLED, STUCK):
        servers[name].tell(hold=4)
    servers[MIXED].tell(play=["mixed"])
    servers[SLOWER].tell(play=["queue"])
    servers[RECOVERS].tell(play=["decode"])
    second = drill.server(TWICE, "pod-1")
    second.tell(play=["prefill"])
    for name in (KILLED, STUCK):
        for alert in ("InferenceQueueJam", "InferenceIdleQueue"):
            drill.wait(name, alert, True)
    return second


def kill_server(drill: Drill, servers: dict[str, DrillServer]) -> None:
    """Kill one server, end another in order, and leave time for every alert of the faults to fire."""
    drill.mark("server killed")
    servers[KILLED].kill()
    servers[ORDERLY].end()
    drill.wait(KILLED, "InferenceServerVanished", True)
    for row in EXPECTED:
        if row.after == "faults":
            drill.wait(row.job, row.alert, True)
    time.sleep(8)


def mend_servers(drill: Drill, servers: dict[str, DrillServer]) -> None:
    """Give every server its old load, and start the killed one again."""
    drill.mark("recovered")
    for name in (MIXED, SLOWER):
        servers[name].tell(play=[LOAD[name]])
    drill.mark("started again")
    drill.server(KILLED).tell(play=["prefill"])
    for row in EXPECTED:
        if row.until in ("recovered", "started again"):
            drill.wait(row.job, row.alert, False, timeout=70)


def break_the_way(drill: Drill) -> None:
    """Take the Collector away for 160 s of the field, then restart Prometheus."""
    drill.mark("Collector killed")
    drill.collector.kill()
    time.sleep(160 / SHORTER)
    drill.collector.start()
    drill.mark("Collector back")
    time.sleep(20)
    drill.mark("Prometheus restarted")
    drill.prometheus.stop()
    drill.prometheus.start()
    time.sleep(15)


def field_time(seconds: float) -> str:
    """Return a duration of this machine as that of the field, in minutes and seconds."""
    whole = round(seconds * SHORTER)
    return f"{whole // 60} min {whole % 60:02d} s"


def judge(drill: Drill) -> tuple[list[Sequence[str]], list[str]]:
    """Return the rows of the table and what was wrong."""
    rows: list[Sequence[str]] = []
    wrong = []
    for row in EXPECTED:
        spans = drill.watch.seen.get((row.job, row.alert), Seen()).spans
        fired = spans[0][0] if spans else None
        after, until = drill.marks[row.after], drill.marks[row.until] if row.until else None
        early = [end for _, end in spans if end is not None and (until is None or end < until)]
        last = spans[-1][1] if spans else None
        rows.append(
            (
                row.job,
                row.alert,
                f"after “{row.after}”, until “{row.until}”",
                field_time(fired - after) if fired else "never",
                field_time(last - until) if last and until else "never",
                str(len(early)),
            )
        )
        if fired is None or fired < after:
            wrong.append(f"{row.job} {row.alert} did not fire after {row.after}")
        if early:
            wrong.append(f"{row.job} {row.alert} resolved {len(early)} times too early")
        if until and last is None:
            wrong.append(f"{row.job} {row.alert} did not resolve after {row.until}")
    known = {(row.job, row.alert) for row in EXPECTED}
    wrong += [f"{job} {alert}: false alarm" for job, alert in sorted(drill.watch.seen) if (job, alert) not in known]
    return rows, wrong


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return the table in Markdown."""
    head = ("service", "alert", "expected", "fired after", "resolved after", "false resolves")
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def main() -> int:
    """Run the drill and print the table; 1 if anything was not as expected."""
    with tempfile.TemporaryDirectory(prefix="drill-") as folder, started(Path(folder)) as drill:
        run(drill)
        rows, wrong = judge(drill)
    sys.stdout.write(table(rows) + "\n\n")
    sys.stdout.write("".join(f"wrong: {line}\n" for line in wrong) or "All as expected; no false alarm.\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
