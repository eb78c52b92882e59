"""An OTLP/HTTP body in JSON, turned into the protobuf form that the receiver takes."""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final

import orjson
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import Message
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from otel_lifecycle._cli.live.receiver import Signal

MESSAGES: Final[dict[Signal, type[Message]]] = {"traces": TracesData, "metrics": MetricsData, "logs": LogsData}
# ParseDict accepts either spelling.  An attribute's name is a value, under ``key``, so it is never taken for an id.
IDS: Final = frozenset({"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"})


def to_protobuf(signal: Signal, body: bytes) -> bytes:
    """Return the message of a JSON body; ValueError if it is none."""
    try:
        made = ParseDict(_with_base64(orjson.loads(body)), MESSAGES[signal](), ignore_unknown_fields=True)
    # The body comes from outside: its nesting can exceed the recursion limit, and orjson's own limit is higher.
    except (ParseError, orjson.JSONDecodeError, TypeError, RecursionError) as error:
        raise ValueError(f"this is not an OTLP message of {signal} in JSON") from error
    return made.SerializeToString()


def _with_base64(document: Any) -> Any:
    """Return a document with base64 ids, as protobuf's own JSON form has them; OTLP writes them in hex."""
    if isinstance(document, list):
        return [_with_base64(item) for item in document]
    if not isinstance(document, dict):
        return document
    return {
        key: b64encode(bytes.fromhex(value)).decode() if key in IDS and isinstance(value, str) else _with_base64(value)
        for key, value in document.items()
    }
