"""An OTLP receiver on a free loopback port that decodes what it is sent, and can be told to misbehave.

Both transports keep the decoded protobuf messages in the order of arrival::

    with GrpcReceiver() as receiver:            # or HttpReceiver
        exporter = OTLPSpanExporter(endpoint=receiver.endpoint, insecure=True)
        …
        receiver.wait_for(lambda: len(receiver.spans()) == 3)

``refuse()`` answers "unavailable, try again", ``reject()`` "malformed, do not", ``hang()`` holds each call until
``accept()`` or ``stop()``, ``slow(seconds)`` answers late.  ``stop()`` closes the port and ``start()`` opens the same
one again.  What is refused, rejected or held is counted in ``turned_away`` and not kept.
"""

from __future__ import annotations

import gzip
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import sleep
from types import TracebackType
from typing import Any, ClassVar, Final, Literal

import grpc
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from typing_extensions import Self

from tests.support import otlp_plain
from tests.support.plain import Point, Span, in_order
from tests.support.registry import wrong_points, wrong_received

Signal = Literal["traces", "metrics"]
Mode = Literal["accept", "refuse", "reject", "hang"]
Message = ExportTraceServiceRequest | ExportMetricsServiceRequest

MESSAGES: Final[dict[Signal, type[Message]]] = {
    "traces": ExportTraceServiceRequest,
    "metrics": ExportMetricsServiceRequest,
}
ANSWERS: Final[dict[Signal, bytes]] = {
    "traces": ExportTraceServiceResponse().SerializeToString(),
    "metrics": ExportMetricsServiceResponse().SerializeToString(),
}


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One export call: what it held, its headers in lower case, and its size as protobuf in bytes."""

    signal: Signal
    message: Message
    headers: dict[str, str]
    size: int
    encoding: str = "identity"


@dataclass
class _Behaviour:
    """How calls are answered from now on; ``released`` lets the ones held by an earlier hang() go."""

    mode: Mode = "accept"
    delay: float = 0.0
    released: threading.Event = field(default_factory=threading.Event)


class OtlpReceiver(ABC):
    """What both transports share: the store, and the faults."""

    scheme: ClassVar[str]
    """What the standard variable OTEL_EXPORTER_OTLP_PROTOCOL calls this transport."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.turned_away = 0
        self.port = 0
        self._changed = threading.Condition()
        self._behaviour = _Behaviour()
        self.start()

    @property
    def endpoint(self) -> str:
        """The base URL, as OTEL_EXPORTER_OTLP_ENDPOINT takes it."""
        return f"http://127.0.0.1:{self.port}"

    # ---------------------------------------------------------------------------------------------- what arrived

    def spans(self, name: str | None = None) -> list[Span]:
        """Every span received, in order of arrival; of that name if one is given."""
        messages = [batch.message for batch in self.batches]
        decoded = [
            span
            for message in messages
            if isinstance(message, ExportTraceServiceRequest)
            for span in otlp_plain.spans(message)
        ]
        assert wrong_received(decoded) == []
        return [span for span in decoded if name is None or span["name"] == name]

    def exports(self) -> list[list[Point]]:
        """The points of each metric export, oldest first."""
        messages = [batch.message for batch in self.batches]
        exports = [
            otlp_plain.points(message) for message in messages if isinstance(message, ExportMetricsServiceRequest)
        ]
        assert [fault for points in exports for fault in wrong_points(points)] == []
        return exports

    def points(self, metric: str | None = None) -> list[Point]:
        """The newest value of every series (resource, scope, metric, attributes), sorted; of one metric if given."""
        newest: dict[str, Point] = {}
        for export in self.exports():
            for point in export:
                key = repr([point["resource"], point["scope"], point["metric"], sorted(point["attributes"].items())])
                newest[key] = point
        return in_order(point for point in newest.values() if metric is None or point["metric"] == metric)

    def wait_for(self, condition: Callable[[], object], seconds: float = 20.0) -> None:
        """Return when the condition holds; it is tried after each call that arrives. AssertionError after the time."""
        with self._changed:
            if not self._changed.wait_for(condition, seconds):
                kept, away = len(self.batches), self.turned_away
                raise AssertionError(f"not within {seconds} s; {kept} calls were kept and {away} turned away")

    def clear(self, signal: Signal | None = None) -> None:
        """Forget what has arrived so far; of one signal if one is given."""
        with self._changed:
            self.batches[:] = [batch for batch in self.batches if signal is not None and batch.signal != signal]
            self.turned_away = 0

    # ---------------------------------------------------------------------------------------------- faults

    def accept(self) -> None:
        """Answer well again."""
        self._behave("accept")

    def refuse(self) -> None:
        """Answer UNAVAILABLE or 503: an exporter tries again."""
        self._behave("refuse")

    def reject(self) -> None:
        """Answer INVALID_ARGUMENT or 400: an exporter must not try again."""
        self._behave("reject")

    def hang(self) -> None:
        """Hold every call without an answer."""
        self._behave("hang")

    def slow(self, seconds: float) -> None:
        """Answer well, each call that much later."""
        self._behave("accept", seconds)

    def _behave(self, mode: Mode, delay: float = 0.0) -> None:
        before, self._behaviour = self._behaviour, _Behaviour(mode, delay)
        before.released.set()

    def _take(self, batch: Batch) -> Mode:
        """Keep the batch or not, as told; return how the call is to be answered."""
        behaviour = self._behaviour
        if behaviour.mode == "hang":
            self._count_turned_away()
            behaviour.released.wait()
            return "refuse"
        if behaviour.delay:
            sleep(behaviour.delay)
        if behaviour.mode != "accept":
            self._count_turned_away()
            return behaviour.mode
        with self._changed:
            self.batches.append(batch)
            self._changed.notify_all()
        return "accept"

    def _count_turned_away(self) -> None:
        with self._changed:
            self.turned_away += 1
            self._changed.notify_all()

    # ---------------------------------------------------------------------------------------------- its life

    @abstractmethod
    def start(self) -> None:
        """Listen: on a free port the first time, on the same one after a stop()."""

    @abstractmethod
    def _close(self) -> None:
        """Stop listening and drop the connections there are."""

    def stop(self) -> None:
        """Close the port; calls that hang are let go first. What arrived stays readable."""
        self._behaviour.released.set()
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class GrpcReceiver(OtlpReceiver):
    """OTLP over gRPC."""

    scheme = "grpc"
    _METHODS: ClassVar[dict[str, Signal]] = {
        "/opentelemetry.proto.collector.trace.v1.TraceService/Export": "traces",
        "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export": "metrics",
    }
    _STATUS: ClassVar[dict[Mode, grpc.StatusCode]] = {
        "refuse": grpc.StatusCode.UNAVAILABLE,
        "reject": grpc.StatusCode.INVALID_ARGUMENT,
    }

    def start(self) -> None:
        """Listen: on a free port the first time, on the same one after a stop()."""
        # Without so_reuseport=0 two receivers could share one port, each getting half of the calls.
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="otlp-receiver")
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((_GrpcCalls(self),))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()

    def _close(self) -> None:
        self._server.stop(grace=None).wait()
        self._pool.shutdown()

    def export(self, signal: Signal, body: bytes, context: grpc.ServicerContext) -> bytes:
        """Answer one call."""
        message = MESSAGES[signal]()
        message.ParseFromString(body)
        headers = {key.lower(): str(value) for key, value in context.invocation_metadata()}
        answer = self._take(Batch(signal=signal, message=message, headers=headers, size=len(body)))
        if answer != "accept":
            context.abort(self._STATUS[answer], f"told to {answer}")
        return ANSWERS[signal]


