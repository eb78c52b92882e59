"""Which traces are kept, and that the metrics do not depend on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from opentelemetry import trace

import otel_lifecycle as lifecycle
from otel_lifecycle import semconv
from tests.stack import programs
from tests.stack.backends import NotYet, eventually, scrape
from tests.stack.conftest import SHORT_WAITS, Stack
from tests.stack.load import MIXED, PREFILL_BOUND, Script
from tests.stack.programs import CONFIG, LOOPBACK, Running

OBJECTIVES = lifecycle.Slo(ttft=0.5, tpot=0.05)
KEPT = {
    "violation": (Script(illegal=True), 6),
    "failed": (Script(end="fail", where="prefill", reason="engine_error"), 7),
    "timed_out": (Script(end="timeout", where="decode"), 5),
    "slow": (Script(prefill=0.9), 4),
    "mixed": (MIXED, 8),
}
REST = 60
Start = Callable[..., Running]


@pytest.fixture
def start(stack: Stack) -> Iterator[Start]:
    """Start a Collector of this test's own on collector.yaml."""
    with ExitStack() as running:

        def start(name: str, env: dict[str, str], sets: tuple[str, ...] = ()) -> Running:
            program = programs.collector(
                stack.folder,
                CONFIG / "collector.yaml",
                name=name,
                env={**stack.endpoints, **SHORT_WAITS, **env},
                sets=sets,
            )
            running.callback(program.stop)
            return program.start()

        yield start


def play(stack: Stack, job: str, collector: Running) -> dict[str, set[str]]:
    """Play the same load and return the trace ids of every kind."""
    endpoint = f"http://{LOOPBACK}:{collector.ports['grpc']}"
    arrived = time.time_ns() - 10**10
    with stack.server(job, endpoint=endpoint, slo=OBJECTIVES) as server:
        for kind, (script, count) in {**KEPT, "rest": (PREFILL_BOUND, REST)}.items():
            for number in range(count):
                # An engine of its own: as all arrive at once, each would have held the others by its prefill.
                name = f"{kind}/{number}"
                server.play(script, request_id=name, arrived_ns=arrived, engine=f"{job}/{name}")
    ids: dict[str, set[str]] = {}
    for span in server.request_spans():
        assert span.context is not None
        kind = str((span.attributes or {})[semconv.REQUEST_ID]).split("/")[0]
        ids.setdefault(kind, set()).add(f"{span.context.trace_id:032x}")
    return ids


def settled(stack: Stack, collector: Running, traces: int) -> None:
    """Wait until the sampler has judged that many traces and what it kept has gone out."""

    def judged() -> None:
        seen = scrape(collector.ports["metrics"])
        if seen.get("otelcol_processor_tail_sampling_global_count_traces_sampled", 0) != traces:
            raise NotYet(f"not all of {traces} traces are judged: {seen}")

    eventually(judged)
    time.sleep(1.5)


def test_every_violation_failure_and_missed_objective_is_kept(stack: Stack, start: Start) -> None:
    """With no share of the rest, exactly those traces are in Jaeger: all of them and no other."""
    collector = start("none-of-the-rest", {"TRACES_KEPT_PERCENT": "0"})
    ids = play(stack, "kept", collector)
    settled(stack, collector, sum(map(len, ids.values())))
    expected = set().union(*(ids[kind] for kind in KEPT))
    assert len(expected) == sum(count for _, count in KEPT.values())
    assert stack.jaeger.search("kept") == expected


def test_of_the_rest_a_share_is_kept(stack: Stack, start: Start) -> None:
    """At 25 % some of sixty ordinary traces are kept and most are not; the others are all there."""
    collector = start("a-share", {"TRACES_KEPT_PERCENT": "25"})
    ids = play(stack, "share", collector)
    settled(stack, collector, sum(map(len, ids.values())))
    kept = stack.jaeger.search("share")
    assert kept - ids["rest"] == set().union(*(ids[kind] for kind in KEPT))
    assert 3 <= len(kept & ids["rest"]) <= 30


def test_the_metrics_are_the_same_with_sampling_and_without(stack: Stack, start: Start) -> None:
    """Two services, one load: every counter and every sum is equal, though one kept a third of the traces."""
    sampled = start("sampled", {"TRACES_KEPT_PERCENT": "0"})
    whole = start("whole", {}, sets=("service::pipelines::traces::processors=[memory_limiter,batch]",))
    for job, collector in (("with-sampling", sampled), ("without-sampling", whole)):
        play(stack, job, collector)

    def series(job: str) -> dict[frozenset[tuple[str, str]], float]:
        # Summed over the outcomes of time: how many are active and how old is a matter of when one looks.
        query = f'{{job="{job}", __name__=~"(inference|gen_ai)_.*_(total|count|sum|bucket)"}}'
        return {
            frozenset((name, value) for name, value in labels if name not in {"job", "instance"}): total
            for labels, total in stack.prometheus.query(query).items()
        }

    def equal() -> int:
        one, other = series("with-sampling"), series("without-sampling")
        if not one or one.keys() != other.keys():
            raise NotYet(f"{len(one)} and {len(other)} series")
        assert one == {labels: pytest.approx(total) for labels, total in other.items()}
        return len(one)

    assert eventually(equal) > 100


