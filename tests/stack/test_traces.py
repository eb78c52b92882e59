"""A request on its way through the Collector: what Jaeger gives back is what the process computed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import format_span_id, format_trace_id

import otel_lifecycle as lifecycle
from otel_lifecycle import semconv
from tests.stack.backends import NotYet, eventually
from tests.stack.conftest import Stack
from tests.stack.load import Script, Server
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


def test_the_searches_of_the_readme_find_their_traces(stack: Stack, played: Any) -> None:
    """Jaeger's tag search finds the mixed ones, the failed ones, and those with a violation."""
    ids = {kind: sent[0]["trace_id"] for kind, (_, sent) in played.items()}

    def search(**tags: str) -> set[str]:
        return stack.jaeger.search("traces", {name.replace("__", "."): value for name, value in tags.items()})

    def found() -> dict[str, set[str]]:
        return {
            "mixed": search(inference__bottleneck="mixed"),
            "failed": search(inference__outcome="failed", inference__end__reason="out_of_memory"),
            "illegal": search(inference__legal="false"),
        }

    expected = {kind: {ids[kind]} for kind in ("mixed", "failed", "illegal")}

    def agree() -> None:
        assert found() == expected

    eventually(agree)


def tags(question: str) -> dict[str, str]:
    """Return the tags that the README's table of searches offers for Jaeger."""
    (row,) = (line for line in README.read_text().splitlines() if line.startswith(f"| {question} |"))
    return dict(pair.split("=", 1) for pair in row.rstrip("| ").rsplit("`", 2)[1].split())


def test_a_search_for_completed_requests_leaves_out_the_cancelled(stack: Stack) -> None:
    """With an objective a cancelled request has not met it, and its client may have left, too; neither is found."""
    ids = {}
    with stack.server("searches", slo=lifecycle.Slo(ttft=0.5)) as server:
        for kind, script in {
            "quick": Script(),
            "slow": Script(prefill=0.9),
            "cancelled": Script(end="leave", where="prefill"),
            "went on": Script(end="leave", where="prefill"),
        }.items():
            request = server.play(script)
            if script.end == "leave":
                request.client_disconnected()
                if kind == "went on":
                    request.first_token()
                request.complete() if kind == "went on" else request.cancel()
            (*_, span) = server.request_spans()
            assert span.context is not None
            ids[kind] = f"{span.context.trace_id:032x}"

    def agree() -> None:
        found = {
            "all over an objective": stack.jaeger.search("searches", {"inference.slo.met": "false"}),
            "slow": stack.jaeger.search("searches", tags("slow to the first token, and why")),
            "went on": stack.jaeger.search("searches", tags("client left, server went on")),
        }
        assert found == {
            "all over an objective": {ids["slow"], ids["cancelled"]},
            "slow": {ids["slow"]},
            "went on": {ids["went on"]},
        }

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
