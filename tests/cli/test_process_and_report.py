"""What the report says of a run is what the process said of it, in its metrics and on its spans."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_lifecycle import Slo, request, startup
from otel_lifecycle.processor import LifecycleSpanProcessor
from tests.cli.live import ARRIVED, Server, proto_of, serve, server
from tests.cli.running import Ran

OUTCOME = "inference.outcome"


@pytest.fixture(scope="module")
def run() -> Iterator[Server]:
    """A process that served every kind of request."""
    with server(token_times=True, slo=Slo(ttft=0.9)) as process:
        for number in range(20):
            prefill = 0.1 + 0.05 * number
            tokens = [0.3 + prefill + 0.02 * step for step in range(1, 20)]
            times = (0.2, 0.3, 0.3 + prefill)
            serve(process, times, tokens, ("complete", tokens[-1] + 0.01), start=number, input_tokens=100 * number)
        serve(process, (0.1, 0.2), (), ("cancel", 0.5), start=21)
        serve(process, (), (), ("timeout", 2.0), start=22)
        serve(process, (0.1, 0.2, 0.4), (0.5,), ("fail", 0.6), start=23)
        serve(process, (0.1, 0.2), (), None, start=24)
        serve(process, (0.1, None, 0.4), (), ("cancel", 0.6), start=25)
        serve(process, (1.0, 2.0, 40.0), (41.0,), ("complete", 42.0), start=26, traffic="warmup")
        yield process


@pytest.fixture(scope="module")
def reported() -> dict[str, Any]:
    """The report of that process, once one test has made it."""
    return {}


@pytest.fixture
def report(run: Server, cli: Callable[..., Ran], tmp_path: Path, reported: dict[str, Any]) -> Any:
    """What the command says of it, from spans and metrics in one file."""
    if not reported:
        (tmp_path / "run.json").write_bytes(run.json_line() + run.metrics_line())
        reported.update(cli("report", "run.json", "--json").json)
    return reported


def live(run: Server, name: str) -> dict[tuple[tuple[str, Any], ...], Any]:
    """Return the points of a metric that are about live traffic."""
    return {key: value for key, value in run.values(name).items() if "inference.traffic" not in dict(key)}


def by(run: Server, metric: str, attribute: str) -> dict[str, int]:
    """Return a counter summed by one of its attributes."""
    counts: Counter[str] = Counter()
    for key, value in live(run, metric).items():
        if attribute in dict(key):
            counts[dict(key)[attribute]] += value
    return dict(counts)


def histogram(run: Server, metric: str, **chosen: str) -> tuple[int, float]:
    """Return count and sum of a histogram over the series that bear some attributes."""
    found = [
        value
        for key, value in live(run, metric).items()
        if all(dict(key).get(name.replace("_", ".")) == wanted for name, wanted in chosen.items())
    ]
    return sum(count for count, _ in found), sum(total for _, total in found)


def test_outcomes_are_those_of_the_counter(run: Server, report: Any) -> None:
    """Every outcome, with the same number."""
    told = {name: count for name, count in report["requests"].items() if name not in {"total", "terminated"} and count}
    assert told == by(run, "inference.requests", OUTCOME)
    assert told == {"completed": 20, "cancelled": 2, "timed_out": 1, "failed": 1, "incomplete": 1}


def test_bottlenecks_and_failure_stages_are_those_of_the_counter(run: Server, report: Any) -> None:
    """And so is the place of every abnormal end."""
    assert report["stages"]["bottlenecks"] == by(run, "inference.requests", "inference.bottleneck")
    stages: Counter[str] = Counter()
    for kind in report["abnormal"]["kinds"]:
        if kind["stage"] != "-":
            stages[kind["stage"]] += kind["count"]
    assert dict(stages) == by(run, "inference.requests", "inference.failure.stage")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("ttft", "inference.time_to_first_token"),
        ("tpot", "inference.time_per_output_token"),
        ("e2e", "inference.request.duration"),
        ("itl", "inference.inter_token_latency"),
    ],
)
def test_latencies_are_those_of_the_histogram(run: Server, report: Any, name: str, metric: str) -> None:
    """The same number of samples, and the same sum."""
    count, total = histogram(run, metric)
    told = report["latency"][name]
    if name == "e2e":
        # The histogram has the incomplete request, too, as far as its end is known.
        assert told["count"] <= count
        count, total = told["count"], told["mean"] * told["count"]
    assert told["count"] == count > 0
    assert told["mean"] * told["count"] == pytest.approx(total)


@pytest.mark.long
@pytest.mark.parametrize(
    ("marks", "gaps"),
    [
        (((0.51, 1, 0), (0.54, 3, 0), (0.6, 1, 0), (0.65, 1, 0), (0.71, 2, 0)), 2),
        (((0.51, 1, 0), (0.54, None, 0), (0.6, 1, 0)), 0),
        (((0.51, 1, 1), (0.53, 1, 0), (0.58, 1, 1)), 0),
    ],
    ids=["chunks", "a chunk of unknown size", "choices"],
)
def test_only_gaps_between_single_tokens_of_one_choice_are_samples(
    cli: Callable[..., Ran], tmp_path: Path, marks: tuple[tuple[float, int | None, int], ...], gaps: int
) -> None:
    """As in the histogram; of several choices the offsets do not tell which gap is whose, so there is none."""
    with server(token_times=True) as process:
        handle = request(tracer_provider=process.provider, arrived_at_ns=ARRIVED, model="smollm2")
        for mark, seconds in ((handle.admit, 0.1), (handle.input_ready, 0.2), (handle.first_token, 0.5)):
            mark(at_ns=ARRIVED + round(seconds * 1e9))
        for seconds, size, choice in marks:
            handle.token(size, choice, at_ns=ARRIVED + round(seconds * 1e9))
        handle.complete(at_ns=ARRIVED + 10**9)
        (tmp_path / "run.json").write_bytes(process.json_line())
    document = cli("report", "run.json", "--json").json
    assert document["latency"]["itl"]["count"] == gaps
    tokens = cli("view", document["slowest"][0]["trace_id"], "run.json", "--json").json["tokens"]
    assert len(tokens) == 1 + sum(1 if size is None else size for _, size, _ in marks)


def test_tokens_and_violations_are_those_of_the_counters(run: Server, report: Any) -> None:
    """Tokens out, and illegal transitions by kind."""
    tokens = by(run, "inference.tokens", "inference.token.direction")
    assert report["output"]["output_tokens"] == tokens["output"]
    assert report["output"]["breaches"] == by(run, "inference.transition.violations", "inference.violation.kind")


def test_goodput_is_that_of_the_process(run: Server, report: Any) -> None:
    """Met over judged, of the SLO the server had."""
    results = {
        dict(key)["inference.slo.met"]: value
        for key, value in live(run, "inference.slo.results").items()
        if dict(key)["inference.slo.objective"] == "all"
    }
    assert report["output"]["slo_judged"] == sum(results.values())
    assert report["output"]["goodput"] == results[True] / sum(results.values())


def test_warm_up_stands_apart(report: Any) -> None:
    """It reaches the report, and no figure of the live traffic."""
    assert [(part["name"], part["total"], part["ttft"]["max"]) for part in report["apart"]] == [("warmup", 1, 40.0)]


def test_the_cold_start_stands_apart(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """With its hardware and launch parameters; code 2 says that no request was there to judge."""
    with server() as process:
        with startup("load_model", hardware="8 cores", parameters={"slots": 2}, tracer_provider=process.provider):
            pass
        (tmp_path / "run.json").write_bytes(process.json_line())
    ran = cli("report", "run.json", "--json")
    assert ran.code == 2
    told = json.loads(ran.out)
    assert [(phase["phase"], phase["count"]) for phase in told["startup"]["phases"]] == [("load_model", 1)]
    assert told["startup"]["launch"] == {"inference.hardware": "8 cores", "slots": "2"}
    assert told["requests"]["total"] == 0


def test_what_the_server_said_at_its_start_is_a_condition(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Its hardware and data type hold for every request that does not state its own."""
    with server() as process:
        with startup("load_model", hardware="8 cores", dtype="q4", tracer_provider=process.provider):
            pass
        serve(process, (0.1, 0.2, 0.4), (), ("complete", 0.6), dtype="q8")
        (tmp_path / "run.json").write_bytes(process.json_line())
    stated = cli("report", "run.json", "--json").json["conditions"]["stated"]
    assert (stated["hardware"], stated["dtype"]) == ({"8 cores": 1}, {"q8": 1})


