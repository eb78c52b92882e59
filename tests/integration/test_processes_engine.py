"""An engine in another process: it gets the trace with the job and hands its marks back with the output."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.faults.programs.engine import TOKENS
from tests.faults.running import run, total
from tests.support.otlp_receiver import HttpReceiver
from tests.support.plain import Span

WITHIN_THE_ENGINE = ("preprocessing", "prefill", "token_span", "tpot")
ACROSS = ("queue_wait", "ttft", "decode_time")
"""Durations between a mark of the server (arrival, end) and one of the engine."""


def run_engine(receiver: HttpReceiver, *arguments: object) -> list[dict[str, Any]]:
    """Run the server and its engine; return the reports of the two requests."""
    done = run(receiver, "engine", *arguments)
    assert (done.returncode, done.stderr.strip()) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def known(span: Span, names: tuple[str, ...]) -> list[str]:
    """Return which of these durations are on a span."""
    return [name for name in names if f"inference.{name}" in span["attributes"]]


def by_id(receiver: HttpReceiver) -> list[Span]:
    """Return the request spans in the order of their ids."""
    return sorted(receiver.spans("chat tiny"), key=lambda span: str(span["attributes"]["inference.request.id"]))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_engine_marks_come_back_with_its_output(otlp_http: HttpReceiver, method: str) -> None:
    """On one clock every duration is known, nothing is violated, and the engine's spans are in the request's trace."""
    reports = run_engine(otlp_http, method, 0)
    assert [(report["status"], report["output_tokens"]) for report in reports] == [("completed", TOKENS)] * 2
    spans = by_id(otlp_http)
    assert [known(span, WITHIN_THE_ENGINE + ACROSS) for span in spans] == [list(WITHIN_THE_ENGINE + ACROSS)] * 2
    assert [span["attributes"]["inference.legal"] for span in spans] == [True, True]
    steps = {(span["trace_id"], span["parent_id"]) for span in otlp_http.spans("engine step")}
    assert steps == {(span["trace_id"], span["span_id"]) for span in spans}
    assert total(otlp_http) == total(otlp_http, "inference.time_to_first_token") == 2


@pytest.mark.parametrize("skew_ms", [-60_000, 60_000])
def test_c58_engine_on_another_clock(otlp_http: HttpReceiver, skew_ms: int) -> None:
    """A clock proven apart: what lies within the engine stands, what lies between is absent, one violation each."""
    run_engine(otlp_http, "spawn", skew_ms)
    spans = by_id(otlp_http)
    assert [known(span, WITHIN_THE_ENGINE) for span in spans] == [list(WITHIN_THE_ENGINE)] * 2
    assert [known(span, ACROSS) for span in spans] == [[], []]
    assert [span["attributes"]["inference.violations"] for span in spans] == [1, 1]
    assert total(otlp_http, "inference.transition.violations", inference__violation__kind="foreign_clock") == 2
    assert (total(otlp_http), total(otlp_http, "inference.time_to_first_token")) == (2, 0)


def test_engine_that_dies_fails_its_request(otlp_http: HttpReceiver) -> None:
    """What it marked before is kept, and no request stays open."""
    reports = run_engine(otlp_http, "spawn", 0, "crash")
    ends = [(report["status"], report["failure_stage"], report["output_tokens"]) for report in reports]
    assert ends == [("completed", None, TOKENS), ("failed", "decode", 1)]
    errors = [span["attributes"].get("error.type") for span in by_id(otlp_http)]
    assert errors == [None, "engine_error"]
    assert total(otlp_http) == 2
