"""One batch of spans in every form that people have it in."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from typing import Any

import zstandard
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

Form = Callable[[bytes], bytes]
"""From a TracesData as protobuf to a file."""


def document(proto: bytes) -> dict[str, Any]:
    """Return a batch as generic protobuf JSON: its ids are base64."""
    found: dict[str, Any] = MessageToDict(TracesData.FromString(proto))
    return found


def hex_ids(value: Any) -> Any:
    """Return such a document with ids as hex, which is OTLP's own JSON."""
    import base64

    if isinstance(value, dict):
        return {
            key: base64.b64decode(inner).hex() if key in {"traceId", "spanId", "parentSpanId"} else hex_ids(inner)
            for key, inner in value.items()
        }
    return [hex_ids(item) for item in value] if isinstance(value, list) else value


def _line(proto: bytes) -> bytes:
    return json.dumps(hex_ids(document(proto))).encode() + b"\n"


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _counted(message: bytes) -> bytes:
    return struct.pack(">I", len(message)) + message


_ZSTD = zstandard.ZstdCompressor()

FORMS: dict[str, Form] = {
    "json_line": _line,
    "json_pretty": lambda proto: json.dumps(hex_ids(document(proto)), indent=2).encode(),
    "json_array": lambda proto: json.dumps([hex_ids(document(proto))], indent=1).encode(),
    "json_with_byte_order_mark": lambda proto: b"\xef\xbb\xbf" + _line(proto).replace(b"\xef\xbb\xbf", b""),
    "json_base64_ids": lambda proto: json.dumps(document(proto)).encode(),
    "json_gzip": lambda proto: gzip.compress(_line(proto)),
    "json_zstd": lambda proto: _ZSTD.compress(_line(proto)),
    "json_zstd_messages": lambda proto: _counted(_ZSTD.compress(_line(proto))),
    "proto_bare": lambda proto: proto,
    "proto_messages": _counted,
    "proto_zstd_messages": lambda proto: _counted(_ZSTD.compress(proto)),
    "proto_delimited": lambda proto: _varint(len(proto)) + proto,
    "proto_gzip": lambda proto: gzip.compress(_counted(proto)),
}
"""Form -> how it is made."""
