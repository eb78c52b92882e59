"""Trace headers chosen by clients: a context that is not a context is none, and none of them costs more than itself."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import propagate
from opentelemetry.context import attach, detach
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from tests.support.plain import Span
from tests.support.telemetry import Telemetry

from .conftest import MIB

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"
INVALID: dict[str, Any] = {
    "trace id of zeros": f"00-{'0' * 32}-{SPAN}-01",
    "span id of zeros": f"00-{TRACE}-{'0' * 16}-01",
    "forbidden version": f"ff-{TRACE}-{SPAN}-01",
    "one mebibyte": "00-" + "a" * MIB,
    "one mebibyte after a valid one": VALID + "-" + "a" * MIB,
    "control characters": f"00-{TRACE}\r\n-{SPAN}-01",
    "upper case": VALID.upper().replace("4BF", "4BG"),
    "half a surrogate pair": f"00-{TRACE[:-1]}\ud800-{SPAN}-01",
    "other digits": f"00-{TRACE[:-1]}\u0661-{SPAN}-01",
    "short": "00-1-1-1",
    "empty": "",
    "not a string": 7,
}


def serve(telemetry: Telemetry, headers: dict[str, Any]) -> Span:
    """Serve one request under what a server extracted from the headers, with the same headers as its attempt before."""
    token = attach(propagate.extract(headers))
    try:
        request = telemetry.request(model="tiny", previous=headers)
        request.carrier()
        request.cancel()
    finally:
        detach(token)
    return telemetry.span("chat tiny")


def test_valid_traceparent_is_the_parent(telemetry: Telemetry) -> None:
    """What the invalid ones are held against: parent and link are there."""
    span = serve(telemetry, {"traceparent": VALID})
    assert (span["trace_id"], span["parent_id"], span["kind"]) == (TRACE, SPAN, "SERVER")
    assert [link["span_id"] for link in span["links"]] == [SPAN]


@pytest.mark.parametrize("kind", [kind for kind in INVALID if INVALID[kind] != 7])
def test_invalid_traceparent_is_none(telemetry: Telemetry, kind: str) -> None:
    """The request is a root of its own, without a link, and its batch encodes."""
    span = serve(telemetry, {"traceparent": INVALID[kind]})
    assert (span["parent_id"], span["links"], span["attributes"]["inference.legal"]) == (None, [], True)
    assert span["trace_id"] not in {TRACE, "0" * 32}
    assert encode_spans(telemetry.exporter.get_finished_spans()).ByteSize() < 10_000


@pytest.mark.parametrize("previous", [*INVALID.values(), object(), [VALID], b"00", {"traceparent": 7}, {1: 2}, {}])
def test_carrier_that_is_none_links_nothing(telemetry: Telemetry, previous: Any) -> None:
    """``previous`` of any kind: no exception, no link."""
    telemetry.request(model="tiny", previous=previous).cancel()
    assert telemetry.span("chat tiny")["links"] == []


def test_long_tracestate_is_bounded(telemetry: Telemetry) -> None:
    """Members beyond what the specification has, and one of a mebibyte, do not come along to the export."""
    members = [f"k{number}={'v' * 200}" for number in range(5000)] + [f"big={'v' * MIB}"]
    serve(telemetry, {"traceparent": VALID, "tracestate": ",".join(members)})
    assert encode_spans(telemetry.exporter.get_finished_spans()).ByteSize() < 64_000


@pytest.mark.parametrize("count", [1_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_distinct_traceparents_are_no_series(telemetry: Telemetry, count: int) -> None:
    """As many traces as requests: the same points as one has, only higher."""
    serve(telemetry, {"traceparent": VALID})
    first = [(point["metric"], point["attributes"]) for point in telemetry.points()]
    for number in range(1, count + 1):
        telemetry.exporter.clear()
        span = serve(telemetry, {"traceparent": f"00-{number:032x}-{number:016x}-01"})
        assert span["parent_id"] == f"{number:016x}"
    assert [(point["metric"], point["attributes"]) for point in telemetry.points()] == first
