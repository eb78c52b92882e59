"""One interface for every message that holds spans: OTLP as protobuf or JSON, Jaeger's and Tempo's JSON."""

from __future__ import annotations

from typing import Protocol

import orjson

from otel_lifecycle._table.sources import hints, jaeger, otlp_json
from otel_lifecycle._table.sources.framing import Message
from otel_lifecycle._table.sources.intake import Intake
from otel_lifecycle._table.sources.lenient import loads


class Decoder(Protocol):
    """Puts the wanted items of a decoded JSON document into an intake, and counts the rest there."""

    def __call__(self, document: object, intake: Intake, /) -> None:
        """Decode one document; nothing is raised for what cannot be read."""


def decoder_of(document: object) -> Decoder | None:
    """Return the decoder of a document: OTLP in any wrapper, or Jaeger's own form; None where it is neither."""
    if otlp_json.is_otlp(document):
        return otlp_json.decode
    return jaeger.decode if jaeger.is_jaeger(document) else None


def decode_message(message: Message, intake: Intake) -> str:
    """Put the wanted items of a message into an intake; return why it holds none, or an empty text."""
    kind, content = message
    if kind == "proto":
        # Only protobuf needs its library, whose import takes longer than reading a small trace.
        from otel_lifecycle._table.sources import otlp_proto

        return "" if otlp_proto.decode(content, intake) else "not OTLP"
    try:
        documents = loads(content)
    except orjson.JSONDecodeError as error:
        return f"not JSON ({error}){hints.like(content)}"
    for document in documents if isinstance(documents, list) else [documents]:
        decode = decoder_of(document)
        if decode is None:
            return f"JSON, but no traces of OTLP, Jaeger or Tempo{hints.like_document(document, content)}"
        decode(document, intake)
    return ""
