"""The gRPC side of OTLP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
from grpc import aio

from otel_lifecycle._live.guard import AccessRule, bearer
from otel_lifecycle._live.receiver import Receiver, Signal

SERVICES: Final[dict[Signal, str]] = {
    "traces": "opentelemetry.proto.collector.trace.v1.TraceService",
    "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
    "logs": "opentelemetry.proto.collector.logs.v1.LogsService",
}
# gRPC refuses more than 4 MiB by default, which a batch of 512 spans with token offsets can exceed.
MAX_MESSAGE: Final = 64 * 2**20


def grpc_server(receiver: Receiver, guard: AccessRule) -> aio.Server:
    """Return a server that gives messages to the receiver; it has no port yet."""
    # With SO_REUSEPORT, the default on Linux, two receivers share a port and each shows half of the requests.
    server = aio.server(options=[("grpc.max_receive_message_length", MAX_MESSAGE), ("grpc.so_reuseport", 0)])
    # Without serializers, handlers take and return bytes: a message is parsed once, by the receiver. An empty answer
    # is the bytes of an empty message.
    handlers = [
        grpc.method_handlers_generic_handler(
            service, {"Export": grpc.unary_unary_rpc_method_handler(_export(receiver, guard, signal))}
        )
        for signal, service in SERVICES.items()
    ]
    server.add_generic_rpc_handlers(tuple(handlers))
    return server


def _export(receiver: Receiver, guard: AccessRule, signal: Signal) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def export(message: bytes, context: Any) -> bytes:
        # Binary metadata arrives as bytes and cannot be the token.
        headers = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        if not guard.admits(bearer(headers)):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a token is needed")
        try:
            receiver.take(signal, message)
        # INVALID_ARGUMENT is not retried by exporters: the same bytes would fail again.
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return b""

    return export
