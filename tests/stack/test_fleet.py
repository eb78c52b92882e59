"""agent.yaml and two of gateway.yaml: a trace meets whole in one gateway, and the other takes over when one dies."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.stack import programs
from tests.stack.backends import NotYet, eventually, scrape
from tests.stack.conftest import SHORT_WAITS, Stack
from tests.stack.load import Script, Server
from tests.stack.programs import CONFIG, LOOPBACK, Running

NAME = "gateway.test"
HOSTS = ("127.0.0.2", "127.0.0.3")
OTHERS = ("http", "health", "metrics")
FAILS = Script(end="fail", where="prefill", reason="engine_error")
# A service name with one address for each gateway, as a headless service has. The agent sees it in a file of its own.
PRIVATE_HOSTS = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]


def private_hosts(command: Sequence[str] = PRIVATE_HOSTS) -> Sequence[str]:
    """Return the command that gives a program a file of hosts of its own; StackError if this system forbids it."""
    done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise programs.StackError(
            f"`{' '.join(command)}` is not permitted here ({done.stderr.strip()}), and the agent needs it for a name "
            "with two addresses. Be root, or allow it: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
        )
    return command


@dataclass(slots=True, kw_only=True)
class Fleet:
    """An agent, its two gateways, and the file that says where they are."""

    agent: Running
    gateways: dict[str, Running]
    hosts: Path

    def traces(self) -> dict[str, float]:
        """Return how many traces each gateway has seen a span of."""
        name = "otelcol_processor_tail_sampling_new_trace_id_received"
        return {host: scrape(gateway.ports["metrics"], host).get(name, 0.0) for host, gateway in self.gateways.items()}


def resolve(hosts: Path, *addresses: str) -> None:
    """Let the service name have these addresses from now on, for whoever sees that file."""
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {NAME}\n" for address in addresses))


@pytest.fixture(scope="module")
def fleet(stack: Stack) -> Iterator[Fleet]:
    """Start both gateways and the agent; nothing of the rest is kept, so what is stored was judged whole."""
    folder = stack.folder / "fleet"
    folder.mkdir()
    hosts = folder / "hosts"
    (port,) = programs.free_ports(1, "0.0.0.0")
    with ExitStack() as running:

        def start(program: Running) -> Running:
            running.callback(program.stop)
            return program.start()

        gateways = {
            host: start(
                programs.collector(
                    folder,
                    CONFIG / "gateway.yaml",
                    name=f"gateway-{host}",
                    host=host,
                    ports={"grpc": port, **dict(zip(OTHERS, programs.free_ports(3, host), strict=True))},
                    env={**stack.endpoints, **SHORT_WAITS, "TRACES_KEPT_PERCENT": "0"},
                )
            )
            for host in HOSTS
        }
        resolve(hosts, *HOSTS)
        agent = start(
            programs.collector(
                folder,
                CONFIG / "agent.yaml",
                name="agent",
                env={**stack.endpoints, "GATEWAY_HOST": NAME, "GATEWAY_PORT": str(port), "BATCH_TIMEOUT": "100ms"},
                before=[*private_hosts(), "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh"],
            )
        )
        yield Fleet(agent=agent, gateways=gateways, hosts=hosts)


def test_a_system_that_forbids_a_namespace_is_named() -> None:
    """What was refused, what the system said, and what to do."""
    refused = ["sh", "-c", "echo 'unshare: write failed /proc/self/uid_map: Operation not permitted' >&2; exit 1"]
    said = r"is not permitted here \(unshare: write failed .*not permitted\).*apparmor_restrict_unprivileged_userns=0"
    with pytest.raises(programs.StackError, match=said):
        private_hosts(refused)


def in_two_parts(server: Server, traces: int) -> None:
    """Send a span from within each request first, and what fails or completes it, in a batch of its own, later."""
    tracer = server.tracer_provider.get_tracer("engine")
    opened = [server.play(Script(end="leave", where="queue")) for _ in range(traces)]
    for request in opened:
        with request.stage("queue"), tracer.start_as_current_span("ask the scheduler"):
            pass
    server.flush()
    for number, request in enumerate(opened):
        if number % 4:
            request.cancel()
        else:
            request.fail("engine_error")
    server.flush()


def test_the_spans_of_a_trace_meet_in_one_gateway(stack: Stack, fleet: Fleet) -> None:
    """Forty traces in two parts each: forty are seen in all, both gateways see some, and the failed ones are whole."""
    with stack.server("fleet", endpoint=f"http://{LOOPBACK}:{fleet.agent.ports['grpc']}") as server:
        in_two_parts(server, 40)

    def judged() -> None:
        kept = stack.jaeger.sizes("fleet")
        # Of a request that failed in preprocessing: its own span, queue, preprocessing, and the one from within.
        if sorted(kept.values()) != [4] * 10:
            raise NotYet(f"{len(kept)} traces with {sorted(kept.values())} spans")

    eventually(judged)
    seen = fleet.traces()
    assert (sum(seen.values()), min(seen.values()) > 5) == (40, True), seen


def test_when_a_gateway_dies_the_other_takes_over(stack: Stack, fleet: Fleet) -> None:
    """Traces sent while it is dead and still has its name are routed anew once the name has changed: none is lost."""
    dead, alive = HOSTS
    before = fleet.traces()[alive]
    with stack.server("fleet-after", endpoint=f"http://{LOOPBACK}:{fleet.agent.ports['grpc']}") as server:
        fleet.gateways[dead].kill()
        for _ in range(20):
            server.play(FAILS)
        server.flush()
        resolve(fleet.hosts, alive)
        for _ in range(20):
            server.play(FAILS)

    def all_there() -> None:
        if len(found := stack.jaeger.search("fleet-after")) != 40:
            raise NotYet(f"{len(found)} of 40 traces arrived")

    eventually(all_there, timeout=60)
    seen = scrape(fleet.gateways[alive].ports["metrics"], alive)
    assert seen["otelcol_processor_tail_sampling_new_trace_id_received"] - before == 40
    assert scrape(fleet.agent.ports["metrics"]).get("otelcol_exporter_send_failed_spans", 0) == 0