class _GrpcCalls(grpc.GenericRpcHandler):
    """Routes the two Export methods; bodies stay bytes, so that their size is known."""

    def __init__(self, receiver: GrpcReceiver) -> None:
        self._receiver = receiver

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a method, None for one that no OTLP receiver has."""
        signal = GrpcReceiver._METHODS.get(details.method)
        if signal is None:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda body, context: self._receiver.export(signal, body, context))


class HttpReceiver(OtlpReceiver):
    """OTLP over HTTP with protobuf bodies, plain, gzip or deflate."""

    scheme = "http/protobuf"

    def start(self) -> None:
        """Listen: on a free port the first time, on the same one after a stop()."""
        self._server = _HttpServer(("127.0.0.1", self.port), _HttpCall)
        self._server.receiver = self
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def _close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    # Many processes may export at once; the default of five would turn some away where nothing was told to refuse.
    request_queue_size = 128
    receiver: HttpReceiver

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that hangs up on a receiver told to hang is what the test wants."""


class _HttpCall(BaseHTTPRequestHandler):
    server: _HttpServer
    _SIGNALS: ClassVar[dict[str, Signal]] = {"/v1/traces": "traces", "/v1/metrics": "metrics"}
    _STATUS: ClassVar[dict[Mode, int]] = {"accept": 200, "refuse": 503, "reject": 400}

    def do_POST(self) -> None:
        """Answer one export call; 404, 415 and 400 where the call itself is wrong."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        signal = self._SIGNALS.get(self.path)
        if signal is None:
            return self._answer(404)
        if self.headers.get("content-type") != "application/x-protobuf":
            return self._answer(415)
        encoding = self.headers.get("content-encoding", "identity")
        message = MESSAGES[signal]()
        try:
            data = _decoded(body, encoding)
            message.ParseFromString(data)
        except (OSError, ValueError, zlib.error, DecodeError):
            return self._answer(400)
        headers = {key.lower(): value for key, value in self.headers.items()}
        batch = Batch(signal=signal, message=message, headers=headers, size=len(data), encoding=encoding)
        answer = self.server.receiver._take(batch)
        return self._answer(self._STATUS[answer], ANSWERS[signal] if answer == "accept" else b"")

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base class's name)
        """Keep the tests' output to the tests."""


def _decoded(body: bytes, encoding: str) -> bytes:
    if encoding == "gzip":
        return gzip.decompress(body)
    if encoding == "deflate":
        return zlib.decompress(body)
    if encoding != "identity":
        raise ValueError(f"no such encoding: {encoding}")
    return body