def test_who_stalled_a_request_is_kept_with_it(stack: Stack, start: Start) -> None:
    """Victim and culprit of a stall that is long enough; neither of a short one, and no prefill that held nobody."""
    collector = start("culprits", {"TRACES_KEPT_PERCENT": "0"})
    endpoint = f"http://{LOOPBACK}:{collector.ports['grpc']}"
    with stack.server("culprits", endpoint=endpoint) as server:
        kept = server.stall("long", 2.0)
        dropped = server.stall("short", 0.4) | server.stall("alone", 2.0, victim=False)
    assert (len(kept), len(dropped)) == (2, 3)
    settled(stack, collector, 5)
    assert stack.jaeger.search("culprits") == kept


@pytest.mark.parametrize(("wait", "kept"), [("8s", True), ("2s", False)])
def test_the_wait_must_be_longer_than_the_request(stack: Stack, start: Start, wait: str, kept: bool) -> None:
    """A span from within the queue comes 4 s before the failed request's own: kept if the wait was longer (C68)."""
    job = f"waits-{wait}"
    collector = start(job, {"TRACES_KEPT_PERCENT": "0", "TRACE_WAIT": wait})
    endpoint = f"http://{LOOPBACK}:{collector.ports['grpc']}"
    with stack.server(job, endpoint=endpoint) as server:
        request = server.play(Script(end="leave", where="queue"))
        tracer = server.tracer_provider.get_tracer("engine")
        with request.stage("queue"), tracer.start_as_current_span("ask the scheduler"):
            pass
        server.flush()
        time.sleep(4)
        request.fail("engine_error")
        server.flush()
    (span,) = server.request_spans()
    assert span.context is not None

    def names() -> set[str]:
        return {found["name"] for found in stack.jaeger.spans(f"{span.context.trace_id:032x}")}

    time.sleep(float(wait[:-1]) + 2)
    assert ("ask the scheduler" in names()) is kept


LATE = "otelcol_processor_tail_sampling_early_releases_from_cache_decision"
CALLERS_TRACE = {"TRACE_WAIT": "12s", "TRACES_KEPT_PERCENT": "0"}


def fails_under(stack: Stack, job: str, collector: Running, *, before: int = 0) -> str:
    """Let a caller's root end, requests of its trace end well, and one fail 4 s later; return the trace's id."""
    endpoint = f"http://{LOOPBACK}:{collector.ports['grpc']}"
    with stack.server(f"{job}-caller", endpoint=endpoint) as caller, stack.server(job, endpoint=endpoint) as server:
        root = caller.tracer_provider.get_tracer("caller").start_span("submit")
        if not before:
            root.end()
            caller.flush()
        with trace.use_span(trace.NonRecordingSpan(root.get_span_context())):
            for _ in range(before):
                server.play(PREFILL_BOUND)
            server.flush()
            request = server.play(Script(end="leave", where="queue"))
        time.sleep(4)
        request.fail("engine_error")
        server.flush()
        root.end()
    return f"{root.get_span_context().trace_id:032x}"


def released(collector: Running) -> float:
    """Return how many spans came for a trace that had been let go; what InferenceSpansAfterTheDecision reads."""
    return scrape(collector.ports["metrics"]).get(LATE, 0.0)


@pytest.mark.parametrize(("after_root", "kept"), [("1s", False), ("12s", True)])
def test_a_request_may_outlive_its_callers_root_by_the_wait_after_it(
    stack: Stack, start: Start, after_root: str, kept: bool
) -> None:
    """A submit ends at once, its request fails 4 s later: kept where TRACE_WAIT_AFTER_ROOT is longer, else counted."""
    job = f"outlives-{after_root}"
    collector = start(job, {**CALLERS_TRACE, "TRACE_WAIT_AFTER_ROOT": after_root})
    trace_id = fails_under(stack, job, collector)
    if kept:
        assert {"chat smollm2", "queue", "submit"} <= {span["name"] for span in stack.jaeger.trace(trace_id, spans=3)}
    else:
        eventually(lambda: _positive(released(collector)))
        time.sleep(1)
        assert stack.jaeger.spans(trace_id) == []
    assert (released(collector) == 0) is kept


@pytest.mark.parametrize(("wait", "kept"), [("2s", False), ("12s", True)])
def test_a_trace_longer_than_the_wait_is_judged_by_its_first_requests(
    stack: Stack, start: Start, wait: str, kept: bool
) -> None:
    """A session whose second request fails after 4 s: kept where TRACE_WAIT is longer, else counted as let go."""
    job = f"session-{wait}"
    collector = start(job, {**CALLERS_TRACE, "TRACE_WAIT": wait})
    trace_id = fails_under(stack, job, collector, before=1)
    if kept:
        assert len(stack.jaeger.trace(trace_id, spans=8)) == 8
    else:
        eventually(lambda: _positive(released(collector)))
        time.sleep(1)
        assert stack.jaeger.spans(trace_id) == []
    assert (released(collector) == 0) is kept


def _positive(value: float) -> None:
    if not value > 0:
        raise NotYet("no span was released by a decision made before")