FOREIGN: dict[str, tuple[list[tuple[str, float, dict[str, Any]]], dict[str, Any]]] = {
    "completed": (
        [
            ("arrive", 0, {}),
            ("admit", 2, {}),
            ("input_ready", 3, {}),
            ("first_token", 7, {}),
            ("token", 9, {}),
            ("token", 11, {"count": 3}),
            ("complete", 12, {}),
        ],
        {"gen_ai.request.model": "m", "gen_ai.usage.input_tokens": 5},
    ),
    "cancelled": ([("arrive", 0, {}), ("admit", 2, {}), ("cancel", 5, {})], {"inference.end.reason": "queue_full"}),
    "illegal": ([("arrive", 0, {}), ("first_token", 1, {}), ("complete", 2, {}), ("fail", 3, {})], {}),
    "endless": ([("arrive", 0, {}), ("admit", 1, {})], {}),
    "after_the_end": (
        [
            ("arrive", 0, {}),
            ("admit", 1, {}),
            ("input_ready", 1, {}),
            ("first_token", 2, {}),
            ("cancel", 3, {}),
            ("token", 4, {}),
            ("token", 5, {}),
        ],
        {},
    ),
    "backwards": (
        [("arrive", 9, {}), ("admit", 10, {}), ("input_ready", 9.5, {}), ("first_token", 11, {}), ("complete", 12, {})],
        {},
    ),
    "pooling": (
        [("arrive", 0, {}), ("admit", 1, {}), ("input_ready", 2, {}), ("complete", 3, {})],
        {"inference.shape": "pooling"},
    ),
}
"""Spans made with the plain OpenTelemetry API: events with seconds and attributes, and attributes of the span."""


