"""An OTLP/HTTP body in JSON, turned into the protobuf form that the receiver takes."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final

import orjson
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import Message
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from otel_lifecycle._live.receiver import Signal

MESSAGES: Final[dict[Signal, type[Message]]] = {"traces": TracesData, "metrics": MetricsData, "logs": LogsData}
# ParseDict accepts either spelling.  An attribute's name is a value, under ``key``, so it is never taken for an id.
IDS: Final = frozenset({"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"})


def to_protobuf(signal: Signal, body: bytes) -> bytes:
    """Return the message of a JSON body; ValueError if it is none."""
    try:
        made = ParseDict(with_ids(orjson.loads(body), _base64), MESSAGES[signal](), ignore_unknown_fields=True)
    # The body comes from outside: its nesting can exceed the recursion limit, and orjson's own limit is higher.
    except (ParseError, orjson.JSONDecodeError, TypeError, RecursionError) as error:
        raise ValueError(f"this is not an OTLP message of {signal} in JSON") from error
    return made.SerializeToString()


def with_ids(document: Any, convert: Callable[[str], str]) -> Any:
    """Return a document with its ids in another form: protobuf's own JSON has them in base64, OTLP's in hex."""
    if isinstance(document, list):
        return [with_ids(item, convert) for item in document]
    if not isinstance(document, dict):
        return document
    return {
        key: convert(value) if key in IDS and isinstance(value, str) else with_ids(value, convert)
        for key, value in document.items()
    }


def _base64(identifier: str) -> str:
    return b64encode(bytes.fromhex(identifier)).decode()
