"""A request on its way through the Collector: what Jaeger gives back is what the process computed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import format_span_id, format_trace_id

import otel_lifecycle as lifecycle
from otel_lifecycle import semconv
from tests.stack.backends import NotYet, eventually
from tests.stack.conftest import Stack
from tests.stack.load import MIXED, Script, Server
from tests.stack.programs import CONFIG

README = CONFIG / "README.md"
NS = 1e9
KINDS = {
    "completed": Script(),
    "mixed": Script(queue=0.1, preprocessing=0.1, prefill=0.1),
    "preempted": Script(preempted=0.5),
    "cancelled": Script(end="cancel", where="decode", reason="client_disconnected"),
    "timed out": Script(end="timeout", where="prefill", reason="deadline"),
    "failed": Script(end="fail", where="preprocessing", reason="out_of_memory"),
    "illegal": Script(illegal=True),
}
STATUS = {0: 0, "STATUS_CODE_UNSET": 0, "STATUS_CODE_ERROR": 2, 2: 2}


def as_sent(span: ReadableSpan, resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the SDK handed to its exporters, in the form of ``Jaeger.spans``."""
    assert span.context is not None
    return {
        "name": span.name,
        "trace_id": format_trace_id(span.context.trace_id),
        "span_id": format_span_id(span.context.span_id),
        "parent": format_span_id(span.parent.span_id) if span.parent else "",
        "start": span.start_time,
        "end": span.end_time,
        "attributes": dict(span.attributes or {}),
        "events": sorted(
            ((event.name, event.timestamp, dict(event.attributes or {})) for event in span.events),
            key=lambda event: (event[1], event[0]),
        ),
        "status": 2 if span.status.status_code.name == "ERROR" else 0,
        "resource": dict(resource),
    }


@pytest.fixture(scope="module")
def played(stack: Stack) -> Any:
    """One request of every kind: name -> (report, its spans as the process ended them)."""
    with stack.server("traces", slo=lifecycle.Slo(ttft=0.5, tpot=0.05, e2e=30)) as server:
        for name, script in KINDS.items():
            server.play(script, request_id=name)
    reports = dict(zip(KINDS, server.reports, strict=True))
    return {name: (reports[name], _trace(server, name)) for name in KINDS}


def _trace(server: Server, request_id: str) -> list[dict[str, Any]]:
    spans = server.kept.get_finished_spans()
    (root,) = (span for span in spans if (span.attributes or {}).get(semconv.REQUEST_ID) == request_id)
    assert root.context is not None
    own = [span for span in spans if span.context and span.context.trace_id == root.context.trace_id]
    sent = [as_sent(span, server.tracer_provider.resource.attributes) for span in own]
    return sorted(sent, key=lambda span: (span["start"], span["name"]))


@pytest.mark.parametrize("kind", KINDS)
def test_jaeger_gives_back_the_trace_as_the_process_ended_it(stack: Stack, played: Any, kind: str) -> None:
    """Request span, stage spans, events and attribution are equal to the nanosecond, through Collector and storage."""
    _, sent = played[kind]
    found = stack.jaeger.trace(sent[0]["trace_id"], spans=len(sent))
    assert [{**span, "status": STATUS[span["status"]]} for span in found] == sent


@pytest.mark.parametrize("kind", KINDS)
def test_the_attribution_in_jaeger_is_what_the_pure_functions_compute(stack: Stack, played: Any, kind: str) -> None:
    """Durations, outcome, bottleneck and share on the stored span come out of the four functions, too."""
    report, sent = played[kind]
    metrics = lifecycle.compute_request_metrics(report)
    verdict = lifecycle.classify_request_outcome(report, metrics)
    found = stack.jaeger.trace(sent[0]["trace_id"], spans=len(sent))
    (root,) = (span["attributes"] for span in found if semconv.OUTCOME in span["attributes"])
    durations = {
        f"inference.{name}": pytest.approx(value / NS)
        for name, value in metrics.items()
        if value is not None and name != "streamed_tokens"
    }
    expected = {
        **durations,
        semconv.OUTCOME: report["status"],
        semconv.BOTTLENECK: verdict["stage"] if report["status"] == "completed" else None,
        semconv.DOMINANT_SHARE: verdict["dominant_share"] and pytest.approx(verdict["dominant_share"]),
        semconv.FAILURE_STAGE: semconv.WIRE_STAGE.get(report["failure_stage"]),
    }
    assert {name: root.get(name) for name in expected} == expected