def foreign_spans(provider: TracerProvider) -> None:
    """Make the foreign spans."""
    tracer = provider.get_tracer("somebody.else")
    for name, (events, attributes) in FOREIGN.items():
        span = tracer.start_span(name, start_time=ARRIVED, attributes=attributes)
        for event, seconds, given in events:
            span.add_event(event, given, timestamp=ARRIVED + round(seconds * 1e9))
        span.end(ARRIVED + 20 * 10**9)


def exported(assessed: bool) -> bytes:
    """Return the foreign spans as they are exported, by way of the lifecycle processor or past it."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    plain = SimpleSpanProcessor(exporter)
    provider.add_span_processor(LifecycleSpanProcessor(plain) if assessed else plain)
    foreign_spans(provider)
    provider.shutdown()
    return proto_of(exporter.get_finished_spans())


def test_foreign_spans_are_judged_as_the_processor_judges_them(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """The same report, whether the processor saw them or only their events are there."""
    told = []
    for assessed in (True, False):
        (tmp_path / "run.pb").write_bytes(exported(assessed))
        found = cli("report", "run.pb", "--json").json
        # Single gaps, and where exactly a token came too late, are in the events only.
        for part in (found["latency"], found["output"]):
            part.pop("itl", None)
            part.pop("wasted_tokens", None)
        # What else ran on the engine is known to the processor alone: it is measured while requests are open.
        found.pop("interference")
        found.pop("diagnosis")
        for row in found["abnormal"]["requests"] + found["slowest"]:
            row.pop("trace_id")
            row.pop("span_id")
        told.append(found)
    assert told[0] == told[1]
    assert told[0]["requests"]["total"] == len(FOREIGN)


def test_tokens_after_the_end_are_waste(cli: Callable[..., Ran], tmp_path: Path) -> None:
    """Of a foreign span the events themselves show it."""
    (tmp_path / "run.pb").write_bytes(exported(assessed=False))
    assert cli("report", "run.pb", "--json").json["output"]["wasted_tokens"] == 2
