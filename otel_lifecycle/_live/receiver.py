"""From an OTLP message to rows, gauges and the count of what was not read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from google.protobuf.message import DecodeError
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from otel_lifecycle import semconv
from otel_lifecycle._live.gauges import Gauges
from otel_lifecycle._live.kept import Kept, RawSpan, RunningRequest
from otel_lifecycle._live.row import live_row, tenant_of
from otel_lifecycle._live.unread import GEN_AI, UnreadTelemetry
from otel_lifecycle._table.requests.from_span import is_request, verdict_of
from otel_lifecycle._table.row import row_of
from otel_lifecycle._table.sources.intake import cleaned
from otel_lifecycle._table.sources.otlp_proto import attributes, span_of
from otel_lifecycle._table.sources.seen import Seen
from otel_lifecycle._table.sources.wanted import MARKS

Signal: TypeAlias = Literal["traces", "metrics", "logs"]
Sink: TypeAlias = Callable[[Signal, bytes], None]

SEEN: Final = 100_000
"""Span ids remembered: an exporter that got no answer in time sends its batch again."""


class Receiver:
    """Takes OTLP messages in their protobuf form.

    ``sink`` is given every message that could be read.  Not thread-safe: everything happens on one event loop.
    """

    def __init__(self, kept: Kept, *, shape: str = "default", sink: Sink | None = None) -> None:
        self.kept = kept
        self.gauges = Gauges()
        self.unread = UnreadTelemetry()
        self.requests = 0
        self.messages = 0
        self._shape = shape
        self._sink = sink
        self._seen = Seen(SEEN)

    def take(self, signal: Signal, message: bytes) -> None:
        """Take a message; ValueError if it is not OTLP."""
        try:
            {"traces": self._traces, "metrics": self._metrics, "logs": self._logs}[signal](message)
        except DecodeError as error:
            raise ValueError(f"this is not an OTLP message of {signal}") from error
        self.messages += 1
        if self._sink is not None:
            self._sink(signal, message)

    def _traces(self, message: bytes) -> None:
        for batch in TracesData.FromString(message).resource_spans:
            resource = batch.resource.SerializeToString()
            own = attributes(batch.resource.attributes)
            for scope in batch.scope_spans:
                for span in scope.spans:
                    self._span(span, own, RawSpan(resource, scope.scope.name, span.SerializeToString()))
        self.kept.make_room(time.time())

    def _span(self, span: ProtoSpan, resource: dict[str, object], raw: RawSpan) -> None:
        # An id of another length would be kept and never found again.
        if len(span.trace_id) != 16 or len(span.span_id) != 8:
            self.unread.broken()
            return
        if not self._seen.add(span.trace_id.hex(), span.span_id.hex()):
            return
        self.kept.add_span(span.trace_id, raw)
        # Only the keys: decoding every value would cost more than all the rest, and most spans are not requests.
        keys = {item.key for item in span.attributes}
        if semconv.STAGE in keys:
            self._stage(span)
        # A phase of the cold start is ours, but no request; it is not unread telemetry.
        elif semconv.STARTUP_PHASE in keys:
            return
        # A request of another library has events, or the durations of an engine; a span without them is none.
        elif span.events or not MARKS.isdisjoint(keys):
            self._request(span, resource, raw.scope, keys)
        else:
            self._other(raw.scope, keys)

    def _request(self, span: ProtoSpan, resource: dict[str, object], scope: str, keys: set[str]) -> None:
        read = span_of(span, resource, scope)
        if read is None:
            self.unread.broken()
            return
        read, _ = cleaned(read)
        if is_request(read):
            self.requests += 1
            judged = verdict_of(read, self._shape)
            tenant = tenant_of({**resource, **judged.attributes})
            self.kept.add_row(span.trace_id, live_row(self.kept.next_number(), row_of(read, judged), tenant))
        else:
            self._other(scope, keys)

    def _other(self, scope: str, keys: set[str]) -> None:
        model_call = any(key.startswith(GEN_AI) for key in keys)
        self.unread.span(scope, model_call=model_call, ours=scope == semconv.SCOPE)

    def _stage(self, span: ProtoSpan) -> None:
        """Note a stage that arrived before the request it belongs to."""
        parent = span.parent_span_id.hex()
        # Stages and their request come in one batch or in two, in any order.
        if not parent or self.kept.ended(parent, span.trace_id):
            return
        own = attributes(span.attributes)
        # An interruption is a child of its stage, so its parent is not a request.
        if own[semconv.STAGE] == "preempted":
            return
        times = (span.start_time_unix_nano * 1e-9, span.end_time_unix_nano * 1e-9)
        model = own.get(semconv.GEN_AI_REQUEST_MODEL)
        self.kept.add_stage(
            RunningRequest(
                trace_id=span.trace_id.hex(),
                span_id=parent,
                model=None if model is None else str(model),
                seen=time.time(),
                stages=[(str(own[semconv.STAGE]), *times)],
            )
        )

    def _metrics(self, message: bytes) -> None:
        now = time.time()
        for batch in MetricsData.FromString(message).resource_metrics:
            # The whole resource identifies a process: not every server sets service.instance.id.
            instance = batch.resource.SerializeToString(deterministic=True).hex()
            for scope in batch.scope_metrics:
                for metric in scope.metrics:
                    self.gauges.take(instance, metric, now)

    def _logs(self, message: bytes) -> None:
        self.unread.logs()
