"""The OTLP receiver, held against OpenTelemetry's own exporters and against bare calls."""

from __future__ import annotations

import http.client
import threading
from typing import Any

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter
from opentelemetry.exporter.otlp.proto.http import Compression as HttpCompression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpanExporter
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from tests.support import otlp_receiver
from tests.support.otlp_receiver import ANSWERS, GrpcReceiver, HttpReceiver, OtlpReceiver
from tests.support.patient_reader import PatientReader
from tests.support.plain import plain_points, plain_span

RESOURCE = Resource({"service.name": "probe", "service.instance.id": "one"}, "https://opentelemetry.io/schemas/1.41.1")
T0 = 1_700_000_000_000_000_000
TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


def some_spans() -> list[ReadableSpan]:
    """A child and its parent that between them have one of everything a span can have."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=RESOURCE, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("probe", "1.2", "https://opentelemetry.io/schemas/1.41.1", {"scope": True})
    parent = tracer.start_span("parent", kind=SpanKind.SERVER, start_time=T0)
    link = Link(SpanContext(7, 9, is_remote=True, trace_flags=TraceFlags(1)), {"why": "retry"})
    child = tracer.start_span("child", trace.set_span_in_context(parent), links=[link], start_time=T0 + 1)
    child.set_attributes({"text": "ü", "whole": 2**53 + 1, "real": 0.1, "yes": True, "list": ["a", "b"], "none": []})
    child.add_event("arrive", {"count": 3}, timestamp=T0 + 2)
    child.set_status(Status(StatusCode.ERROR, "broken"))
    child.end(T0 + 3)
    parent.end(T0 + 4)
    return list(exporter.get_finished_spans())


def some_metrics() -> MetricsData:
    """One point or more of each kind of instrument, the histogram's with an exemplar."""
    reader = PatientReader()
    provider = MeterProvider([reader], resource=RESOURCE, shutdown_on_exit=False)
    meter = provider.get_meter("probe", "1.2", "https://opentelemetry.io/schemas/1.41.1", {"scope": True})
    meter.create_counter("requests", "{request}", "how many").add(2, {"outcome": "completed"})
    meter.create_up_down_counter("active").add(-1)
    meter.create_observable_gauge("age", [lambda _: [Observation(1.5, {"stage": "queue"})]], "s")
    histogram = meter.create_histogram("ttft", "s", explicit_bucket_boundaries_advisory=[0.1, 1.0])
    sampled = SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1))
    histogram.record(0.25, {"model": "b"}, trace.set_span_in_context(trace.NonRecordingSpan(sampled)))
    histogram.record(7, {"model": "a"})
    data = reader.get_metrics_data()
    assert data is not None
    return data


def span_exporter(receiver: OtlpReceiver, compression: str = "none", **others: Any) -> Any:
    """The real span exporter for that receiver."""
    if isinstance(receiver, GrpcReceiver):
        gzip = grpc.Compression.Gzip if compression == "gzip" else grpc.Compression.NoCompression
        return GrpcSpanExporter(endpoint=receiver.endpoint, insecure=True, compression=gzip, **others)
    how = HttpCompression(compression)
    return HttpSpanExporter(endpoint=f"{receiver.endpoint}/v1/traces", compression=how, **others)


def metric_exporter(receiver: OtlpReceiver) -> Any:
    """The real metric exporter for that receiver."""
    if isinstance(receiver, GrpcReceiver):
        return GrpcMetricExporter(endpoint=receiver.endpoint, insecure=True)
    return HttpMetricExporter(endpoint=f"{receiver.endpoint}/v1/metrics")


