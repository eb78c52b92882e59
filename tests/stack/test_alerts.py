"""Alerts end to end: a load, the rules, Prometheus, Alertmanager, a webhook; and back when the load ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, cycle

from tests.stack.backends import NotYet, eventually
from tests.stack.conftest import Stack
from tests.stack.load import MIXED, PREFILL_BOUND, Script, Server
from tests.stack.programs import RUNBOOKS

RATE = 8
"""Requests a second: 80 in the ten seconds that stand for five minutes, over the floor of 20."""


@contextmanager
def steady(server: Server, *scripts: Script) -> Iterator[None]:
    """Play the scripts in turn, :data:`RATE` a second, for as long as the block lasts."""
    with again_and_again(map(server.play, cycle(scripts))):
        yield


@contextmanager
def again_and_again(playing: Iterator[object]) -> Iterator[None]:
    """Take what plays a request or two from an endless iterator, :data:`RATE` a second, in a thread."""
    stop = threading.Event()

    def play() -> None:
        for _ in playing:
            if stop.wait(1 / RATE):
                return

    thread = threading.Thread(target=play)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def watch(stack: Stack, name: str, job: str, until: str, timeout: float = 60) -> list[str]:
    """Return the states that the alert went through until it came to this one."""
    seen: list[str] = []

    def there() -> None:
        states = stack.prometheus.alerts(name, job)
        state = states[0] if states else "inactive"
        if not seen or seen[-1] != state:
            seen.append(state)
        if state != until:
            raise NotYet(f"{name} is {state} after {seen}, not {until}")

    eventually(there, timeout)
    return seen


def delivered(stack: Stack, name: str, job: str, statuses: list[str]) -> list[dict[str, str]]:
    """Return the annotations of the notifications, once their states, without repetitions, are these."""

    def there() -> list[dict[str, str]]:
        alerts = stack.webhook.alerts(name, job)
        states = [alert["status"] for alert in alerts]
        if [state for at, state in enumerate(states) if at == 0 or states[at - 1] != state] != statuses:
            raise NotYet(f"{name} was delivered as {states}, not {statuses}")
        return [alert["annotations"] for alert in alerts]

    return eventually(there)


def baseline(stack: Stack, job: str) -> None:
    """Wait until there is a past to compare with: what the rules ask of the day before."""
    mixed = f'inference:bottleneck:usual{{job="{job}", inference_bottleneck="mixed"}}'
    eventually(lambda: stack.prometheus.value(mixed))


def test_a_load_that_turns_mixed_fires_and_resolves(stack: Stack) -> None:
    """Pending, firing, delivered with the stages named, and resolved when the old load is back; nothing else fires."""
    name, job = "InferenceMixedBottleneckSpike", "turns-mixed"
    with stack.server(job) as server:
        with steady(server, PREFILL_BOUND):
            baseline(stack, job)
            assert stack.prometheus.alerts(name, job) == []
        with steady(server, MIXED, PREFILL_BOUND):
            assert watch(stack, name, job, "firing") == ["inactive", "pending", "firing"]
            (said, *_) = delivered(stack, name, job, ["firing"])
        with steady(server, PREFILL_BOUND):
            assert watch(stack, name, job, "inactive") == ["firing", "inactive"]
            delivered(stack, name, job, ["firing", "resolved"])
    assert said["summary"].startswith(f"{job} smollm2: ")
    assert "more in prefill" in said["summary"] or "more in queue" in said["summary"]
    assert stack.webhook.names(job) == {name}


def test_a_jammed_queue_fires_while_no_request_has_ended(stack: Stack) -> None:
    """Four wait, none has ever ended, so there is no request series at all; admitted and done, it resolves (C55)."""
    name, job = "InferenceQueueJam", "jams"
    waiting = Script(end="leave", where="queue", queue=0.2)
    with stack.server(job) as server:
        for _ in range(4):
            server.play(waiting)
        assert watch(stack, name, job, "firing")[-1] == "firing"
        (said, *_) = delivered(stack, name, job, ["firing"])
        assert stack.prometheus.query(f'inference_requests_total{{job="{job}"}}') == {}
        for request in server.open:
            request.admit()
            request.input_ready()
            request.first_token()
            request.complete()
        assert watch(stack, name, job, "inactive")[-1] == "inactive"
        delivered(stack, name, job, ["firing", "resolved"])
    assert said["runbook_url"] == f"{RUNBOOKS}#inferencequeuejam"
    assert all("runbooks" not in alert["labels"] for alert in stack.webhook.alerts(name, job))
    assert said["summary"] == (
        f"{job} smollm2: at least 4 requests stayed in queue for 3 minutes and none got past it. Next: who holds the "
        "slots (active requests by stage), the oldest request, the engine's own log."
    )


def test_decodes_that_prefills_stall_fire_and_resolve(stack: Stack) -> None:
    """Half a second of each victim's decode lies beside another request's prefill; without neighbours it resolves."""
    name, job = "InferencePrefillInterference", "stalls"
    with stack.server(job) as server:
        with again_and_again(server.stall(f"{job} {number}", 0.5) for number in count()):
            assert watch(stack, name, job, "firing") == ["inactive", "pending", "firing"]
            (said, *_) = delivered(stack, name, job, ["firing"])
        with steady(server, PREFILL_BOUND):
            assert watch(stack, name, job, "inactive") == ["firing", "inactive"]
            delivered(stack, name, job, ["firing", "resolved"])
    assert "of the decode time is stalled beside other requests' prefills" in said["summary"]
    assert said["runbook_url"] == f"{RUNBOOKS}#inferenceprefillinterference"


def test_a_queue_before_an_idle_engine_fires_and_resolves(stack: Stack) -> None:
    """One waits and nobody runs, nothing has ever ended; once it is admitted the alert resolves."""
    name, job = "InferenceIdleQueue", "idle"
    with stack.server(job) as server:
        request = server.play(Script(end="leave", where="queue"))
        assert watch(stack, name, job, "firing")[-1] == "firing"
        (said, *_) = delivered(stack, name, job, ["firing"])
        request.admit()
        assert watch(stack, name, job, "inactive")[-1] == "inactive"
        delivered(stack, name, job, ["firing", "resolved"])
        request.cancel()
    assert "1 requests wait in queue and nobody runs" in said["summary"]
    assert stack.webhook.names(job) == {name}


def test_the_first_violation_of_a_process_fires(stack: Stack) -> None:
    """One illegal transition, whose counter begins with it, reaches the webhook."""
    job = "violates"
    with stack.server(job) as server:
        server.play(Script())
        server.flush()
        time.sleep(2)
        server.play(Script(illegal=True))
        server.flush()
        (said, *_) = delivered(stack, "InferenceIllegalTransitions", job, ["firing"])
    assert said["summary"].startswith(f"{job} smollm2: 1 x illegal_transition in 5 minutes:")


def test_a_failing_service_fires_though_it_has_no_success_series(stack: Stack) -> None:
    """Everything fails from the first request on: the ratio is 0 and not absent (C85)."""
    name, job = "InferenceSuccessRateLow", "fails"
    with stack.server(job) as server, steady(server, Script(end="fail", where="prefill", reason="out_of_memory")):
        (said, *_) = delivered(stack, name, job, ["firing"])
    assert said["summary"] == (
        f"{job} smollm2: only 0% of the requests that nobody cancelled completed. Most others ended in prefill "
        "(failed, out_of_memory). Next: outcomes by stage and error.type, then the traces with that outcome."
    )