ONE = "3f2b"
"""The id of the request that is looked for by its id."""
REQUESTS: Mapping[str, Sequence[Script]] = {
    "plain": [Script()],
    "waited": [Script(queue=1.5)],
    # Its decode is longer than the wait that is looked for.
    "long answer": [Script(gap=0.5)],
    "slow first": [Script(prefill=0.9)],
    "slow and cancelled": [Script(prefill=0.9, end="cancel", where="decode")],
    "cancelled": [Script(end="cancel", where="prefill")],
    "went on": [Script(end="leave", where="prefill", conditions={"workload": "completes"})],
    "stopped": [Script(end="leave", where="prefill", conditions={"workload": "stops"})],
    "out of memory": [Script(end="fail", where="prefill", reason="out_of_memory")],
    "engine error": [Script(end="fail", where="prefill", reason="engine_error")],
    "interrupted": [Script(preempted=0.3)],
    "mixed": [MIXED],
    "illegal": [Script(illegal=True)],
    "known id": [Script(conditions={"request_id": ONE})],
    # One trace with two requests, which together have what one of them would have to have.
    "two": [Script(end="leave", where="prefill", conditions={"workload": "stops"}), Script()],
    "two of which one went on": [Script(end="leave", where="prefill", conditions={"workload": "completes"}), Script()],
}
FOUND = {
    "the mixed ones": {"mixed"},
    "slow to the first token, and why": {"waited", "slow first", "slow and cancelled"},
    "waited long for a slot": {"waited"},
    "decode interrupted": {"interrupted"},
    "out of memory": {"out of memory"},
    "client left, server went on": {"went on", "two of which one went on"},
    "instrumented wrongly": {"illegal"},
    "all attempts of one request": {"known id"},
}


def searches() -> dict[str, dict[str, Any]]:
    """Return what the README's table offers for Jaeger: question -> the fields of its form."""
    table = README.read_text().split("## Searches")[1].split("\n## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("|")][2:]
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        question, _, form = (cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1])
        (value,) = re.findall("`(.*)`", form)
        if form.startswith("operation"):
            found[question] = {"operation": value}
        else:
            found[question] = {"tags": dict(pair.split("=", 1) for pair in value.replace("…", ONE).split())}
    return found


def play_trace(server: Server, scripts: Sequence[Script]) -> str:
    """Play requests under one span of a caller, and return the id of their trace."""
    tracer = server.tracer_provider.get_tracer("caller")
    with tracer.start_as_current_span("session") as session:
        for script in scripts:
            request = server.play(script)
            if script.end == "leave":
                request.client_disconnected()
                if script.conditions["workload"] == "completes":
                    request.output()
                    request.complete()
                else:
                    request.cancel()
    return format_trace_id(session.get_span_context().trace_id)


def test_each_search_finds_its_requests_and_no_others(stack: Stack) -> None:
    """Every search of the README, over traces of which some have in two requests what is looked for in one."""
    with stack.server("searches", slo=lifecycle.Slo(ttft=0.5)) as server:
        ids = {play_trace(server, scripts): name for name, scripts in REQUESTS.items()}
    eventually(lambda: everything_arrived(stack, set(ids)))
    found = {
        question: {ids[trace] for trace in stack.jaeger.search("searches", **form)}
        for question, form in searches().items()
    }
    assert found == FOUND


def everything_arrived(stack: Stack, ids: set[str]) -> None:
    """Raise NotYet until the storage has every trace."""
    missing = ids - stack.jaeger.search("searches")
    if missing:
        raise NotYet(f"{len(missing)} traces are missing")


def test_two_tags_match_a_trace_and_not_a_span(stack: Stack) -> None:
    """Why every search has one tag: this one finds a trace in which one request was left and another completed."""
    with stack.server("two-tags") as server:
        trace = play_trace(server, REQUESTS["two"])
    tags = {"inference.client.disconnected": "true", "inference.outcome": "completed"}

    def agree() -> None:
        assert stack.jaeger.search("two-tags", tags) == {trace}

    eventually(agree)


def test_the_second_backend_gets_the_same_spans(stack: Stack, played: Any) -> None:
    """What stands in Tempo's place has every span that Jaeger has, from the same pipeline."""
    sent = {span["span_id"] for _, spans in played.values() for span in spans}

    def received() -> set[str]:
        have = {
            span["spanId"]
            for line in stack.tempo.read_text().splitlines()
            for resource in json.loads(line)["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        }
        if not sent <= have:
            raise NotYet(f"{len(sent - have)} spans are missing")
        return have

    assert sent <= eventually(received)