def post(
    receiver: HttpReceiver, path: str = "/v1/traces", body: bytes = b"", timeout: float = 20, **headers: str
) -> tuple[int, bytes]:
    """Make one bare HTTP call and return its status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=timeout)
    sent = {"content-type": "application/x-protobuf"} | {key.replace("_", "-"): value for key, value in headers.items()}
    try:
        connection.request("POST", path, body, sent)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def call(receiver: OtlpReceiver, timeout: float = 20) -> str:
    """Export an empty trace request by a bare call; return what came of it, in the words of the faults."""
    if isinstance(receiver, HttpReceiver):
        try:
            status, _ = post(receiver, timeout=timeout)
        except TimeoutError:
            return "no answer"
        except ConnectionRefusedError:
            return "closed"
        return {200: "accept", 503: "refuse", 400: "reject"}[status]
    with grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as channel:
        try:
            channel.unary_unary(TRACES, bytes, bytes)(b"", timeout=timeout)
        except grpc.RpcError as error:
            return _WORDS[error.code(), "told to" in (error.details() or "")]
    return "accept"


_WORDS = {
    (grpc.StatusCode.UNAVAILABLE, True): "refuse",
    (grpc.StatusCode.UNAVAILABLE, False): "closed",
    (grpc.StatusCode.INVALID_ARGUMENT, True): "reject",
    (grpc.StatusCode.DEADLINE_EXCEEDED, False): "no answer",
}


def test_spans_arrive_whole(otlp: OtlpReceiver) -> None:
    """What the receiver decoded equals what the process had, field for field."""
    spans = some_spans()
    assert span_exporter(otlp).export(spans) is SpanExportResult.SUCCESS
    assert otlp.spans() == [plain_span(span) for span in spans]
    assert otlp.spans("parent") == [plain_span(spans[1])]


def test_a_span_is_read_right() -> None:
    """The plain form of a span says what was put into it."""
    child, parent = map(plain_span, some_spans())
    assert child == {
        "name": "child",
        "kind": "INTERNAL",
        "trace_id": parent["trace_id"],
        "span_id": child["span_id"],
        "parent_id": parent["span_id"],
        "start_ns": T0 + 1,
        "end_ns": T0 + 3,
        "attributes": {"text": "ü", "whole": 2**53 + 1, "real": 0.1, "yes": True, "list": ["a", "b"], "none": []},
        "events": [{"name": "arrive", "time_ns": T0 + 2, "attributes": {"count": 3}}],
        "links": [{"trace_id": f"{7:032x}", "span_id": f"{9:016x}", "attributes": {"why": "retry"}}],
        "status": "ERROR",
        "status_description": "broken",
        "dropped_attributes": 0,
        "dropped_events": 0,
        "dropped_links": 0,
        "resource": {"service.name": "probe", "service.instance.id": "one"},
        "scope": {
            "name": "probe",
            "version": "1.2",
            "schema_url": "https://opentelemetry.io/schemas/1.41.1",
            "attributes": {"scope": True},
        },
    }
    assert (parent["kind"], parent["parent_id"], parent["status"]) == ("SERVER", None, "UNSET")


def test_points_arrive_whole(otlp: OtlpReceiver) -> None:
    """Every kind of point decodes to what the process had, exemplars, bounds and start times too."""
    data = some_metrics()
    assert metric_exporter(otlp).export(data) is MetricExportResult.SUCCESS
    assert otlp.points() == plain_points(data)
    assert otlp.points("ttft") == [point for point in plain_points(data) if point["metric"] == "ttft"]


def test_a_point_is_read_right() -> None:
    """The plain form of a histogram point says what was recorded."""
    point = plain_points(some_metrics())[-1]
    assert {key: value for key, value in point.items() if key not in ("start_ns", "time_ns", "exemplars", "scope")} == {
        "metric": "ttft",
        "unit": "s",
        "description": "",
        "type": "histogram",
        "temporality": "cumulative",
        "monotonic": None,
        "attributes": {"model": "b"},
        "value": None,
        "count": 1,
        "sum": 0.25,
        "min": 0.25,
        "max": 0.25,
        "bounds": [0.1, 1.0],
        "buckets": [0, 1, 0],
        "resource": {"service.name": "probe", "service.instance.id": "one"},
    }
    assert [(e["value"], e["trace_id"], e["span_id"]) for e in point["exemplars"]] == [
        (0.25, f"{0xABC:032x}", f"{0xDEF:016x}")
    ]


def test_newest_point_of_a_series(otlp: OtlpReceiver) -> None:
    """Of a series exported twice, points() gives the later value; exports() has both."""
    reader = PatientReader()
    counter = MeterProvider([reader], shutdown_on_exit=False).get_meter("probe").create_counter("requests")
    exporter = metric_exporter(otlp)
    for _ in range(2):
        counter.add(1)
        exporter.export(reader.get_metrics_data())
    assert [point["value"] for point in otlp.points()] == [2]
    assert [[point["value"] for point in export] for export in otlp.exports()] == [[1], [2]]


@pytest.mark.parametrize("compression", ["none", "gzip", "deflate"])
def test_http_compression(otlp_http: HttpReceiver, compression: str) -> None:
    """A compressed body is decoded, and the encoding it came in is told."""
    spans = some_spans()
    span_exporter(otlp_http, compression).export(spans)
    assert otlp_http.spans() == [plain_span(span) for span in spans]
    assert [batch.encoding for batch in otlp_http.batches] == ["identity" if compression == "none" else compression]


def test_grpc_compression(otlp_grpc: GrpcReceiver) -> None:
    """A compressed gRPC call is decoded."""
    spans = some_spans()
    span_exporter(otlp_grpc, "gzip").export(spans)
    assert otlp_grpc.spans() == [plain_span(span) for span in spans]


def test_size_and_headers(otlp: OtlpReceiver) -> None:
    """A batch knows its size as protobuf and the headers it came with."""
    span_exporter(otlp, headers={"x-tenant": "one"}).export(some_spans())
    (batch,) = otlp.batches
    assert batch.size == batch.message.ByteSize() > 0
    assert batch.headers["x-tenant"] == "one"


@pytest.mark.parametrize("fault", ["refuse", "reject"])
def test_turned_away(otlp: OtlpReceiver, fault: str) -> None:
    """A refused or rejected call is answered so, counted, and not kept; then all is well again."""
    getattr(otlp, fault)()
    assert call(otlp) == fault
    assert (otlp.turned_away, otlp.batches) == (1, [])
    otlp.accept()
    assert call(otlp) == "accept"
    assert (otlp.turned_away, len(otlp.batches)) == (1, 1)


def test_exporter_tries_again(otlp: OtlpReceiver) -> None:
    """A real exporter that is refused brings the same spans once the receiver accepts."""
    otlp.refuse()
    spans = some_spans()
    results: list[Any] = []
    worker = threading.Thread(target=lambda: results.append(span_exporter(otlp).export(spans)))
    worker.start()
    otlp.wait_for(lambda: otlp.turned_away >= 1)
    otlp.accept()
    worker.join()
    assert results == [SpanExportResult.SUCCESS]
    assert otlp.spans() == [plain_span(span) for span in spans]


def test_hang(otlp: OtlpReceiver) -> None:
    """A held call gets no answer in its time, and one that waits is refused when the receiver accepts again."""
    otlp.hang()
    assert call(otlp, timeout=0.3) == "no answer"
    answers: list[str] = []
    waiting = threading.Thread(target=lambda: answers.append(call(otlp)))
    waiting.start()
    otlp.wait_for(lambda: otlp.turned_away == 2)
    assert answers == []
    otlp.accept()
    waiting.join()
    assert (answers, otlp.batches) == (["refuse"], [])


def test_stop_lets_held_calls_go(otlp: OtlpReceiver) -> None:
    """Closing the receiver does not wait for a call that it holds."""
    otlp.hang()
    waiting = threading.Thread(target=lambda: call(otlp))
    waiting.start()
    otlp.wait_for(lambda: otlp.turned_away == 1)
    otlp.stop()
    waiting.join()
    assert otlp.batches == []


def test_slow(otlp: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow receiver sleeps for as long as it was told before it answers, and keeps what it got."""
    slept: list[float] = []
    monkeypatch.setattr(otlp_receiver, "sleep", slept.append)
    otlp.slow(0.2)
    assert (call(otlp), slept, len(otlp.batches)) == ("accept", [0.2], 1)


