"""What becomes of OTLP messages: rows, figures in flight, and what was not read."""

from __future__ import annotations

import json
import time
from typing import Any

import orjson
import pytest
from opentelemetry.trace import Link

from otel_lifecycle import semconv
from otel_lifecycle._live.detail import detail_of
from otel_lifecycle._live.figures import TimeRange, figures_of, stage_columns
from otel_lifecycle._live.kept import Kept
from otel_lifecycle._live.otlp_json_body import to_protobuf
from otel_lifecycle._live.receiver import Receiver
from otel_lifecycle._live.saving import json_line
from tests.live.sent import MS, NOW, MakeTelemetry, finish, metrics, traces


@pytest.fixture
def receiver() -> Receiver:
    """A receiver that keeps three requests."""
    return Receiver(Kept(3))


def rows(receiver: Receiver) -> list[list[object]]:
    """The rows as the page reads them."""
    return [orjson.loads(row.packed) for row in receiver.kept.rows.values()]


def test_a_request_becomes_a_row(receiver: Receiver, make_telemetry: MakeTelemetry) -> None:
    """Every field of the row, in the order the page expects."""
    telemetry = make_telemetry()
    finish(telemetry, request_id="r-1", input_tokens=7)
    receiver.take("traces", traces(telemetry))
    ((number, trace, span, *rest),) = rows(receiver)
    assert (number, len(str(trace)), len(str(span))) == (1, 32, 16)
    stages = [20.0, 10.0, 30.0, 40.0, None]
    names = ["r-1", "chat m", "m", None, NOW // MS, 100.0, "completed", "mixed"]
    assert rest[:8] == names
    assert rest[8:14] == [stages, 60.0, 15.0, 7, 3, 0]


def test_json_and_protobuf_say_the_same(receiver: Receiver, make_telemetry: MakeTelemetry) -> None:
    """A message written as OTLP JSON and read back gives the row of the original."""
    telemetry = make_telemetry(token_times=True)
    finish(telemetry)
    message = traces(telemetry)
    receiver.take("traces", message)
    other = Receiver(Kept(3))
    line = json_line("traces", message)
    span = json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert len(span["traceId"]) == 32
    other.take("traces", to_protobuf("traces", line))
    assert rows(other) == rows(receiver)


def test_a_span_that_an_engine_wrote_is_a_request(receiver: Receiver) -> None:
    """Durations as attributes and no lifecycle event, as vLLM writes them; the page shows its stages."""
    told = {"gen_ai.latency.e2e": 2.5, "gen_ai.latency.time_to_first_token": 0.5}
    told |= {"gen_ai.latency.time_in_queue": 0.2, "gen_ai.latency.time_in_model_prefill": 0.25}
    span = {
        "traceId": "0af7651916cd43dd8448eb211c80319c",
        "spanId": "b7ad6b7169203331",
        "name": "llm_request",
        "startTimeUnixNano": str(NOW),
        "endTimeUnixNano": str(NOW + 2500 * MS),
        "attributes": [{"key": key, "value": {"doubleValue": value}} for key, value in told.items()],
    }
    batch = {"resourceSpans": [{"scopeSpans": [{"scope": {"name": "vllm.llm_engine"}, "spans": [span]}]}]}
    receiver.take("traces", to_protobuf("traces", orjson.dumps(batch)))
    (row,) = receiver.kept.rows.values()
    assert row.outcome == "completed"
    assert row.stages == pytest.approx((0.2, 0.05, 0.25, 2.0))
    assert receiver.unread.lines(1, 0) == []
    trace = receiver.kept.trace(row.trace_id)
    assert trace is not None
    assert "prefill" in str(detail_of(trace, row.span_id, "default"))


def test_a_batch_that_is_sent_again_counts_once(receiver: Receiver, make_telemetry: MakeTelemetry) -> None:
    """An exporter that got no answer in time repeats its batch."""
    telemetry = make_telemetry()
    finish(telemetry)
    message = traces(telemetry)
    receiver.take("traces", message)
    receiver.take("traces", message)
    assert (receiver.requests, len(receiver.kept.rows)) == (1, 1)


def test_the_oldest_leave_and_are_counted(receiver: Receiver, make_telemetry: MakeTelemetry) -> None:
    """Of five requests the last three are kept; what has left has no trace either."""
    telemetry = make_telemetry()
    for number in range(5):
        finish(telemetry, NOW + number * 1000 * MS, request_id=f"r-{number}")
        receiver.take("traces", traces(telemetry))
    kept = receiver.kept
    assert [row[3] for row in rows(receiver)] == ["r-2", "r-3", "r-4"]
    assert (kept.left, list(kept.gone)) == (2, [1, 2])
    assert [kept.trace(str(row[1])) is not None for row in rows(receiver)] == [True] * 3


def test_bytes_are_bounded_too(make_telemetry: MakeTelemetry) -> None:
    """Large spans make requests leave before the number does."""
    telemetry = make_telemetry()
    kept = Kept(1000, max_bytes=20_000)
    receiver = Receiver(kept)
    for number in range(40):
        finish(telemetry, NOW + number * MS)
        receiver.take("traces", traces(telemetry))
    assert 0 < len(kept.rows) < 20
    assert kept.left == 40 - len(kept.rows)


def test_requests_in_flight_come_from_metrics(receiver: Receiver, make_telemetry: MakeTelemetry) -> None:
    """Stage by stage, with the age of the oldest; nothing is told before a metric came."""
    telemetry = make_telemetry()
    assert receiver.gauges.in_flight(time.time()) is None
    waiting, decoding = telemetry.request(model="m"), telemetry.request(model="m")
    decoding.admit()
    decoding.input_ready()
    decoding.token()
    receiver.take("metrics", metrics(telemetry))
    now = time.time()
    assert receiver.gauges.in_flight(now) == {"queue": 1, "preprocessing": 0, "prefill": 0, "decode": 1}
    oldest = receiver.gauges.oldest(now)
    assert oldest is not None
    assert oldest >= 0
    for request in (waiting, decoding):
        request.cancel()
    receiver.take("metrics", metrics(telemetry))
    assert set((receiver.gauges.in_flight(time.time()) or {}).values()) == {0}
    assert receiver.gauges.oldest(time.time()) is None


def test_a_process_that_went_silent_is_in_flight_no_more(receiver: Receiver, make_telemetry: MakeTelemetry) -> None:
    """A server that was killed leaves no requests in flight behind for ever."""
    telemetry = make_telemetry()
    request = telemetry.request(model="m")
    receiver.take("metrics", metrics(telemetry))
    assert receiver.gauges.in_flight(time.time() + 3600) is None
    request.cancel()


def test_a_stage_that_ends_first_shows_a_running_request(receiver: Receiver, make_telemetry: MakeTelemetry) -> None:
    """A stage span without its request is a running request, until the request comes."""
    telemetry = make_telemetry()
    finish(telemetry)
    spans = telemetry.exporter.get_finished_spans()
    stages, whole = [one for one in spans if one.name != "chat m"], [one for one in spans if one.name == "chat m"]
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    receiver.take("traces", encode_spans(stages[:1]).SerializeToString())
    (running,) = receiver.kept.running.values()
    assert [stage for stage, _, _ in running.stages] == ["queue"]
    receiver.take("traces", encode_spans([*whole, *stages[1:]]).SerializeToString())
    assert not receiver.kept.running
    assert len(receiver.kept.rows) == 1


def test_what_shows_no_lifecycle_is_named_with_the_reason(receiver: Receiver, make_telemetry: MakeTelemetry) -> None:
    """Spans of other libraries are counted by library; model calls among them have a reason of their own."""
    telemetry = make_telemetry()
    telemetry.tracer("web").start_span("GET /").end()
    telemetry.tracer("llm.client").start_span("chat", attributes={"gen_ai.request.model": "m"}).end()
    receiver.take("traces", traces(telemetry))
    told = {one.what: (one.count, "gen_ai" in one.reason, bool(one.remedy)) for one in receiver.unread.lines(0, 0)}
    assert told == {"spans of web": (1, False, True), "spans of llm.client": (1, True, True)}


def test_requests_that_only_metrics_count_are_named(receiver: Receiver, make_telemetry: MakeTelemetry) -> None:
    """With spans sampled away, metrics still count: the page says so in place of an empty list."""
    telemetry = make_telemetry()
    finish(telemetry)
    receiver.take("metrics", metrics(telemetry))
    (line,) = receiver.unread.lines(receiver.requests, receiver.gauges.counted())
    assert (line.count, "sampled" in line.reason) == (1, True)


def test_what_is_not_otlp_is_refused(receiver: Receiver) -> None:
    """Nothing is counted of a body that cannot be read."""
    with pytest.raises(ValueError, match="not an OTLP message of traces"):
        receiver.take("traces", b"\xff\xff\xff")
    with pytest.raises(ValueError, match="in JSON"):
        to_protobuf("traces", b'{"resourceSpans": 1}')
    assert receiver.messages == 0


def test_violations_come_with_the_rule(receiver: Receiver, make_telemetry: MakeTelemetry) -> None:
    """A request that resumed without a preemption is named with what was legal there."""
    telemetry = make_telemetry()
    request = telemetry.request(model="m", arrived_at_ns=NOW)
    request.admit(at_ns=NOW + MS)
    request.resume(at_ns=NOW + 2 * MS)
    request.cancel(at_ns=NOW + 3 * MS)
    receiver.take("traces", traces(telemetry))
    (rule,) = figures_of(list(receiver.kept.rows.values()), TimeRange(since=0, until=time.time()))["rules"]
    assert (rule["kind"], rule["state"], rule["event"]) == ("illegal_transition", "preprocessing", "resume")
    assert (rule["count"], rule["requests"], rule["number"]) == (1, 1, 1)
    assert "input_ready" in rule["rule"]


def test_figures_of_a_range(make_telemetry: MakeTelemetry) -> None:
    """Two completed and one cancelled request, of which the last lies outside the range."""
    receiver, telemetry = Receiver(Kept()), make_telemetry()
    finish(telemetry, NOW)
    finish(telemetry, NOW + 9_900 * MS)
    finish(telemetry, NOW + 20_000 * MS, end="cancel")
    receiver.take("traces", traces(telemetry))
    chosen = TimeRange(since=NOW * 1e-9, until=NOW * 1e-9 + 10.1)
    inside = [row for row in receiver.kept.rows.values() if chosen.holds(row)]
    figures = figures_of(inside, chosen)
    assert figures["rate"] == pytest.approx(0.2)
    assert {**figures, "rate": None, "latency": None} == {
        "total": 2,
        "outcomes": {"completed": 2},
        "success": 1.0,
        "rate": None,
        "latency": None,
        "bottlenecks": {"mixed": 2},
        "queue": {"preprocessing": 0.0, "prefill": 0.0, "decode": 0.0, "idle": 0.04},
        "queue_of": 2,
        "stall": None,
        "stall_of": 0,
        "decode": 0,
        "rules": [],
    }
    assert figures["latency"] == {
        name: {"count": 2, "p50": pytest.approx(value), "p95": pytest.approx(value)}
        for name, value in (("ttft", 0.06), ("tpot", 0.015), ("e2e", 0.1))
    }
    columns = stage_columns(inside, chosen)
    assert columns is not None
    assert sum(columns.counts) == 2
    assert {stage: max(values) for stage, values in columns.means.items()} == {
        "queue": pytest.approx(0.02),
        "preprocessing": pytest.approx(0.01),
        "prefill": pytest.approx(0.03),
        "decode": pytest.approx(0.04),
    }


def test_what_held_requests_is_summed_by_cause(make_telemetry: MakeTelemetry) -> None:
    """Queue time and stalled decode time by cause, of every request that tells; the neighbour is linked.

    The second request waits 20 ms beside nobody, and no token of it stalls.
    """
    receiver, telemetry = Receiver(Kept()), make_telemetry()
    neighbour = telemetry.tracer().start_span("neighbour")
    reason: dict[str, Any] = {semconv.LINK_REASON: "stall", semconv.LINK_TIME: 0.25, semconv.REQUEST_ID: "long-prompt"}
    told: dict[str, Any] = {
        semconv.OUTCOME: "completed",
        semconv.DECODE_TIME: 2.0,
        semconv.QUEUE_BESIDE_PREFILL: 0.5,
        semconv.QUEUE_IDLE: 1.5,
        semconv.STALL_TIME: 0.4,
        semconv.STALL_PREFILL: 0.25,
        semconv.STALL_UNEXPLAINED: 0.15,
    }
    link = Link(neighbour.get_span_context(), reason)
    telemetry.tracer().start_span("held", attributes=told, links=[link]).end()
    finish(telemetry, time.time_ns() - 200 * MS)
    receiver.take("traces", traces(telemetry))
    figures = figures_of(list(receiver.kept.rows.values()), TimeRange(since=0, until=time.time()))
    assert (figures["queue"], figures["queue_of"]) == (
        {"preprocessing": 0.0, "prefill": 0.5, "decode": 0.0, "idle": 1.52},
        2,
    )
    assert (figures["stall"], figures["stall_of"]) == ({"prefill": 0.25, "preemption": 0.0, "unexplained": 0.15}, 1)
    assert figures["decode"] == 2.0
    held = receiver.kept.rows[1]
    trace = receiver.kept.trace(held.trace_id)
    assert trace is not None
    detail = detail_of(trace, held.span_id, "default")
    context = neighbour.get_span_context()
    link_to = f'data-request="{context.trace_id:032x}/{context.span_id:016x}">long-prompt</a>'
    assert link_to in str(detail)
    assert "stalled its decode</td><td>250 ms" in str(detail)


def test_nothing_in_a_range_is_absent_not_zero() -> None:
    """No request gives no rate, no success and no quantile."""
    figures = figures_of([], TimeRange(since=0, until=100))
    assert (figures["total"], figures["success"], figures["rate"]) == (0, None, None)
    assert figures["latency"]["ttft"] == {"count": 0, "p50": None, "p95": None}
    assert stage_columns([], TimeRange(since=0, until=100)) is None