def test_down_and_up_again(otlp: OtlpReceiver) -> None:
    """Stopped, its port is closed; started again, it is the same port and what had arrived is still there."""
    before = otlp.endpoint
    assert call(otlp) == "accept"
    otlp.stop()
    assert call(otlp) == "closed"
    otlp.start()
    assert (otlp.endpoint, call(otlp), len(otlp.batches)) == (before, "accept", 2)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ({"path": "/v1/logs"}, 404),
        ({"content_type": "application/json"}, 415),
        ({"content_encoding": "br"}, 400),
        ({"content_encoding": "gzip", "body": b"not gzip"}, 400),
        ({"body": b"\xff\xff"}, 400),
    ],
)
def test_wrong_calls(otlp_http: HttpReceiver, arguments: dict[str, Any], status: int) -> None:
    """A call that no OTLP receiver takes is answered so and not kept."""
    assert post(otlp_http, **arguments)[0] == status
    assert (otlp_http.batches, otlp_http.turned_away) == ([], 0)


def test_answer_is_protobuf(otlp_http: HttpReceiver) -> None:
    """A good call is answered by the response message of its signal."""
    assert post(otlp_http, "/v1/metrics") == (200, ANSWERS["metrics"])


def test_unknown_grpc_method(otlp_grpc: GrpcReceiver) -> None:
    """A method that is not OTLP's is unimplemented."""
    with grpc.insecure_channel(f"127.0.0.1:{otlp_grpc.port}") as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/some.Service/Method", bytes, bytes)(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_wait_for_gives_up(otlp_http: HttpReceiver) -> None:
    """A condition that never holds is an AssertionError which says what had arrived."""
    call(otlp_http)
    with pytest.raises(AssertionError, match="1 calls were kept and 0 turned away"):
        otlp_http.wait_for(lambda: False, seconds=0.05)


def test_clear(otlp_http: HttpReceiver) -> None:
    """Cleared, it has seen nothing."""
    call(otlp_http)
    otlp_http.clear()
    assert (otlp_http.batches, otlp_http.spans(), otlp_http.points()) == ([], [], [])
